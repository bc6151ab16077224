"""Drawings of lineage: boxes in layers, origins on the left, as SVG or PNG.

SVG is written here, so that notebooks and reports need no plotting library and lines and text take
the colors around them. PNG is drawn from the same layout by matplotlib, of the extra `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tensorrepo.formats.common.arguments import counted, file_path, flag
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.query.drawing.layered import LayeredLayout, Point, layered
from tensorrepo.query.lineage import LineageNode, LineageStep
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import bounded_text, printable

MOST_DRAWN: Final = 500  # things
_BOX: Final = (176, 38)  # width and height, px
_PITCH: Final = (310, 54)  # from layer to layer, from row to row
_MARGIN: Final = 8
_TITLE_CHARACTERS: Final = 25
_DOTS_PER_INCH: Final = 100
_FOLDERS: Final = ("datasets/", "models/", "views/", "files/", "runs/")
COLORS: Final = {
    "dataset": "#2f81f7", "model": "#a371f7", "run": "#3fb950", "view": "#d29922",
}  # fmt: skip
_OTHER: Final = "#8b949e"
# A file stands alone: without a page around it, it says itself what it looks like.
_ALONE: Final = (
    "<style>.tensorrepo-lineage{color:#1f2328;background:#ffffff}"
    "@media(prefers-color-scheme:dark)"
    "{.tensorrepo-lineage{color:#e6edf3;background:#0d1117}}</style>"
)


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A laid-out lineage: a notebook shows it, `save` writes it.

    Attributes:
        start: key of the thing that was asked about, which has a thick frame; None: there is none.
        nodes: things by key.
        relations: words on each edge, by the keys of origin and subject.
        layout: places of things and edges.
    """

    start: str | None
    nodes: dict[str, LineageNode]
    relations: dict[tuple[str, str], str]
    layout: LayeredLayout

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in px."""
        wide = max(self.layout.layers - 1, 0) * _PITCH[0] + _BOX[0]
        high = max(self.layout.rows - 1, 0) * _PITCH[1] + _BOX[1]
        return wide + 2 * _MARGIN, round(high) + 2 * _MARGIN

    def svg(self, *, alone: bool = False, link: Callable[[LineageNode], str] = lambda _: "") -> str:
        """The drawing as SVG.

        Args:
            alone: for a file of its own: it has a ground, and colors of its own, light or dark.
            link: URL that the box of a thing leads to; "" leads nowhere.
        """
        width, height = self.size
        edges = (self._edge(pair) for pair in self.relations)
        boxes = (self._linked(key, link(node)) for key, node in self.nodes.items())
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" class="tensorrepo-lineage" role="group" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
            f"{_ALONE if alone else ''}<title>{escape(repr(self)[1:-1])}</title>"
            f"{''.join(edges)}{''.join(boxes)}</svg>"
        )

    def save(self, to: str | Path, *, overwrite: bool = False) -> Path:
        """Write the drawing to a file ending in ``.svg`` or ``.png``.

        Raises:
            InvalidInputError: another ending, or the file is there, and not `overwrite`.
            UnsupportedError: PNG, without matplotlib.
        """
        path = file_path("to", to)
        kind = path.suffix.lower()
        if kind not in {".svg", ".png"}:
            raise InvalidInputError(f"{path}: a drawing is .svg or .png, got {kind or 'no suffix'}")
        with new_file(path, overwrite=flag("overwrite", overwrite)) as temporary:
            if kind == ".svg":
                temporary.write_text(self.svg(alone=True), "utf-8")
            else:
                self.figure().savefig(temporary, format="png", dpi=_DOTS_PER_INCH)
        return path

    def figure(self) -> Any:
        """The drawing as a figure of matplotlib, made without its `pyplot`."""
        missing = "drawing PNG needs matplotlib: pip install 'tensorrepo[plots]'"
        figures = import_library("matplotlib.figure", missing)
        patches = import_library("matplotlib.patches", missing)
        paths = import_library("matplotlib.path", missing)
        width, height = self.size
        inches = (width / _DOTS_PER_INCH, height / _DOTS_PER_INCH)
        figure = figures.Figure(figsize=inches, dpi=_DOTS_PER_INCH, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for pair, relation in self.relations.items():
            course = _course(self.layout.edges[pair])
            codes = [paths.Path.MOVETO, *[paths.Path.CURVE4] * (len(course) - 1)]
            curve = paths.Path(course, codes)
            axes.add_patch(patches.PathPatch(curve, fill=False, edgecolor="#8b949e"))
            x, y = _middle(self.layout.edges[pair])
            axes.text(x, y - 4, relation, fontsize=6.5, ha="center", color="#57606a")
        for key, node in self.nodes.items():
            x, y = _corner(self.layout.nodes[key])
            thick = 2 if key == self.start else 1
            color = COLORS.get(node.kind, _OTHER)
            style = {"facecolor": "white", "edgecolor": color, "linewidth": thick}
            axes.add_patch(patches.Rectangle((x, y), *_BOX, **style))
            title, below = _words(node)
            # Not as mathematics: names may have dollars.
            axes.text(x + 10, y + 16, title, fontsize=8, parse_math=False)
            axes.text(x + 10, y + 30, below, fontsize=6.5, color="#57606a", parse_math=False)
        return figure

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.svg()}</div>'

    def __repr__(self) -> str:
        return f"<lineage drawing of {counted(len(self.nodes), 'thing')}>"

    def _edge(self, pair: tuple[str, str]) -> str:
        course = _course(self.layout.edges[pair])
        curves = " ".join(f"{x:.1f},{y:.1f}" for x, y in course[1:])
        (x, y), (start_x, start_y) = _middle(self.layout.edges[pair]), course[0]
        return (
            f'<path d="M{start_x:.1f},{start_y:.1f} C{curves}" fill="none" stroke="currentColor" '
            'stroke-opacity="0.45"/>'
            f'<text x="{x:.1f}" y="{y - 4:.1f}" text-anchor="middle" font-size="10" '
            f'fill-opacity="0.7">{escape(printable(self.relations[pair]))}</text>'
        )

    def _linked(self, key: str, href: str) -> str:
        box = self._box(key)
        if not href:
            return box
        label = escape(printable(f"{self.nodes[key].kind} {self.nodes[key].path}"))
        return f'<a href="{escape(href)}" aria-label="{label}">{box}</a>'

    def _box(self, key: str) -> str:
        node, (x, y) = self.nodes[key], _corner(self.layout.nodes[key])
        color, (title, below) = COLORS.get(node.kind, _OTHER), _words(node)
        width, height = _BOX
        thick = 2 if key == self.start else 1
        dashes = "" if node.stored else ' stroke-dasharray="4"'
        return (
            f'<g transform="translate({x:.1f} {y:.1f})"><title>{escape(printable(node.path))} '
            f'{escape(node.key[:64])}</title><rect width="{width}" height="{height}" rx="4" '
            f'fill="{color}" fill-opacity="0.12" stroke="{color}" stroke-width="{thick}"{dashes}/>'
            f'<text x="10" y="16">{escape(title)}</text>'
            f'<text x="10" y="30" font-size="10" fill-opacity="0.7">{escape(below)}</text></g>'
        )


def draw_steps(start: LineageNode | None, steps: Iterable[LineageStep]) -> Drawing:
    """Lay out edges of a lineage; `start` is what was asked about, where that is one thing.

    Raises:
        InvalidInputError: more than `MOST_DRAWN` things.
    """
    nodes = {} if start is None else {start.key: start}
    words = dict[tuple[str, str], dict[str, None]]()
    for step in steps:
        nodes |= {node.key: node for node in (step.origin, step.subject) if node.key not in nodes}
        words.setdefault((step.origin.key, step.subject.key), {})[step.relation] = None
    if len(nodes) > MOST_DRAWN:
        raise InvalidInputError(
            f"the lineage has {len(nodes):,} things, and {MOST_DRAWN} fit a drawing: give a depth, "
            "such as depth=2"
        )
    relations = {pair: ", ".join(each) for pair, each in words.items() if pair[0] != pair[1]}
    return Drawing(
        None if start is None else start.key, nodes, relations, layered(list(nodes), relations)
    )


def _corner(point: Point) -> tuple[float, float]:
    return point[0] * _PITCH[0] + _MARGIN, point[1] * _PITCH[1] + _MARGIN


def _middle(points: tuple[Point, ...]) -> tuple[float, float]:
    """Where the word of an edge stands: before its last box, where edges lie apart."""
    course = _course(points)
    (x, y), (left, top) = course[-1], course[-4]
    return (x + left) / 2, (y + top) / 2


def _course(points: tuple[Point, ...]) -> list[tuple[float, float]]:
    """An edge as Bezier curves: its start, then three points for each curve."""
    ends = [_sides(point) for point in points]
    forward = points[-1][0] >= points[0][0]
    if not forward:
        ends = [(right, left) for left, right in ends]
    middle = [((one[0] + two[0]) / 2, one[1]) for one, two in ends[1:-1]]
    knots = [ends[0][1], *middle, ends[-1][0]]
    course = [knots[0]]
    for (x, y), (next_x, next_y) in pairwise(knots):
        bend = (x + next_x) / 2
        course += [(bend, y), (bend, next_y), (next_x, next_y)]
    return course


def _sides(point: Point) -> tuple[tuple[float, float], tuple[float, float]]:
    """The middles of a box's left and right sides."""
    x, y = _corner(point)
    middle = y + _BOX[1] / 2
    return (x, middle), (x + _BOX[0], middle)


def _words(node: LineageNode) -> tuple[str, str]:
    """Two lines of a box: its path without the folder of its kind, then its kind and version."""
    path = printable(node.path or node.kind)
    short = node.key[:12] if node.kind not in {"url", "run"} and node.key != node.path else ""
    name = path.partition("/")[2] if path.startswith(_FOLDERS) else path
    below = " ".join(
        filter(None, [node.kind, short, "not stored" if short and not node.stored else ""])
    )
    return bounded_text(name, _TITLE_CHARACTERS), below
