"""Graph of commits drawn as text or SVG: a column for each line of descent, joined sideways.

Every open column waits for one commit, and no two for the same. A commit stands in the column that
waits for it and passes the column on to its first parent, for which a column further right may have
waited: that ends. Lines to other parents leave sideways in a row below. A line that crosses a
column disappears behind it, so what a row joins can be read off: tests draw histories and read them
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tensorrepo.query.drawing.parts import COLORS
from tensorrepo.repo.deferred_dataclass import dataclass

COMMIT: Final = "*"
# (up, down, left, right): the box that has these arms
_BOXES: Final = {
    (True, True, False, False): "│",
    (True, True, False, True): "├",
    (True, True, True, False): "┤",
    (True, True, True, True): "┼",
    (True, False, False, True): "╰",
    (True, False, True, False): "╯",
    (True, False, True, True): "┴",
    (False, True, True, False): "╮",
    (False, True, False, True): "╭",
    (False, True, True, True): "┬",
    (False, False, True, True): "─",
}
_ARMS: Final = {box: arms for arms, box in _BOXES.items()}
COMMIT_PIXELS: Final = 40  # height of a commit in a drawing
JOIN_PIXELS: Final = 14  # and of a row of lines between commits
MOST_LANES: Final = 24  # that a drawing shows
_PLACE_PIXELS: Final = 8  # width of a character
ASCII: Final = str.maketrans("│├┤┼╰╯┴╮╭┬─", "|||+\\/+\\/+-")


def graph_lines(
    history: Iterable[tuple[str, Sequence[str], bool]],
) -> Iterator[tuple[str | None, str]]:
    """Lines of the graph: (commit, or None for a line between commits; its drawing).

    Args:
        history: (commit, its parents, whether it is shown), every commit before its parents. Those
            that are not shown leave a line from their children to their parents.
    """
    columns: list[str | None] = []
    ended = -1  # the column of a commit without parents, which the next one shall not seem to go on
    for commit, parents, is_shown in history:
        if commit not in columns:
            if not is_shown:
                continue
            if _open(columns, commit) == ended:
                yield None, " ".join(_bars(columns, ended, " ")).rstrip()
        place = columns.index(commit)
        if is_shown:
            yield commit, " ".join(_bars(columns, place, COMMIT)).rstrip()
        for above, targets in _pass_on(columns, place, parents):
            yield None, _row(above, columns, place, targets)
        ended = place if columns[place] is None else -1
        while columns and columns[-1] is None:
            columns.pop()


def _bars(columns: Sequence[str | None], place: int, box: str) -> Iterator[str]:
    for at, waiting in enumerate(columns):
        yield box if at == place else " " if waiting is None else "│"


def _open(columns: list[str | None], commit: str, after: int = -1) -> int:
    """The first free column behind `after`, which waits for `commit` from now on."""
    for place in range(after + 1, len(columns)):
        if columns[place] is None:
            columns[place] = commit
            return place
    columns.append(commit)
    return len(columns) - 1


def _pass_on(
    columns: list[str | None], place: int, parents: Sequence[str]
) -> Iterator[tuple[list[str | None], set[int]]]:
    """Let columns wait for the parents of a commit.

    Yields:
        For each row that is drawn the columns above it, and the places that lines lead to sideways.
    """
    before, targets, ending = list(columns), set(), -1
    columns[place] = None
    for parent in dict.fromkeys(parents):
        known = columns.index(parent) if parent in columns else -1
        if columns[place] is None and (known < 0 or known > place):
            columns[place], ending = parent, known
        else:
            targets.add(known if known >= 0 else _open(columns, parent, place))
    # Lines leave before another one comes in, which does not take part in them.
    if targets:
        yield before, targets
    if ending >= 0:
        before = list(columns)
        columns[ending] = None
        yield before, {ending}


def _row(
    above: Sequence[str | None], below: Sequence[str | None], place: int, targets: set[int]
) -> str:
    """The row between a commit and the next: lines from its column to `targets`."""
    low, high = min(targets | {place}), max(targets | {place})
    boxes = []
    for at in range(len(below)):
        is_end = at == place or at in targets
        up, down = at < len(above) and above[at] is not None, below[at] is not None
        left, right = low < at <= high, low <= at < high
        if up and down and not is_end:
            left = right = False  # the line goes on behind the column
        boxes.append(_BOXES.get((up, down, left, right), " "))
        boxes.append("─" if low <= at < high else " ")
    return "".join(boxes).rstrip()


@dataclass(frozen=True, slots=True)
class DrawnCommit:
    """A commit of a graph: the lane that it stands in, and the drawing of its part as SVG."""

    commit: str
    svg: str


def graph_drawings(
    history: Iterable[tuple[str, Sequence[str]]], *, skip: int = 0
) -> Iterator[DrawnCommit]:
    """The graph in pieces, one for each commit behind the first `skip`, that fit one below another.

    Args:
        history: (commit, its parents), every commit before its parents.
        skip: commits that are not drawn, though lines lead from them.
    """
    lines = list(graph_lines((commit, parents, True) for commit, parents in history))
    starts = [at for at, (commit, _) in enumerate(lines) if commit is not None]
    width = max((len(line) for _, line in lines), default=1)
    for start, end in zip(starts[skip:], [*starts[skip + 1 :], len(lines)], strict=False):
        piece = [_arms([line for _, line in lines], at) for at in range(start, end)]
        commit = lines[start][0]
        assert commit is not None, "pieces begin at commits"
        yield DrawnCommit(commit, _svg(piece, lines[start][1].index(COMMIT), width))


def _arms(lines: Sequence[str], row: int) -> list[tuple[bool, bool, bool, bool]]:
    """For each place of a row where lines lead from: up, down, left, right."""
    arms = [_ARMS.get(box, (False,) * 4) for box in lines[row]]
    place = lines[row].find(COMMIT)
    if place >= 0:
        above = lines[row - 1] if row else ""
        below = lines[row + 1] if row + 1 < len(lines) else ""
        arms[place] = (_reaches(above, place, 1), _reaches(below, place, 0), False, False)
    return arms


def _reaches(line: str, place: int, arm: int) -> bool:
    box = line[place : place + 1]
    return box == COMMIT or _ARMS.get(box, (False,) * 4)[arm]


def _svg(rows: Sequence[Sequence[tuple[bool, bool, bool, bool]]], place: int, width: int) -> str:
    height = COMMIT_PIXELS + JOIN_PIXELS * (len(rows) - 1)
    wide = min(width, 2 * MOST_LANES) * _PLACE_PIXELS + _PLACE_PIXELS
    paths: dict[int, list[str]] = {}
    top = 0
    for at, row in enumerate(rows):
        high = JOIN_PIXELS if at else COMMIT_PIXELS
        corners = [lane for lane, (up, down, *_) in enumerate(row) if up or down]
        for lane, arms in enumerate(row):
            own = lane if any(arms[:2]) else min((c for c in corners if c > lane), default=lane)
            paths.setdefault(own // 2, []).append(_strokes(lane, top, high, arms))
        top += high
    drawn = "".join(
        f'<path class="lane c{lane % COLORS}" d="{"".join(strokes)}"/>'
        for lane, strokes in paths.items()
        if any(strokes)
    )
    x = _PLACE_PIXELS * (place + 1)
    return (
        f'<svg width="{wide}" height="{height}" viewBox="0 0 {wide} {height}" aria-hidden="true">'
        f'{drawn}<circle class="dot c{place // 2 % COLORS}" cx="{x}" cy="{COMMIT_PIXELS // 2}" '
        'r="5"/></svg>'
    )


def _strokes(lane: int, top: int, high: int, arms: tuple[bool, bool, bool, bool]) -> str:
    """Lines from the middle of a place to where its arms lead; a corner is round."""
    up, down, left, right = arms
    x, y, half = _PLACE_PIXELS * (lane + 1), top + high / 2, _PLACE_PIXELS / 2
    sides = [x - half] * left + [x + half] * right
    ends = [float(top)] * up + [float(top + high)] * down
    if len(sides) == len(ends) == 1:
        return f"M{x},{ends[0]:g}Q{x},{y:g} {sides[0]:g},{y:g}"
    return "".join(
        [*(f"M{x},{end:g}V{y:g}" for end in ends), *(f"M{s:g},{y:g}H{x}" for s in sides)]
    )
