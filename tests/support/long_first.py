"""Order of tests: long ones first, so that all workers come to their end together.

pytest-xdist's "worksteal" deals out stretches of the list, one for each worker, and takes from the
ends of what is left. Whoever comes last to a training of half a minute lets the others wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

_Item = TypeVar("_Item")


def long_first(
    items: Sequence[_Item],
    workers: int,
    is_long: Callable[[_Item], bool],
    module_of: Callable[[_Item], str],
) -> list[_Item]:
    """The same items, with long modules at the beginnings of the workers' stretches.

    Modules that are long stay whole, and follow one another by turns over the workers; the others
    keep their order.
    """
    long = [list(group) for _, group in groupby(filter(is_long, items), module_of)]
    others = [item for item in items if not is_long(item)]
    ordered: list[_Item] = []
    for worker in range(workers):
        # As the scheduler divides what is left among those that have nothing yet.
        size = (len(items) - len(ordered)) // (workers - worker)
        first = _flat(long[worker::workers])
        rest = max(0, size - len(first)) if worker < workers - 1 else len(others)
        ordered += first + others[:rest]
        del others[:rest]
    return ordered


def _flat(groups: Iterable[Sequence[_Item]]) -> list[_Item]:
    return [item for group in groups for item in group]
