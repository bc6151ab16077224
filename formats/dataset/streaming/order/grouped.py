"""Paired lanes over groups of runs, and the slots by which runs in use are known.

Runs that were stored next to each other form a group of about a thousand. Groups are shuffled into
a line, and inside each of them its runs, by a key of their own. Where a lane is, only the groups
around it have to be known: laying out an epoch costs time and memory by the group. While lanes are
in a run it has a slot, a small number; a slot goes to another run when nobody can still need it.

Source:
    docs/spec/stream-order.md, section "Groups".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints, distinct
from tensorrepo.formats.dataset.streaming.order.buckets import Bucketed, Buckets
from tensorrepo.formats.dataset.streaming.order.items import Items
from tensorrepo.formats.dataset.streaming.order.orders import Located, PairedLanes, lay_out
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.repo.deferred_dataclass import dataclass

Line = tuple[Ints, Ints]


class GroupStore(Protocol):
    """Groups, read when they are asked for."""

    @property
    def rows(self) -> Ints:
        """Items of each group, at least one."""

    def prepare(self, groups: list[int]) -> None:
        """Read what is not there of these, side by side."""

    def runs(self, group: int) -> GroupRuns:
        """The runs of a group."""


GROUP_RUNS = 1024  # on average
_NO_RUNS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which runs belong together: all that is known before a group is looked into.

    Attributes:
        rows: int64 ``(groups,)``, items of each, at least one.
        first_run: int64 ``(groups + 1,)``: group g has the runs
            ``[first_run[g], first_run[g + 1])``.
        counts: items of each run of a group, when it is needed.
        run_rows: about how many items a run has.
    """

    rows: Ints
    first_run: Ints
    counts: Callable[[int], Ints]
    run_rows: int


def grouping(counts: Ints, group: Ints, run_rows: int) -> Grouping:
    """The groups of runs with so many items each.

    Args:
        counts: items of each run.
        group: a number per run, ascending; runs of one number are a group.
        run_rows: mean number of items of a run, see `Grouping`.
    """
    first = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1, [group.size]))
    rows = np.add.reduceat(counts, first[:-1])
    return Grouping(rows, first, lambda at: counts[first[at] : first[at + 1]], run_rows)


@dataclass(frozen=True, slots=True)
class GroupedLanes(PairedLanes):
    """Paired lanes over groups of runs: `live`, `pi` and `start` are of groups, not of runs."""

    groups: Grouping
    lines: dict[int, Line]  # of groups that were looked into, the least recently used first

    def row_names(self, runs: Ints) -> NDArray[np.uint64]:
        """The group of each run in the high half, its place there in the low one."""
        group = np.searchsorted(self.groups.first_run, runs, side="right") - 1
        return (group << 32 | runs - self.groups.first_run[group]).view(np.uint64)

    def returning(self, bands: range) -> tuple[Ints, Ints]:  # noqa: ARG002
        """Nothing: to know of runs that two rings share, every ring would be looked into."""
        return _NO_RUNS, _NO_RUNS

    def _runs_at(self, piece: Ints, place: Ints) -> tuple[Ints, Ints]:
        by_piece = np.argsort(piece, kind="stable")
        bounds = np.flatnonzero(np.diff(piece[by_piece])) + 1
        run, found = np.empty_like(piece), np.empty_like(place)
        self._prepare(self.pi[distinct(piece)])
        for mine in np.split(by_piece, bounds) if piece.size else ():
            group = int(self.pi[piece[mine[0]]])
            order, start = self._line(group)
            inside = place[mine]
            index = np.searchsorted(start, inside, side="right") - 1
            run[mine] = self._numbers(group, order[index])
            found[mine] = inside - start[index]
        return run, found

    def _prepare(self, groups: Ints) -> None:
        """These are looked into next."""

    def _numbers(self, group: int, places: Ints) -> Ints:
        """The numbers of the runs at these places of a group."""
        numbers: Ints = self.groups.first_run[group] + places
        return numbers

    def _line(self, group: int) -> Line:
        """The runs of a group in the order of its line, and where each begins there."""
        line = self.lines.pop(group, None)
        if line is None:
            counts = self.groups.counts(group)
            key = number(epoch_key(self.seed, self.epoch, Purpose.GROUPS), group)
            order = permutation(key, counts.size)
            line = order, np.cumsum(counts[order]) - counts[order]
            while len(self.lines) > 2 * self.lanes:
                del self.lines[next(iter(self.lines))]
        self.lines[group] = line
        return line


@dataclass(frozen=True, slots=True, kw_only=True)
class SlottedLanes(GroupedLanes):
    """Lanes over groups that are read when lanes come to them: runs have the numbers of slots.

    Turns of the slots are begun by whoever locates rows.
    """

    store: GroupStore
    slots: RunSlots

    def row_names(self, runs: Ints) -> NDArray[np.uint64]:
        return self.slots.names[runs]

    def _prepare(self, groups: Ints) -> None:
        self.store.prepare(groups.tolist())

    def _numbers(self, group: int, places: Ints) -> Ints:
        return self.slots.of(self.store.runs(group), places)


class TurningLanes(SlottedLanes):
    """Slotted lanes that begin a turn each time."""

    __slots__ = ()

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The rows at these positions; what was located long ago is not valid any more."""
        self.slots.begin()
        return SlottedLanes.locate(self, start, stop, bands)


def slotted(unread: GroupedLanes, store: GroupStore, slots: RunSlots) -> TurningLanes:
    """The same epoch over groups that nobody has looked into."""
    return TurningLanes(**_fields(unread), store=store, slots=slots)


class SlottedBuckets(Bucketed):
    """Buckets over groups that nobody has looked into."""

    def __init__(
        self, unread: GroupedLanes, store: GroupStore, slots: RunSlots, items: Items,
        lengths: NDArray[np.uint32], buckets: Buckets,
    ) -> None:  # fmt: skip
        """Sort the items of `unread` as `Bucketed` does; arrays by run are by slot."""
        base = SlottedLanes(**_fields(unread), store=store, slots=slots)
        seed, epoch, lanes = base.seed, base.epoch, base.lanes
        super().__init__(
            base, items, lengths, slots.first_row, buckets, seed=seed, epoch=epoch, lanes=lanes
        )
        self._slots = slots
        slots.freed = self._freed

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The items at these positions; what was located long ago is not valid any more."""
        self._slots.begin()
        if self._newest is not None:  # there may be more of its items
            self._slots.use(distinct(self._newest[1].run))
        return super().locate(start, stop, bands)

    def _freed(self, slots: Ints) -> None:
        self._forget(slots[self._used[slots] > 0])


def grouped_lanes(
    groups: Grouping, *, seed: int, epoch: int, lanes: int, bands: int
) -> GroupedLanes:
    """Lay out one epoch, as `paired_lanes` does: time and memory by the group."""
    laid, fraction = lay_out(groups.rows, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
    size = np.diff(laid.cut)
    spread = groups.run_rows * fraction >> 32
    first = np.minimum(size // 2 + spread, np.maximum(size - 1, 0))
    return GroupedLanes(**_fields(laid) | {"first": first}, groups=groups, lines={})


def _fields(order: PairedLanes) -> dict[str, Any]:
    return {each.name: getattr(order, each.name) for each in fields(order)}


# Stretches are worked out ahead of their use: one is looked into, one is ready, one waits, one is
# expected, one is handed out. A run is closed in the stretch after its last row at the latest.
_TURNS_KEPT = 8
TURNS = _TURNS_KEPT + 2


@dataclass(frozen=True, slots=True, eq=False)
class GroupRuns:
    """The runs of one group that have items. Arrays are int64 ``(runs,)``.

    Attributes:
        number: number of the group.
        live: live rows of each run.
        first_row: the live row of the dataset that each begins with.
        run_bytes: decoded bytes of each.
        counts: items of each, at least one.
        ahead: items of the whole dataset before each.
        elements: elements of each, where they are packed.
        slot: slot of each run that has one; -1 for others.
    """

    number: int
    live: Ints
    first_row: Ints
    run_bytes: Ints
    counts: Ints
    ahead: Ints
    elements: Ints | None = None
    slot: Ints = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slot", np.full(self.live.size, -1, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class SlotRooms:
    """Arrays of several datasets of which some places are of the slots of one.

    Fields are those of `RunSlots`; rows of this dataset count from `rows_before` on.
    """

    live: Ints
    first_row: Ints
    run_bytes: Ints
    rows_before: int


class RunSlots:
    """Slots, and what is known of the runs in them. One thread gives them, any thread looks.

    Attributes:
        live: live rows by slot, as in `GroupRuns`.
        first_row: first live row by slot.
        run_bytes: decoded bytes by slot.
        counts: items by slot.
        ahead: items of the whole dataset before those in a slot.
        elements: elements by slot, where they are packed.
        names: uint64, the group of each run in the high half, its place there in the low one.
    """

    def __init__(self, capacity: int, known: Callable[[int], GroupRuns | None]) -> None:
        """Prepare for `TURNS` times the runs of a turn; memory is touched when it is used.

        `known` gives the group of a number, if it is still open.
        """
        self.live = np.zeros(capacity, np.int64)
        self.first_row = np.zeros(capacity, np.int64)
        self.run_bytes = np.zeros(capacity, np.int64)
        self.counts = np.zeros(capacity, np.int64)
        self.ahead = np.zeros(capacity, np.int64)
        self.elements = np.zeros(capacity, np.int64)
        self.names = np.zeros(capacity, np.uint64)
        self.freed: Callable[[Ints], None] = lambda _slots: None  # called before others get them
        self._shown: list[SlotRooms] = []
        self._known = known
        self._turn = 0
        self._used = np.zeros(capacity, np.int64)  # the last turn
        self._recent: deque[list[Ints]] = deque([[]])  # of the last turns
        self._free = np.zeros(0, np.int64)
        self._fresh = 0

    def begin(self) -> None:
        """Another turn: slots that were used too long ago are free."""
        self._turn += 1
        self._recent.append([])
        if len(self._recent) > _TURNS_KEPT:
            gone = np.concatenate([np.zeros(0, np.int64), *self._recent.popleft()])
            self._give_back(distinct(gone[self._used[gone] <= self._turn - _TURNS_KEPT]))

    def of(self, group: GroupRuns, places: Ints) -> Ints:
        """The slots of the runs at these places of a group; used in this turn."""
        slot = group.slot[places]
        new = distinct(places[slot < 0])
        if new.size:
            group.slot[new] = fresh = self._take(new.size)
            self.live[fresh] = group.live[new]
            self.first_row[fresh] = group.first_row[new]
            self.run_bytes[fresh] = group.run_bytes[new]
            self.counts[fresh] = group.counts[new]
            self.ahead[fresh] = group.ahead[new]
            if group.elements is not None:
                self.elements[fresh] = group.elements[new]
            self.names[fresh] = (group.number << 32 | new).view(np.uint64)
            for each in self._shown:
                each.live[fresh] = group.live[new]
                each.first_row[fresh] = group.first_row[new] + each.rows_before
                each.run_bytes[fresh] = group.run_bytes[new]
            slot = group.slot[places]
        self.use(slot)
        return slot

    def use(self, slot: Ints) -> None:
        """These slots are used in this turn."""
        self._used[slot] = self._turn
        self._recent[-1].append(slot)

    def show(self, rooms: SlotRooms) -> None:
        """Tell there, too, what is known of the runs in slots from now on."""
        self._shown.append(rooms)

    def where(self, slot: int) -> tuple[int, int]:
        """The group of the run in a slot, and its place there."""
        name = self.names.item(slot)
        return name >> 32, name & 0xFFFFFFFF

    def _take(self, count: int) -> Ints:
        again = self._free[max(0, self._free.size - count) :]
        self._free = self._free[: self._free.size - again.size]
        fresh = np.arange(self._fresh, self._fresh + count - again.size)
        self._fresh += fresh.size
        if self._fresh > self.live.size:
            raise AssertionError("more runs are in use than were reckoned with")
        return np.concatenate((again, fresh))

    def _give_back(self, slots: Ints) -> None:
        self.freed(slots)
        names = self.names[slots]
        numbers = (names >> np.uint64(32)).astype(np.int64)
        places = (names & np.uint64(0xFFFFFFFF)).astype(np.int64)
        for group_number in distinct(numbers).tolist():
            if (group := self._known(group_number)) is not None:
                of_group = numbers == group_number
                mine = places[of_group]
                group.slot[mine[group.slot[mine] == slots[of_group]]] = -1
        self._free = np.concatenate((self._free, slots))
