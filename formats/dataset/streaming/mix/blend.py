"""Blend of a mix: how often each source comes, which source each row is of, and its steps.

A mix is cut into cycles of some thousand slots. How many slots of a cycle each source has follows
from its share alone, and which ones from a keyed permutation. So any place of a mix is reached
directly: the source there, and how many rows of every source came before.

What `order.schedule` is for one dataset `mixed_stretches` is for several: `StepStretch` values of a
few thousand rows for one rank. The runs of all sources are numbered one source after the other, so
that a loader need not know that they are of several datasets. Every source goes through epochs of
its own.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from tensorrepo.formats.common.arguments import whole
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.streaming.checks import numbers, one_of, whole_numbers
from tensorrepo.formats.dataset.streaming.options import check_record, option
from tensorrepo.formats.dataset.streaming.order.grouped import SlottedLanes
from tensorrepo.formats.dataset.streaming.order.items import Items
from tensorrepo.formats.dataset.streaming.order.orders import Located, Order, stride_of
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.formats.dataset.streaming.order.schedule import (
    OpenRuns,
    Share,
    StepRows,
    StepStretch,
    run_rows,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

Batching = Literal["random", "stratified", "per_source"]

CYCLE_SLOTS = 4096
_MOST_SHARES = 1 << 62


@dataclass(frozen=True, slots=True)
class SourceBlend:
    """How often each source comes in a mix; chosen once and kept in the state.

    Attributes:
        shares: one whole number per source, at least 1: what it gets of every `sum(shares)` slots.
        cycle_slots: slots that are shuffled together.
        slot_rows: rows of a slot, which are all of one source.
        rows: length of an epoch: whole slots, and `rest`.
        rest: rows of each source after all slots, less than a slot each; () for none.
    """

    shares: tuple[int, ...]
    cycle_slots: int
    slot_rows: int
    rows: int
    rest: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.cycle_slots, self.slot_rows) < 1 or self.rows < 0:
            raise InvalidInputError(f"a mix of no rows a cycle or a slot: {self}")
        rest = self.rest or (0,) * len(self.shares)
        if len(rest) != len(self.shares) or not all(0 <= each < self.slot_rows for each in rest):
            raise InvalidInputError(f"the rest of each source is less than a slot: {self}")
        come = [max(both) for both in zip(self.shares, rest, strict=True)]
        if not come or min(come) < 1 or min(self.shares) < 0 or sum(self.shares) > _MOST_SHARES:
            raise InvalidInputError(f"shares of a mix are at least 1 each, got {self.shares}")
        slots, left = divmod(self.rows - sum(rest), self.slot_rows)
        if left or slots < 0 or (slots and not sum(self.shares)):
            raise InvalidInputError(
                f"{self.rows} rows of a mix are not whole slots of {self.slot_rows} rows and a "
                f"rest of {sum(rest)}"
            )

    @property
    def slots(self) -> int:
        """Slots of an epoch."""
        return (self.rows - sum(self.rest)) // self.slot_rows

    def taken(self, slots: int) -> list[int]:
        """How many of the first `slots` each source has; no source is ever far from its share."""
        counts = []
        left, weight = slots, sum(self.shares)
        for share in self.shares:
            mine = left * share // weight if share else 0
            counts.append(mine)
            left, weight = left - mine, weight - share
        return counts

    @property
    def epoch_rows(self) -> list[int]:
        """Rows of each source in an epoch."""
        rest = self.rest or (0,) * len(self.shares)
        taken = self.taken(self.slots)
        return [slots * self.slot_rows + left for slots, left in zip(taken, rest, strict=True)]

    def sources(self, seed: int, epoch: int, start: int, stop: int) -> Ints:
        """The source of every position in ``[start, stop)``, which is not beyond the epoch."""
        if start >= stop:
            return np.zeros(0, dtype=np.int64)
        begins = self.slots * self.slot_rows  # of the rest
        if stop > begins:
            rest = np.repeat(np.arange(len(self.rest)), self.rest)
            of_rest = rest[max(0, start - begins) : stop - begins]
            return np.concatenate((self.sources(seed, epoch, start, begins), of_rest))
        first, last = start // self.slot_rows, (stop - 1) // self.slot_rows
        cycles = range(first // self.cycle_slots, last // self.cycle_slots + 1)
        slots = np.concatenate([_cycle(self, seed, epoch, cycle) for cycle in cycles])
        before = cycles.start * self.cycle_slots * self.slot_rows
        return slots[(np.arange(start, stop) - before) // self.slot_rows]

    def rows_before(self, seed: int, epoch: int, position: int) -> Ints:
        """Rows of each source at the positions before `position` of the epoch."""
        cycle = min(position // self.slot_rows, self.slots) // self.cycle_slots
        begins = cycle * self.cycle_slots
        taken = np.array(self.taken(begins), dtype=np.int64) * self.slot_rows
        inside = self.sources(seed, epoch, begins * self.slot_rows, min(position, self.rows))
        return taken + np.bincount(inside, minlength=len(self.shares))


@lru_cache(maxsize=64)
def _cycle(blend: SourceBlend, seed: int, epoch: int, cycle: int) -> Ints:
    """The source of every slot of a cycle; the last cycle of an epoch may have fewer."""
    start = cycle * blend.cycle_slots
    stop = min(start + blend.cycle_slots, blend.slots)
    counts = np.subtract(blend.taken(stop), blend.taken(start))
    in_turn = np.repeat(np.arange(len(blend.shares)), counts)
    key = number(epoch_key(seed, epoch, Purpose.MIX), cycle)
    return in_turn[permutation(key, stop - start)]


def _each(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: check(f"{name} of a mix", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWish:
    """What a caller asks of a mix; None where nothing is asked. Kept in the state.

    Without any of the numbers an epoch has every row of every source once.
    """

    batching: Batching = option(
        "random",
        '"random" shuffles the sources of 4,096 rows at a time; "stratified" gives every step as '
        'much of each source; "per_source" makes steps of one source, and the last ones of what '
        "is left of all of them, but for `weights` and `rows`, with which epochs are rounded up",
        one_of(Batching),
    )
    weights: tuple[float, ...] | None = option(
        None,
        "how often each source comes. An epoch has `rows`, or as many as all sources together",
        _each(numbers),
    )
    repeat: tuple[float, ...] | None = option(
        None, "how often an epoch goes through each source; 0.5 is half of it", _each(numbers)
    )
    choose: tuple[int, ...] | None = option(
        None, "rows of each source in an epoch", _each(whole_numbers)
    )
    rows: int | None = option(
        None,
        "rows of an epoch, with `weights` or alone: then each source comes as often as it is large",
        _each(partial(whole, least=1)),
    )
    steps: int | None = option(
        None,
        "length of an epoch in whole batches, instead of `rows`",
        _each(partial(whole, least=1)),
    )

    def __post_init__(self) -> None:
        check_record(self)
        if self.rows is not None and self.steps is not None:
            raise InvalidInputError("rows and steps of a mix say different things: give one")
        asked = [
            name for name in ("weights", "repeat", "choose") if getattr(self, name) is not None
        ]
        length = ["rows"] * (self.rows is not None or self.steps is not None)
        if len(asked) > 1 or (length and asked in (["repeat"], ["choose"])):
            named = " and ".join([*asked, *length])
            raise InvalidInputError(f"{named} of a mix say different things: give one")

    def __str__(self) -> str:
        options = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name}={_text(value)}" for name, value in options if value is not None)


def _text(value: str | int | tuple[float, ...]) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    return str([int(each) if each == int(each) else each for each in value])


def blend_of(source_rows: Sequence[int], batch_size: int, wish: MixWish) -> SourceBlend:
    """The blend that a caller asks for, in steps of `batch_size` rows of all ranks together.

    Raises:
        InvalidInputError: a source would never come, or is not spoken of.
    """
    for name in ("weights", "repeat", "choose"):
        asked = getattr(wish, name)
        if asked is not None and len(asked) != len(source_rows):
            raise InvalidInputError(
                f"{name} has {len(asked)} numbers for {len(source_rows)} sources"
            )
    if not source_rows or min(source_rows) < 1:
        raise InvalidInputError(f"every source of a mix has rows, these have {list(source_rows)}")
    rows = wish.rows if wish.steps is None else wish.steps * batch_size
    slot_rows = batch_size if wish.batching == "per_source" else 1
    cycle_slots = batch_size if wish.batching == "stratified" else CYCLE_SLOTS
    if wish.weights is None and rows is None:
        counts = _counts(source_rows, wish)
        shares = tuple(count // slot_rows for count in counts)
        rest = tuple(count % slot_rows for count in counts)
        return SourceBlend(shares, cycle_slots, slot_rows, sum(counts), rest if any(rest) else ())
    shares = rounded(wish.weights or source_rows, cycle_slots)
    whole_slots = -(-(rows or sum(source_rows)) // slot_rows)
    return SourceBlend(shares, cycle_slots, slot_rows, whole_slots * slot_rows)


def _counts(source_rows: Sequence[int], wish: MixWish) -> Sequence[int]:
    if wish.choose is not None:
        return wish.choose
    if wish.repeat is None:
        return source_rows
    return [max(1, round(times * n)) for times, n in zip(wish.repeat, source_rows, strict=True)]


def rounded(weights: Sequence[float], total: int) -> tuple[int, ...]:
    """Whole numbers of sum `total` in the proportion of `weights`, by largest remainder.

    Raises:
        InvalidInputError: a weight is so small that nothing is left of it.
    """
    sum_of_all = sum(weights)
    exact = [weight * total / sum_of_all for weight in weights]
    whole = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: (whole[at] - exact[at], at))
    for at in by_remainder[: total - sum(whole)]:
        whole[at] += 1
    if 0 in whole:
        at = whole.index(0)
        raise InvalidInputError(
            f"source {at} has the weight {weights[at]} of {sum_of_all}: that is less than one row "
            f"in {total}. Raise it, use repeat= or choose=, or leave the source out."
        )
    return tuple(whole)


# ------------------------------------------------------------------------------ steps


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What consecutive steps of a mix hold: arrays of one length, a part each.

    A part is what a step has of one epoch of one source: its positions ``[start, start + rows)``
    of that epoch. Parts are sorted by step, source and epoch. `turn` says which rank is first to
    get a row more than others, in the order of `rank_turns`.
    """

    step: Ints
    source: Ints
    epoch: Ints
    start: Ints
    rows: Ints
    turn: Ints


def parts_of(step: Ints, source: Ints, before: Ints, source_rows: Ints, world: int) -> Parts:
    """The parts of some steps, by the step, ascending from 0, and the source of each row.

    `before` are the rows of each source before these steps, earlier epochs counted too;
    `source_rows` those of an epoch of each. Every step is shared by `world` ranks.
    """
    sources, steps = len(source_rows), int(step[-1]) + 1
    counts = np.bincount(step * sources + source, minlength=steps * sources)
    counts = counts.reshape(steps, sources)
    begins = before + np.cumsum(counts, axis=0) - counts
    at_step, at_source = np.nonzero(counts)
    low, count = begins[at_step, at_source], counts[at_step, at_source]
    length = source_rows[at_source]
    epochs = (low + count - 1) // length - low // length + 1
    which = np.repeat(np.arange(epochs.size), epochs)
    nth = np.arange(which.size) - (np.cumsum(epochs) - epochs)[which]
    epoch = (low // length)[which] + nth
    start = np.maximum(low[which] - epoch * length[which], 0)
    stop = np.minimum((low + count)[which] - epoch * length[which], length[which])
    part_step, rows = at_step[which], stop - start
    left = rows % world
    dealt = np.cumsum(left) - left
    turn = (dealt - dealt[np.searchsorted(part_step, part_step)]) % world
    return Parts(part_step, at_source[which], epoch, start, rows, turn)


def rank_turns(world: int, stride: int) -> Ints:
    """When each rank's turn is to get a row more: neighbours far apart."""
    turns = np.empty(world, dtype=np.int64)
    turns[np.arange(world) * stride % world] = np.arange(world)
    return turns


def rank_cut(parts: Parts, rank: int, turns: Ints) -> tuple[Ints, Ints]:
    """Which sorted places of each part go to `rank`: first, and one after the last."""
    world = turns.size
    each, left = parts.rows // world, parts.rows % world
    gets_more = (turns[:, None] - parts.turn[None, :]) % world < left[None, :]
    first = rank * each + gets_more[:rank].sum(axis=0)
    return first, first + each + gets_more[rank]


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
        spaces: epochs one after the other whose runs have other numbers: the first ones `runs`
            from `first_run` on, the next ones those behind them, then the first ones again.
        seed: seed of its order.
        epoch: epoch that it begins with.
        items: items of an epoch, which its order counts.
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
    spaces: int = 1


class _Pass:
    """One epoch of one source, while steps have rows of it."""

    def __init__(self, source: MixSource, epoch: int, share: Share) -> None:
        self._items = items = source.items(source.epoch + epoch)
        self.order = source.order(source.epoch + epoch, items)
        self._first_run = source.first_run + epoch % source.spaces * source.runs
        # The order numbers only runs that have items.
        self._number = np.full(source.runs, -1, dtype=np.int64)
        self._number[items.runs] = np.arange(items.runs.size)
        self._known = np.zeros(items.runs.size, dtype=np.bool_)
        key = epoch_key(source.seed, source.epoch + epoch, Purpose.ROWS)
        self._shuffled = run_rows(self.order, key, items.counts)
        if isinstance(self.order, SlottedLanes):
            self.order.slots.freed = self._forget
        self._until = np.full(items.runs.size, _NEVER if source.keep else 0, dtype=np.int64)
        if not source.keep:
            low = share.rank * self.order.bands // share.world
            high = -(-(share.rank + 1) * self.order.bands // share.world)
            runs, until = self.order.returning(range(low, high))
            self._until[runs] = until
        returning = np.flatnonzero(self._until) if not source.keep else _NO_RUNS
        self.returning = items.runs[returning] + self._first_run

    def rows(self, located: Located, reached: int) -> tuple[Ints, Ints, Bools]:
        """Run (of all sources) and live row of each, and whether its run is not done with.

        `reached` is the position up to which the rows of all ranks were found.
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
        runs = runs - self._first_run
        number = self._number[runs[(runs >= 0) & (runs < self._number.size)]]
        self._forget(number[number >= 0])

    def _forget(self, runs: Ints) -> None:
        """These runs, as the order numbers them, are not needed for now."""
        if self._shuffled is None:
            return
        shuffled = runs[self._known[runs]]
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
        share: part of the steps that this rank reads, in positions of the mix.
        seed: seed of the mix.
        epoch: epoch of the mix; sources go on where the epochs before it left them.
        stretch_rows: about how many positions (of all ranks) a stretch has.
        first_rows: positions of the first stretch; the others grow.
    """
    walk = _Walk(sources, blend, share, seed, epoch)
    uses = OpenRuns(sum(source.runs * source.spaces for source in sources))
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
        counts = np.bincount(source, minlength=len(self._sources))
        by_source = np.argsort(source, kind="stable")
        places = np.split(by_source, np.cumsum(counts)[:-1])  # of each source in the piece
        by_pass: list[_Rows] = [
            self._rows_of_pass(parts, own, group, places) for group in _groups_of_passes(parts)
        ]
        at, run, row, busy = (np.concatenate(column) for column in zip(*by_pass, strict=True))
        by_place = np.argsort(at)
        at, run, row, busy = at[by_place], run[by_place], row[by_place], busy[by_place]
        self._before = self._before + counts
        # Passes that are behind all steps to come are forgotten.
        epochs = self._before // self._source_rows
        for key in [key for key in self._passes if key[1] < epochs[key[0]]]:
            self.left.append(self._passes.pop(key).returning)
        piece = StepRows(first_step, ends, 0, step[at], run, row, busy)
        return self._padded(piece, busy, lent=lent) if short_rows else piece

    def _rows_of_pass(
        self, parts: Parts, own: tuple[Ints, Ints], group: Ints, places: list[Ints]
    ) -> _Rows:
        """Rows of this rank in the parts of one pass."""
        number, epoch = int(parts.source[group[0]]), int(parts.epoch[group[0]])
        source, epoch_pass = self._sources[number], self._passes.get((number, epoch))
        if epoch_pass is None:
            epoch_pass = self._passes[number, epoch] = _Pass(source, epoch, self._share)
        low, rows = int(parts.start[group[0]]), parts.rows[group]
        reached = low + int(rows.sum())
        located = epoch_pass.order.locate(low, reached)
        if self._share.world > 1:
            located = _own_rows(located, rows, own[0][group], own[1][group])
        # How many rows of the source came in this piece before each of these.
        nth = located.position + (epoch * source.rows - int(self._before[number]))
        return places[number][nth], *epoch_pass.rows(located, reached)

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
