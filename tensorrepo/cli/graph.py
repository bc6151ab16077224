"""How does a history look in text? Pure: commits in, lines out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def graph_lines(history: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str | None, str]]:
    """Lines of the graph: (commit or None for a line between commits, its drawing).

    Args:
        history: (commit, parents), every commit before its parents.

    A column is a line of descent: it waits for the commit at its foot. A commit takes the leftmost
    column that waits for it; its first parent inherits that, further parents get new ones.
    """
    waiting: list[str] = []
    for commit, parents in history:
        if commit not in waiting:
            waiting.append(commit)
        place = waiting.index(commit)
        yield commit, " ".join("*" if at == place else "|" for at in range(len(waiting)))
        joined = [at for at, wanted in enumerate(waiting) if wanted == commit and at != place]
        if joined:
            yield None, _bends(len(waiting), joined, "/")
        waiting = [wanted for at, wanted in enumerate(waiting) if at == place or wanted != commit]
        fresh = [parent for parent in parents[1:] if parent not in waiting]
        if not parents:
            del waiting[place]
        elif parents[0] in waiting[:place] + waiting[place + 1 :]:
            yield None, _bends(len(waiting), [place], "/")
            del waiting[place]
        else:
            waiting[place] = parents[0]
        if fresh:
            yield None, " ".join("|" for _ in waiting) + "\\" * len(fresh)
            waiting += fresh


def _bends(columns: int, bent: Sequence[int], sign: str) -> str:
    return " ".join(sign if at in bent else "|" for at in range(columns))
