"""Graph of commits drawn as text: a column for each line of descent, joined by horizontal lines.

Every open column waits for one commit, and no two for the same. A commit stands in the column that
waits for it and passes the column on to its first parent, for which a column further right may have
waited: that ends. Lines to other parents leave sideways in a row below. A line that crosses a
column disappears behind it, so what a row joins can be read off: tests draw histories and read them
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
