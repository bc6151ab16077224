"""Linearizability checker: is there one order in which all operations on a register make sense?

The algorithm of Wing and Gong with Lowe's memory of what was tried. Each ref is a register by
itself: a history of several is linearizable when that of each is.

Source:
    Wing, Gong: Testing and verifying concurrent objects (1993); Lowe: Testing for linearizability
    (2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

ANYTHING, SOMETHING = "any value, or none", "any value"


@dataclass(frozen=True)
class RegisterOperation:
    """One operation, by what it says of the register.

    Attributes:
        began: stamp before it was called.
        ended: stamp after it returned; infinite where nobody knows whether it was done, or will be.
        before: value that it found, None for none; `ANYTHING` and `SOMETHING` leave that open.
        changes: whether it sets the register.
        after: what to.
        told: who did what, for messages.
    """

    began: float
    ended: float
    before: str | None
    changes: bool = False
    after: str | None = None
    told: str = ""

    def fits(self, value: str | None) -> bool:
        if self.before == SOMETHING:
            return value is not None
        return self.before in (ANYTHING, value)


def linearize(history: Sequence[RegisterOperation]) -> list[RegisterOperation] | None:
    """An order that explains everything, beginning with an empty register; None: there is none."""
    operations = sorted(history, key=lambda one: one.began)
    certain = sum(1 << at for at, one in enumerate(operations) if one.ended != inf)
    order: list[int] = []
    tried: set[tuple[int, str | None]] = {(0, None)}
    paths: list[Iterator[tuple[int, int, str | None]]] = [_next(operations, 0, None)]
    done = 0
    while certain & ~done:
        step = next((one for one in paths[-1] if one[1:] not in tried), None)
        if step is None:
            paths.pop()
            if not paths:
                return None
            done ^= 1 << order.pop()
            continue
        at, done, value = step
        order.append(at)
        tried.add((done, value))
        paths.append(_next(operations, done, value))
    return [operations[at] for at in order]


def _next(
    operations: Sequence[RegisterOperation], done: int, value: str | None
) -> Iterator[tuple[int, int, str | None]]:
    """What can come next: the number of an operation, all that is done then, and the value."""
    found, before = [], inf
    for at, one in enumerate(operations):
        if one.began > before:
            break  # something has ended before it began, and before all that follow
        if not done >> at & 1:
            before = min(before, one.ended)
            found.append((at, one))
    possible = [(at, one) for at, one in found if one.began <= before and one.fits(value)]
    looks = [(at, one) for at, one in possible if not one.changes]
    # What only looks at the value hinders nothing: to do it first is never wrong.
    for at, one in looks[:1] or possible:
        yield at, done | 1 << at, one.after if one.changes else value
