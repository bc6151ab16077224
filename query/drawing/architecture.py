"""Drawings of architectures: a box for each module, repeated blocks once, as SVG.

A graph of operations may have thousands of nodes. Operations without tensors are told in the box of
what they follow; modules whose names differ in numbers alone, and whose tensors are alike, share a
box that says how many there are. Where boxes are still too many, modules are told by the first
parts of their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Final

from tensorrepo.formats.model.graph.graph import INPUT, Graph, GraphNode, module_of
from tensorrepo.query.drawing.layered import LayeredLayout, Point, layered
from tensorrepo.query.drawing.parts import text
from tensorrepo.repo.deferred_dataclass import dataclass

MOST_BOXES: Final = 60
MOST_NODES: Final = 50_000  # of a graph that is drawn
_BOX: Final = (230, 44)  # width and height, px
_PITCH: Final = (254, 68)
_MARGIN: Final = 8
_TITLE_CHARACTERS: Final = 32
_WORDS_CHARACTERS: Final = 38
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_COLORS: Final = (
    ("emb", 0), ("linear", 3), ("addmm", 3), ("matmul", 3), ("gemm", 3), ("conv", 1), ("norm", 6),
    ("attention", 4), ("recurrent", 5), ("lstm", 5), ("gru", 5),
)  # fmt: skip
_OTHER: Final = 7


@dataclass(slots=True)
class ModuleBox:
    """Modules that are drawn as one box.

    Attributes:
        name: what they are called; numbers that differ are ``*``.
        modules: their whole names.
        operations: how often each operation is done in one of them.
        parameters: number of numbers that all of them hold.
    """

    name: str
    modules: dict[str, None] = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
    parameters: int = 0


@dataclass(frozen=True, slots=True)
class ArchitectureDrawing:
    """Boxes of an architecture in the order of the computation, and which leads to which."""

    boxes: tuple[ModuleBox, ...]
    edges: tuple[tuple[int, int], ...]
    left_out: int

    def svg(self) -> str:
        """The drawing, from top to bottom; its colors are classes."""
        names = [str(at) for at in range(len(self.boxes))]
        layout = layered(names, ((str(start), str(stop)) for start, stop in self.edges))
        width = round(max(layout.rows - 1, 0) * _PITCH[0] + _BOX[0] + 2 * _MARGIN)
        height = max(layout.layers - 1, 0) * _PITCH[1] + _BOX[1] + 2 * _MARGIN
        lines = "".join(_line(points) for points in layout.edges.values())
        boxes = "".join(_box(box, layout, str(at)) for at, box in enumerate(self.boxes))
        label = f"Architecture of {len(self.boxes)} modules"
        return (
            f'<svg class="architecture" role="img" aria-label="{text(label)}" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}">{lines}{boxes}</svg>'
        )


def draw_architecture(graph: Graph) -> ArchitectureDrawing:
    """Boxes for a graph: as deep in its modules as `MOST_BOXES` allow."""
    nodes = graph.nodes[:MOST_NODES]
    modules = _modules(nodes)
    depths = range(max((name.count(".") + 1 for name in modules.values()), default=1), 0, -1)
    boxes, place = _boxes(nodes, modules, depths[0])
    for depth in depths[1:]:
        if len(boxes) <= MOST_BOXES:
            break
        boxes, place = _boxes(nodes, modules, depth)
    shown = min(len(boxes), MOST_BOXES)
    # Lines back are left out: from the end of a repeated block to its beginning.
    edges = dict.fromkeys(
        (place[edge.node], place[node.name])
        for node in nodes
        for edge in node.inputs
        if place[edge.node] < place[node.name] < shown
    )
    left_out = len(boxes) - shown + (len(graph.nodes) - len(nodes))
    return ArchitectureDrawing(tuple(boxes[:shown]), tuple(edges), left_out)


def _modules(nodes: Iterable[GraphNode]) -> dict[str, str]:
    """Of each node its module: its tensors' or, without any, that of what it follows."""
    found: dict[str, str] = {}
    for node in nodes:  # in order: inputs come before
        if node.parameters:
            found[node.name] = module_of(node.parameters[0].tensor) or node.name
        elif node.op == INPUT or not node.inputs:
            found[node.name] = node.name
        else:
            found[node.name] = found.get(node.inputs[0].node, node.name)
    return found


def _boxes(
    nodes: Iterable[GraphNode], modules: Mapping[str, str], depth: int
) -> tuple[list[ModuleBox], dict[str, int]]:
    """Boxes of the modules' first `depth` parts, and the box of each node."""
    members: dict[str, list[GraphNode]] = {}
    for node in nodes:
        members.setdefault(".".join(modules[node.name].split(".")[:depth]), []).append(node)
    alike: dict[tuple[object, ...], int] = {}
    boxes: list[ModuleBox] = []
    place: dict[str, int] = {}
    for module, inside in members.items():
        folded = _NUMBER.sub("*", module)
        at = alike.setdefault((folded, *_signature(inside)), len(boxes))
        if at == len(boxes):
            boxes.append(ModuleBox(module))
            boxes[at].operations = Counter(node.op for node in inside)
        box = boxes[at]
        box.name = folded if box.modules else module
        box.modules[module] = None
        box.parameters += sum(_numbers(node) for node in inside)
        place |= {node.name: at for node in inside}
    return boxes, place


def _signature(nodes: Iterable[GraphNode]) -> Iterable[object]:
    """What modules that share a box have in common: operations, and shapes of tensors."""
    return (
        (node.op, tuple((one.role, one.type, one.shape) for one in node.parameters))
        for node in nodes
        if node.parameters or node.op == INPUT
    )


def _numbers(node: GraphNode) -> int:
    total = 0
    for one in node.parameters:
        size = 1
        for side in one.shape:
            size *= side
        total += size
    return total


def _color(box: ModuleBox) -> int:
    words = " ".join(box.operations).lower()
    return next((color for part, color in _COLORS if part in words), _OTHER)


def _box(box: ModuleBox, layout: LayeredLayout, key: str) -> str:
    x, y = _corner(layout.nodes[key])
    times = f" × {len(box.modules)}" if len(box.modules) > 1 else ""
    done = ", ".join(
        f"{count} {name}" if count > 1 else name for name, count in box.operations.most_common()
    )
    numbers = f"{box.parameters:,} parameters" if box.parameters else ""
    below = ", ".join(filter(None, [done, numbers]))
    names = list(box.modules)
    whole = f"{names[0]} to {names[-1]}" if times else names[0]
    width, height = _BOX
    return (
        f'<g class="c{_color(box)}" transform="translate({x:.1f} {y:.1f})">'
        f"<title>{text(f'{whole}{times}: {below}', 400)}</title>"
        f'<rect width="{width}" height="{height}" rx="6"/>'
        f'<text x="10" y="18">{text(box.name, _TITLE_CHARACTERS)}{times}</text>'
        f'<text class="below" x="10" y="34">{text(below, _WORDS_CHARACTERS)}</text></g>'
    )


def _line(points: tuple[Point, ...]) -> str:
    """A line from the bottom of a box, past those between, to the top of another."""
    width, height = _BOX
    corners = [_corner(point) for point in points]
    (x, y), (last_x, last_y) = corners[0], corners[-1]
    knots = [(x + width / 2, y + height)]
    knots += [(left + width / 2, top + height / 2) for left, top in corners[1:-1]]
    knots.append((last_x + width / 2, last_y))
    path = [f"M{knots[0][0]:.1f},{knots[0][1]:.1f}"]
    for (from_x, from_y), (to_x, to_y) in pairwise(knots):
        bend = (from_y + to_y) / 2
        path.append(f"C{from_x:.1f},{bend:.1f} {to_x:.1f},{bend:.1f} {to_x:.1f},{to_y:.1f}")
    return f'<path class="edge" d="{" ".join(path)}"/>'


def _corner(point: Point) -> tuple[float, float]:
    return point[1] * _PITCH[0] + _MARGIN, point[0] * _PITCH[1] + _MARGIN
