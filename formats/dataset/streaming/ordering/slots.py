"""By which small numbers are the runs known that are in use, out of more than anybody counts?

A run of a dataset too large to be numbered is named by its group and its place there. While lanes
are in it, it has a slot, and everything behind the order, which keeps arrays by run, keeps them by
slot. A slot goes to another run when its own was not wanted for so many turns that nobody can still
be at work on it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Stretches are worked out ahead of their use: one is looked into, one is ready, one waits, one is
# expected, one is handed out. A run is closed in the stretch after its last row at the latest.
_TURNS_KEPT = 8
TURNS = _TURNS_KEPT + 2


@dataclass(frozen=True, slots=True, eq=False)
class GroupRuns:
    """The runs of one group. Arrays are int64 ``(runs,)``.

    Attributes:
        number: of the group.
        live: live rows of each run.
        first_row: the live row of the dataset that each begins with.
        run_bytes: decoded bytes of each.
        slot: of each run that has one; -1 for others.
    """

    number: int
    live: NDArray[np.int64]
    first_row: NDArray[np.int64]
    run_bytes: NDArray[np.int64]
    slot: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slot", np.full(self.live.size, -1, np.int64))


class Slots:
    """Slots, and what is known of the runs in them. One thread gives them, any thread looks.

    Attributes:
        live: as in `GroupRuns`, by slot, like the next two.
        first_row: likewise.
        run_bytes: likewise.
        names: uint64, the group of each run in the high half, its place there in the low one.
    """

    def __init__(self, capacity: int, known: Callable[[int], GroupRuns | None]) -> None:
        """Prepare.

        Args:
            capacity: `TURNS` times the runs of a turn. Memory is touched when it is used.
            known: the group of this number, if it is still open.
        """
        self.live = np.zeros(capacity, np.int64)
        self.first_row = np.zeros(capacity, np.int64)
        self.run_bytes = np.zeros(capacity, np.int64)
        self.names = np.zeros(capacity, np.uint64)
        self._known = known
        self._turn = 0
        self._used = np.zeros(capacity, np.int64)  # the last turn
        self._recent: deque[list[NDArray[np.int64]]] = deque([[]])  # of the last turns
        self._free = np.zeros(0, np.int64)
        self._fresh = 0

    def begin(self) -> None:
        """Another turn: slots that were used too long ago are free."""
        self._turn += 1
        self._recent.append([])
        if len(self._recent) > _TURNS_KEPT:
            gone = np.concatenate([np.zeros(0, np.int64), *self._recent.popleft()])
            self._give_back(np.unique(gone[self._used[gone] <= self._turn - _TURNS_KEPT]))

    def of(self, group: GroupRuns, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots of the runs at these places of a group; used in this turn."""
        slot = group.slot[places]
        new = np.unique(places[slot < 0])
        if new.size:
            group.slot[new] = fresh = self._take(new.size)
            self.live[fresh] = group.live[new]
            self.first_row[fresh] = group.first_row[new]
            self.run_bytes[fresh] = group.run_bytes[new]
            self.names[fresh] = (group.number << 32 | new).view(np.uint64)
            slot = group.slot[places]
        self._used[slot] = self._turn
        self._recent[-1].append(slot)
        return slot

    def where(self, slot: int) -> tuple[int, int]:
        """The group of the run in a slot, and its place there."""
        name = self.names.item(slot)
        return name >> 32, name & 0xFFFFFFFF

    def _take(self, count: int) -> NDArray[np.int64]:
        again = self._free[max(0, self._free.size - count) :]
        self._free = self._free[: self._free.size - again.size]
        fresh = np.arange(self._fresh, self._fresh + count - again.size)
        self._fresh += fresh.size
        if self._fresh > self.live.size:
            raise AssertionError("more runs are in use than were reckoned with")
        return np.concatenate((again, fresh))

    def _give_back(self, slots: NDArray[np.int64]) -> None:
        names = self.names[slots]
        numbers = (names >> np.uint64(32)).astype(np.int64)
        places = (names & np.uint64(0xFFFFFFFF)).astype(np.int64)
        for number in np.unique(numbers).tolist():
            group = self._known(number)
            if group is not None:
                mine = places[numbers == number]
                mine = mine[group.slot[mine] == slots[numbers == number]]
                group.slot[mine] = -1
        self._free = np.concatenate((self._free, slots))
