"""How does a history look in text? Pure: commits in, lines out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def graph_lines(history: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str | None, str]]:
    """Lines of the graph: (commit, or None for a line between commits; its drawing).

    Args:
        history: (commit, parents), every commit before its parents.

    A column is a line of descent: it waits for the commit at its foot. A commit takes the leftmost
    column that waits for it; its first parent inherits that, further parents get new ones.
    """
    waiting: list[str] = []
    for commit, parents in history:
        if commit not in waiting:
            waiting.append(commit)
        column = waiting.index(commit)
        yield commit, " ".join("*" if at == column else "|" for at in range(len(waiting)))
        joining = [at for at, wanted in enumerate(waiting) if wanted == commit and at != column]
        waiting[column] = parents[0] if parents else ""
        if parents and parents[0] in waiting[:column]:
            joining.append(column)
        if joining:
            yield None, _joining(len(waiting), joining)
        gone = set(joining) if parents else {*joining, column}
        waiting = [wanted for at, wanted in enumerate(waiting) if at not in gone]
        fresh = [parent for parent in parents[1:] if parent not in waiting]
        if fresh:
            yield None, " ".join("|" for _ in waiting) + "\\" + " \\" * (len(fresh) - 1)
            waiting += fresh


def _joining(columns: int, joining: Sequence[int]) -> str:
    """Every column as a bar; those that end lean to the left, into their neighbour."""
    drawing = list(" ".join("|" for _ in range(columns)))
    for column in joining:
        drawing[2 * column] = " "
        drawing[2 * column - 1] = "/"
    return "".join(drawing).rstrip()
