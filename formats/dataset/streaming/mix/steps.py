"""Schedule of a mix for one rank: rows of several sources in each step.

What `order.schedule` is for one dataset this is for several: `Stretch` values of a few thousand
rows. The runs of all sources are numbered one source after the other, so that a loader need not
know that they are of several datasets. Every source goes through epochs of its own.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.streaming.mix.blend import (
    Parts,
    SourceBlend,
    parts_of,
    rank_cut,
    rank_turns,
)
from tensorrepo.formats.dataset.streaming.order.items import Items
from tensorrepo.formats.dataset.streaming.order.orders import Located, Order, stride_of
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import (
    OpenRuns,
    Share,
    StepRows,
    StepStretch,
    run_rows,
)

# Where in the piece each row stands, its run, its row there, and whether the run is busy.
_Rows = tuple[Ints, Ints, Ints, Bools]

_NEVER = np.iinfo(np.int64).max
_NO_RUNS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class MixSource:
    """One dataset of a mix.

    Attributes:
        rows: items of an epoch, the same in all of them.
        runs: number of its runs.
        first_run: number of its first run among those of all sources.
        seed: seed of its order.
        epoch: epoch that it begins with.
        items: what an epoch's order counts.
        order: the order of these items in an epoch.
        keep: its runs stay open, because all of them fit.
    """

    rows: int
    runs: int
    first_run: int
    seed: int
    epoch: int
    items: Callable[[int], Items]
    order: Callable[[int, Items], Order]
    keep: bool


class _Pass:
    """One epoch of one source, while steps have rows of it."""

    def __init__(self, source: MixSource, epoch: int, share: Share) -> None:
        self._items = items = source.items(source.epoch + epoch)
        self.order = source.order(source.epoch + epoch, items)
        self._first_run = source.first_run
        # The order numbers only runs that have items.
        self._number = np.full(source.runs, -1, dtype=np.int64)
        self._number[items.runs] = np.arange(items.runs.size)
        self._known = np.zeros(items.runs.size, dtype=np.bool_)
        key = epoch_key(source.seed, source.epoch + epoch, Purpose.ROWS)
        self._shuffled = run_rows(self.order, key, items.counts)
        self._until = np.full(items.runs.size, _NEVER if source.keep else 0, dtype=np.int64)
        if not source.keep:
            low = share.rank * self.order.bands // share.world
            high = -(-(share.rank + 1) * self.order.bands // share.world)
            runs, until = self.order.returning(range(low, high))
            self._until[runs] = until
        returning = np.flatnonzero(self._until) if not source.keep else _NO_RUNS
        self.returning = items.runs[returning] + source.first_run

    def rows(self, located: Located, reached: int) -> tuple[Ints, Ints, Bools]:
        """Run (of all sources) and live row of each, and whether its run is not done with.

        Args:
            located: where the rows lie.
            reached: position up to which the rows of all ranks were found.
        """
        run, item = located.run, located.place
        if self._shuffled is not None:
            fresh = np.unique(run[~self._known[run]])
            self._shuffled.open(fresh)
            self._known[fresh] = True
            item = self._shuffled.rows(run, item)
        row = self._items.rows(run, item)
        return self._items.runs[run] + self._first_run, row, self._until[run] >= reached

    def close(self, runs: Ints) -> None:
        """These runs, of all sources, are not needed for now."""
        if self._shuffled is None:
            return
        runs = runs - self._first_run
        number = self._number[runs[(runs >= 0) & (runs < self._number.size)]]
        mine = number[number >= 0]
        shuffled = mine[self._known[mine]]
        self._shuffled.close(shuffled)
        self._known[shuffled] = False


def mixed_stretches(
    sources: Sequence[MixSource],
    blend: SourceBlend,
    share: Share,
    *,
    seed: int,
    epoch: int,
    stretch_rows: int,
    first_rows: int,
) -> Iterator[StepStretch]:
    """All steps of `share` of one epoch of a mix, a stretch at a time.

    Args:
        sources: datasets, in the order of the blend's shares.
        blend: source of every position.
        share: what this rank reads, in positions of the mix.
        seed: seed of the mix.
        epoch: epoch of the mix; sources go on where the epochs before it left them.
        stretch_rows: about how many positions (of all ranks) a stretch has.
        first_rows: positions of the first stretch; the others grow.
    """
    walk = _Walk(sources, blend, share, seed, epoch)
    uses = OpenRuns(sum(source.runs for source in sources))
    pieces = walk.pieces(first_rows, stretch_rows)
    piece = next(pieces, None)
    while piece is not None:
        left, walk.left = walk.left, []
        following = next(pieces, None)
        coming = _NO_RUNS if following is None else following.run
        new = uses.opened(piece.run)
        assert piece.busy is not None, "known with the rows"
        done = uses.closed(piece.run, piece.busy, coming)
        stale = uses.stale(left, piece.run, coming)
        walk.close(np.concatenate((stale, piece.run[done])))
        yield piece.stretch(piece.row, new, done, stale)
        piece = following


class _Walk:
    """Goes through the steps of a mix and keeps the passes that they need."""

    def __init__(
        self, sources: Sequence[MixSource], blend: SourceBlend, share: Share, seed: int, epoch: int
    ) -> None:
        self._sources, self._blend, self._share = sources, blend, share
        self._seed, self._epoch = seed, epoch
        self._source_rows = np.array([source.rows for source in sources], dtype=np.int64)
        earlier = np.array(blend.epoch_rows, dtype=np.int64) * epoch
        self._before = earlier + blend.rows_before(seed, epoch, share.start)
        self._turns = rank_turns(share.world, stride_of(share.world))
        self._passes: dict[tuple[int, int], _Pass] = {}
        self.left: list[Ints] = []  # runs that were kept for passes that are over

    def pieces(self, rows: int, most_rows: int) -> Iterator[StepRows]:
        for first, start, ends in self._share.pieces(self._blend.rows, rows, most_rows):
            piece = self._piece(first, start, ends).of_turn(self._share)
            if piece.ends.size:
                yield piece

    def close(self, runs: Ints) -> None:
        """Forget the shuffled rows of these runs."""
        for each in self._passes.values():
            each.close(runs)

    def _piece(self, first_step: int, start: int, ends: Ints) -> StepRows:
        share, stop = self._share, int(ends[-1])
        source = self._blend.sources(self._seed, self._epoch, start, stop)
        step = np.arange(stop - start) // share.batch_size
        parts = parts_of(step, source, self._before, self._source_rows, share.world)
        own = rank_cut(parts, share.rank, self._turns)
        short_rows = (stop - start) % share.batch_size if share.last == "pad" else 0
        lent = bool(0 < short_rows < share.world) and _lend(parts, own, share.rank)
        places = self._places(source)
        by_pass: list[_Rows] = [
            self._rows_of_pass(parts, own, group, places) for group in _groups_of_passes(parts)
        ]
        at, run, row, busy = (np.concatenate(column) for column in zip(*by_pass, strict=True))
        by_place = np.argsort(at)
        at, run, row, busy = at[by_place], run[by_place], row[by_place], busy[by_place]
        self._before = self._before + np.bincount(source, minlength=len(self._sources))
        self._leave_passes()
        piece = StepRows(first_step, ends, 0, step[at], run, row, busy)
        return self._padded(piece, busy, lent=lent) if short_rows else piece

    def _places(self, source: Ints) -> list[Ints]:
        """Where the rows of each source are among those of a piece."""
        by_source = np.argsort(source, kind="stable")
        counts = np.bincount(source, minlength=len(self._sources))
        return np.split(by_source, np.cumsum(counts)[:-1])

    def _rows_of_pass(
        self, parts: Parts, own: tuple[Ints, Ints], group: Ints, places: list[Ints]
    ) -> _Rows:
        """Rows of this rank in the parts of one pass."""
        number, epoch = int(parts.source[group[0]]), int(parts.epoch[group[0]])
        source, epoch_pass = self._sources[number], self._pass(number, epoch)
        low, rows = int(parts.start[group[0]]), parts.rows[group]
        reached = low + int(rows.sum())
        located = epoch_pass.order.locate(low, reached)
        if self._share.world > 1:
            located = _own_rows(located, rows, own[0][group], own[1][group])
        # How many rows of the source came in this piece before each of these.
        nth = located.position + (epoch * source.rows - int(self._before[number]))
        return places[number][nth], *epoch_pass.rows(located, reached)

    def _pass(self, number: int, epoch: int) -> _Pass:
        epoch_pass = self._passes.get((number, epoch))
        if epoch_pass is None:
            epoch_pass = _Pass(self._sources[number], epoch, self._share)
            self._passes[number, epoch] = epoch_pass
        return epoch_pass

    def _leave_passes(self) -> None:
        """Forget those that are behind all steps to come."""
        epochs = self._before // self._source_rows
        for number, epoch in list(self._passes):
            if epoch < epochs[number]:
                left = self._passes.pop((number, epoch))
                self.left.append(left.returning)

    def _padded(self, piece: StepRows, busy: Bools, *, lent: bool) -> StepRows:
        """The piece with its last step filled up: each of its own rows again, in turn."""
        share = self._share
        last = piece.ends.size - 1
        own = np.flatnonzero(piece.step == last)
        full = (share.rank + 1) * share.batch_size // share.world
        full -= share.rank * share.batch_size // share.world
        again = own[np.arange(max(0, full - own.size)) % own.size]
        every = np.concatenate((np.arange(piece.step.size), again))
        return replace(
            piece,
            repeated=again.size + int(lent),
            step=piece.step[every],
            run=piece.run[every],
            row=piece.row[every],
            busy=busy[every],
        )


def _groups_of_passes(parts: Parts) -> list[Ints]:
    """The places of parts of the same pass, in the order of the steps."""
    by_pass = np.lexsort((parts.step, parts.epoch, parts.source))
    source, epoch = parts.source[by_pass], parts.epoch[by_pass]
    changes = np.flatnonzero((np.diff(source) != 0) | (np.diff(epoch) != 0)) + 1
    return np.split(by_pass, changes)


def _lend(parts: Parts, own: tuple[Ints, ...], rank: int) -> bool:
    """Give a rank that has no row of the last step one of another rank, to be repeated."""
    first, stop = own
    last = np.flatnonzero(parts.step == parts.step[-1])
    if (stop[last] > first[last]).any():
        return False
    at = last[rank % last.size]
    first[at] = rank % parts.rows[at]
    stop[at] = first[at] + 1
    return True


def _own_rows(located: Located, rows: Ints, first: Ints, stop: Ints) -> Located:
    """Of consecutive parts of so many `rows`, the sorted places from `first` to `stop` of each."""
    part = np.repeat(np.arange(rows.size), rows)
    by_band = np.lexsort((located.position, located.band, part))
    place = np.arange(part.size) - (np.cumsum(rows) - rows)[part]
    mine = (place >= first[part]) & (place < stop[part])
    return located.select(np.sort(by_band[mine]))
