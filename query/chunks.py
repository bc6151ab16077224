"""Values in lists of some size: what is asked of a database at once, or held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

ASK_AT_ONCE: Final = 500  # values in one question; databases take some thousands


def chunks(
    values: Iterable[Any], size: int = ASK_AT_ONCE, weight: Callable[[Any], int] | None = None
) -> Iterator[list[Any]]:
    """`values` in lists of `size`; with `weight`, as many as bring the sum of theirs to it."""
    some: list[Any] = []
    held = 0
    for value in values:
        some.append(value)
        held += 1 if weight is None else weight(value)
        if held >= size:
            yield some
            some, held = [], 0
    if some:
        yield some
