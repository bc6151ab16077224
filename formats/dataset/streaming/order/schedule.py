"""Schedule of an epoch for one rank: rows of each step, and when runs open and close.

Pure: an order and a share go in, `StepStretch`es come out. One is a few thousand rows of
consecutive steps as flat arrays, so that no step costs Python per row, and it says in which order
runs are needed for the first time and after which step they are not needed any more.

Source:
    docs/spec/stream-order.md, section "Steps".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, distinct
from tensorrepo.formats.dataset.streaming.order.kernel import BEST, OrderKernel
from tensorrepo.formats.dataset.streaming.order.orders import Located, Order, PairedLanes, joined
from tensorrepo.formats.dataset.streaming.order.random_numbers import low_bits_of, numbers
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

_NO_RUNS = np.zeros(0, dtype=np.int64)


class OpenRuns:
    """Opens and closes runs, numbered from 0, as pieces come by."""

    def __init__(self, runs: int, kernel: OrderKernel = BEST) -> None:
        self._kernel = kernel
        self._open = np.zeros(runs, dtype=np.bool_)
        self._marks = np.zeros(runs, dtype=np.uint8)

    def opened(self, run: Ints) -> Ints:
        """Places in `run` where a run that is not open comes first. They are open from now on."""
        return self._kernel.opened(run, self._open)

    def closed(self, run: Ints, busy: Bools, following: Ints) -> Ints:
        """Places in `run` where a run comes last that is not needed soon. It is closed now.

        Runs that are `busy` come again, however long that takes: they stay open, as do `following`.
        """
        return self._kernel.closed(run, busy, following, self._open, self._marks)

    def stale(self, kept: Sequence[Ints], *used: Ints) -> Ints:
        """Those of `kept` that are open though none of `used` needs them: closed now.

        They were kept for rows that then went to another rank.
        """
        if not kept:
            return _NO_RUNS
        runs = distinct(np.concatenate(kept))
        runs = runs[self._open[runs] & ~np.isin(runs, np.concatenate(used))]
        self._open[runs] = False
        return runs


Last = Literal["short", "drop", "pad"]

STRETCH_ROWS = 1 << 15
MOST_STRETCH_ROWS = 1 << 18  # of what lies in a store


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank reads: its part of every step from position `start` to the epoch's end.

    A last step of fewer rows is handed out "short", left out ("drop"), or filled up by repeating
    rows of it ("pad"). Of the steps only each `turns`-th is read, beginning with number `turn`:
    that is how several workers of one rank take turns.
    """

    batch_size: int
    rank: int = 0
    world: int = 1
    start: int = 0
    last: Last = "short"
    turn: int = 0
    turns: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.start < 0:
            raise InvalidInputError(
                f"batch_size is at least 1 and the start at least 0, "
                f"got {self.batch_size} and {self.start}"
            )
        if not 0 <= self.rank < self.world:
            raise InvalidInputError(f"rank is in [0, world), got {self.rank} of {self.world}")
        if not 0 <= self.turn < self.turns:
            raise InvalidInputError(f"turn is in [0, turns), got {self.turn} of {self.turns}")

    def steps(self, rows: int) -> int:
        """Steps that are left in an epoch of `rows`, of every turn."""
        left = max(0, rows - self.start)
        return left // self.batch_size if self.last == "drop" else -(-left // self.batch_size)

    def bands(self, bands: int) -> range:
        """The bands that this rank may have rows of."""
        if self.batch_size % bands:
            return range(bands)
        return range(self.rank * bands // self.world, -(-(self.rank + 1) * bands // self.world))

    def bounds(self, step: int, rows: int) -> tuple[int, int]:
        """Positions ``[start, stop)`` of a step."""
        start = self.start + step * self.batch_size
        return start, min(start + self.batch_size, rows)

    def pieces(self, rows: int, at_once: int, most_at_once: int) -> Iterator[tuple[int, int, Ints]]:
        """All steps of an epoch of `rows`, of every turn, some at a time.

        Begins with steps of about `at_once` positions, which doubles up to `most_at_once`. Gives
        the number of the first step, its first position, and the position after each step.
        """
        steps, first = self.steps(rows), 0
        while first < steps:
            count = min(-(-at_once // self.batch_size), steps - first)
            start = self.bounds(first, rows)[0]
            ends = np.minimum(start + self.batch_size * np.arange(1, count + 1), rows)
            yield first, start, ends
            first, at_once = first + count, min(2 * at_once, most_at_once)


@dataclass(frozen=True, slots=True, eq=False)
class StepStretch:
    """Consecutive steps of one rank, ready to be read.

    Attributes:
        first_step: number of its first step.
        ends: int64 ``(steps,)``, the position at which each step ends.
        bounds: int64 ``(steps + 1,)``: step i has the rows ``[bounds[i], bounds[i + 1])`` of `run`
            and `row`.
        run: int64 ``(rows,)``, the run of each row.
        row: int64 ``(rows,)``, the live row inside it.
        opened: runs needed here and not before, in the order of need.
        opened_at: the step of the stretch that needs each of them first, counted from 0.
        closed: runs that are not needed any more, in the order of release.
        closed_at: the step of the stretch that needs each of them last.
        repeated: number of last rows that repeat others of their step, to fill it up.
        echo: int64 ``(rows,)``, which time each row is given, from 0; None: rows come once.
    """

    first_step: int
    ends: Ints
    bounds: Ints
    run: Ints
    row: Ints
    opened: Ints
    opened_at: Ints
    closed: Ints
    closed_at: Ints
    repeated: int = 0
    echo: Ints | None = None

    @property
    def steps(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Rows of consecutive steps, before it is known which of their runs the next ones need.

    Fields are those of `StepStretch`, and per row of the steps:

    Attributes:
        step: step of each row, counted from 0.
        row: live row inside its run, or its place in the run's permutation.
        busy: whether its run comes again, however long that takes; None: not known yet.
    """

    first_step: int
    ends: Ints
    repeated: int
    step: Ints
    run: Ints
    row: Ints
    busy: Bools | None = None

    def of_turn(self, share: Share) -> StepRows:
        """The steps whose turn it is."""
        if share.turns == 1:
            return self
        number = self.first_step + np.arange(self.ends.size)
        mine = number % share.turns == share.turn
        rows = mine[self.step]
        return StepRows(
            first_step=int(number[mine][0]) if mine.any() else self.first_step,
            ends=self.ends[mine],
            repeated=self.repeated if mine[-1] else 0,
            step=(np.cumsum(mine) - 1)[self.step[rows]],
            run=self.run[rows],
            row=self.row[rows],
            busy=None if self.busy is None else self.busy[rows],
        )

    def stretch(self, row: Ints, new: Ints, done: Ints, stale: Ints = _NO_RUNS) -> StepStretch:
        """The stretch of these steps, given the live row of each row inside its run.

        Runs open with the rows at the places `new`, close with those at `done`, and `stale` ones
        close before the first step.
        """
        return StepStretch(
            first_step=self.first_step,
            ends=self.ends,
            bounds=np.searchsorted(self.step, np.arange(self.ends.size + 1)),
            run=self.run,
            row=row,
            opened=self.run[new],
            opened_at=self.step[new],
            closed=np.concatenate((stale, self.run[done])),
            closed_at=np.concatenate((np.zeros_like(stale), self.step[done])),
            repeated=self.repeated,
        )


def stretches(
    order: Order,
    live: Ints,
    share: Share,
    *,
    key: int,
    keep: bool,
    stretch_rows: int = STRETCH_ROWS,
    first_rows: int | None = None,
) -> Iterator[StepStretch]:
    """All steps of `share`, a stretch at a time.

    Args:
        order: order of the epoch.
        live: number of live rows of each run.
        share: steps that this rank reads.
        key: the epoch's key for rows, by which runs are permuted where the order says so.
        keep: runs stay open to the end, because all of them fit.
        stretch_rows: about how many positions (of all ranks) a stretch has. A run that is not
            needed for a whole stretch is closed, and read again later: two blocks are enough.
        first_rows: positions of the first stretch, so that the first batch comes soon; the
            others grow.
    """
    shuffled = run_rows(order, key, live)
    uses = OpenRuns(live.size)
    # For each run the position up to which it comes again after a while; 0 where it does not.
    until = np.zeros(live.size, dtype=np.int64)
    returning, positions = order.returning(share.bands(order.bands))
    until[returning] = positions
    pieces = _pieces(order, share, first_rows or stretch_rows, stretch_rows)
    for piece, following in pairwise(chain(pieces, [None])):
        assert piece is not None, "only the last one has none behind it"
        new, row = uses.opened(piece.run), piece.row
        if shuffled is not None:
            shuffled.open(piece.run[new])
            row = shuffled.rows(piece.run, piece.row)
        coming = _NO_RUNS if following is None else following.run
        busy = until[piece.run] >= piece.ends[-1]
        done = _NO_RUNS if keep else uses.closed(piece.run, busy, coming)
        if shuffled is not None:
            shuffled.close(piece.run[done])
        yield piece.stretch(row, new, done)


def _pieces(order: Order, share: Share, rows: int, most_rows: int) -> Iterator[StepRows]:
    for first, start, ends in share.pieces(order.rows, rows, most_rows):
        if (share.turn - first) % share.turns < ends.size:  # a step of it is this worker's
            rows_there, repeated = _rows_of_steps(order, share, start, int(ends[-1]))
            step = (rows_there.position - start) // share.batch_size
            piece = StepRows(first, ends, repeated, step, rows_there.run, rows_there.place)
            yield piece.of_turn(share)


def _rows_of_steps(order: Order, share: Share, start: int, stop: int) -> tuple[Located, int]:
    """The rows of one rank in some steps, and how many of the last ones are repeated."""
    short_rows = (stop - start) % share.batch_size
    if share.last != "pad" or not short_rows:
        return shared_rows(order, share, start, stop), 0
    whole = stop - short_rows
    padded, repeated = _padded_rows(order, share, whole, stop)
    if whole == start:
        return padded, repeated
    return joined([shared_rows(order, share, start, whole), padded]), repeated


def _padded_rows(order: Order, share: Share, start: int, stop: int) -> tuple[Located, int]:
    """The rows of one rank in a short step, those that fill it up last.

    The sorted places of the step are stretched to its full size, so a rank repeats rows of its
    own, or has none and repeats its neighbours'.
    """
    located = order.locate(start, stop)
    rows, full = stop - start, share.batch_size
    by_band = np.argsort(located.band, kind="stable")
    place = np.arange(share.rank * full // share.world, (share.rank + 1) * full // share.world)
    mine = by_band[place * rows // full]
    again = (place > 0) & (place * rows // full == (place - 1) * rows // full)
    return located.select(mine[np.lexsort((mine, again))]), int(again.sum())


def shared_rows(order: Order, share: Share, start: int, stop: int) -> Located:
    """The rows of one rank at positions ``[start, stop)``, where `start` begins a step."""
    rank, world, bands = share.rank, share.world, order.bands
    if world == 1:
        return order.locate(start, stop)
    whole_bands = bands % world == 0 and share.batch_size % bands == 0 and start % bands == 0
    if whole_bands and stop <= order.whole_rows:
        # Every step has every band equally often, so the places of a rank are bands of its own.
        mine = range(rank * bands // world, (rank + 1) * bands // world)
        return order.locate(start, stop, mine)
    located = order.locate(start, stop)
    step = (located.position - start) // share.batch_size
    by_band = np.argsort(step * bands + located.band, kind="stable")
    step_rows = np.bincount(step)[step]  # steps are contiguous, so sorting keeps `step` as it is
    place = np.arange(step.size) - np.searchsorted(step, step)
    mine_too = (place >= rank * step_rows // world) & (place < (rank + 1) * step_rows // world)
    return located.select(np.sort(by_band[mine_too]))


def run_rows(order: Order, key: int, live: Ints) -> RunRows | None:
    """The shuffled rows of runs that have `live` rows each; None where the order is of rows."""
    if not order.permuted:
        return None
    assert isinstance(order, PairedLanes), "no other order leaves rows to their runs"
    return RunRows(key, live, order.row_names)


class RunRows:
    """The shuffled rows of the open runs, looked up for many places at once.

    All permutations lie in one array, in slots whose size is a power of two.
    """

    def __init__(self, key: int, live: Ints, names: Callable[[Ints], NDArray[np.uint64]]) -> None:
        """Prepare for runs of `live` rows; `names` gives the numbers that shuffle them."""
        self._key = key
        self._live = live
        self._names = names
        self._slot = np.zeros(live.size, dtype=np.int64)
        self._rows = np.zeros(0, dtype=np.uint32)
        self._used = 0
        self._free: dict[int, list[int]] = {}

    def open(self, runs: Ints) -> None:
        """Work out the permutations of `runs`."""
        for slot_rows, alike in self._by_slot(runs):
            self._slot[alike] = self._slots(alike.size, slot_rows)
        keys = numbers(self._key, self._names(runs))
        BEST.shuffle(keys, self._live[runs], self._slot[runs], self._rows)

    def close(self, runs: Ints) -> None:
        """Forget the permutations of `runs`."""
        for slot_rows, alike in self._by_slot(runs):
            self._free.setdefault(slot_rows, []).extend(self._slot[alike].tolist())

    def rows(self, run: Ints, place: Ints) -> Ints:
        """The row at each `place` of each open `run`."""
        return BEST.look_up(self._rows, self._slot, run, place)

    def _by_slot(self, runs: Ints) -> Iterator[tuple[int, Ints]]:
        """`runs` by the rows of their slots."""
        slot_rows = np.int64(1) << low_bits_of(self._live[runs])
        for rows in distinct(slot_rows).tolist():
            yield rows, runs[slot_rows == rows]

    def _slots(self, count: int, slot_rows: int) -> Ints:
        free = self._free.setdefault(slot_rows, [])
        again = np.array(free[len(free) - min(count, len(free)) :], dtype=np.int64)
        del free[len(free) - again.size :]
        fresh = self._used + slot_rows * np.arange(count - again.size)
        self._used += slot_rows * fresh.size
        if self._used > self._rows.size:
            grown = np.zeros(max(self._used, 2 * self._rows.size), dtype=np.uint32)
            grown[: self._rows.size] = self._rows
            self._rows = grown
        return np.concatenate((again, fresh))
