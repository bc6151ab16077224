"""How do lanes walk over more runs than anybody wants to sort?

In two levels. Runs that were stored next to each other form a group of about a thousand. Groups are
shuffled into a line, and inside each of them its runs, by a key of their own. Everything else is as
with paired lanes. Where a lane is, only the groups around it have to be known: laying out an epoch
costs time and memory by the group, and about one group a lane is looked into at a time.

Source:
    docs/spec/stream-order.md, section "Groups".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.keyed import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.formats.dataset.streaming.ordering.order import PairedLanes, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.streaming.ordering.order import Located
    from tensorrepo.formats.dataset.streaming.ordering.slots import GroupRuns, Slots

    Line = tuple[NDArray[np.int64], NDArray[np.int64]]


class GroupStore(Protocol):
    """Groups, read when they are asked for."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Live rows of each group, at least one."""
        ...

    def prepare(self, groups: list[int]) -> None:
        """Read what is not there of these, side by side."""
        ...

    def runs(self, group: int) -> GroupRuns:
        """The runs of a group."""
        ...


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

    rows: NDArray[np.int64]
    first_run: NDArray[np.int64]
    counts: Callable[[int], NDArray[np.int64]]
    run_rows: int


def grouping(counts: NDArray[np.int64], group: NDArray[np.int64], run_rows: int) -> Grouping:
    """The groups of runs with so many items each.

    Args:
        counts: items of each run.
        group: a number per run, ascending; runs of one number are a group.
        run_rows: see `Grouping`.
    """
    first = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1, [group.size]))
    rows = np.add.reduceat(counts, first[:-1])
    return Grouping(rows, first, lambda at: counts[first[at] : first[at + 1]], run_rows)


@dataclass(frozen=True, slots=True)
class GroupedLanes(PairedLanes):
    """Paired lanes over groups of runs: `live`, `pi` and `start` are of groups, not of runs."""

    groups: Grouping
    lines: dict[int, Line]  # of groups that were looked into, the least recently used first

    def row_names(self, runs: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The group of each run in the high half, its place there in the low one."""
        group = np.searchsorted(self.groups.first_run, runs, side="right") - 1
        return (group << 32 | runs - self.groups.first_run[group]).view(np.uint64)

    def row_count(self, run: int) -> int:
        """Items of one run."""
        group = int(np.searchsorted(self.groups.first_run, run, side="right")) - 1
        return int(self.groups.counts(group)[run - self.groups.first_run[group]])

    def returning(self, bands: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # noqa: ARG002
        """Nothing: to know of runs that two rings share, every ring would be looked into."""
        return _NO_RUNS, _NO_RUNS

    def _runs_at(
        self, piece: NDArray[np.int64], place: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        by_piece = np.argsort(piece, kind="stable")
        bounds = np.flatnonzero(np.diff(piece[by_piece])) + 1
        run, found = np.empty_like(piece), np.empty_like(place)
        self._prepare(self.pi[np.unique(piece)])
        for mine in np.split(by_piece, bounds) if piece.size else ():
            group = int(self.pi[piece[mine[0]]])
            order, start = self._line(group)
            inside = place[mine]
            index = np.searchsorted(start, inside, side="right") - 1
            run[mine] = self._numbers(group, order[index])
            found[mine] = inside - start[index]
        return run, found

    def _prepare(self, groups: NDArray[np.int64]) -> None:
        """These are looked into next."""

    def _numbers(self, group: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the runs at these places of a group."""
        numbers: NDArray[np.int64] = self.groups.first_run[group] + places
        return numbers

    def _line(self, group: int) -> Line:
        """The runs of a group in the order of its line, and where each begins there."""
        found = self.lines.pop(group, None)
        if found is None:
            counts = self.groups.counts(group)
            key = number(epoch_key(self.seed, self.epoch, Purpose.GROUPS), group)
            order = permutation(key, counts.size)
            found = order, np.cumsum(counts[order]) - counts[order]
            while len(self.lines) > 2 * self.lanes:
                del self.lines[next(iter(self.lines))]
        self.lines[group] = found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SlottedLanes(GroupedLanes):
    """Lanes over groups that are read when lanes come to them: runs have the numbers of slots."""

    store: GroupStore
    slots: Slots

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The rows at these positions; what was located long ago is not valid any more."""
        self.slots.begin()
        return GroupedLanes.locate(self, start, stop, bands)

    def row_names(self, runs: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self.slots.names[runs]

    def row_count(self, run: int) -> int:
        return self.slots.live.item(run)

    def _prepare(self, groups: NDArray[np.int64]) -> None:
        self.store.prepare(groups.tolist())

    def _numbers(self, group: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.slots.of(self.store.runs(group), places)


def slotted_lanes(
    store: GroupStore, slots: Slots, run_rows: int, *, seed: int, epoch: int, lanes: int, bands: int
) -> SlottedLanes:
    """Lay out one epoch over groups that nobody has looked into; as `grouped_lanes` does."""
    unknown = Grouping(store.rows, _NO_RUNS, lambda group: store.runs(group).live, run_rows)
    found = grouped_lanes(unknown, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
    laid = {each.name: getattr(found, each.name) for each in fields(found)}
    return SlottedLanes(**laid, store=store, slots=slots)


def grouped_lanes(
    groups: Grouping, *, seed: int, epoch: int, lanes: int, bands: int
) -> GroupedLanes:
    """Lay out one epoch: time and memory by the group.

    Args:
        groups: of the runs.
        seed: of the whole training.
        epoch: which pass over the data.
        lanes: K, even.
        bands: C, a divisor of K.

    Raises:
        ValueError: lanes are odd, or bands do not divide them.
    """
    laid = lay_out(groups.rows, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
    size = np.diff(laid.cut)
    spread = groups.run_rows * laid.fraction >> 32
    first = np.minimum(size // 2 + spread, np.maximum(size - 1, 0))
    return GroupedLanes(
        seed,
        epoch,
        lanes,
        bands,
        groups.rows,
        laid.pi,
        laid.start,
        laid.cut,
        first,
        laid.length,
        groups,
        {},
    )
