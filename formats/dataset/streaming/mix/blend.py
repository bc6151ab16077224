"""Blend of a mix: how often each source comes, and which source each row is of.

A mix is cut into cycles of some thousand slots. How many slots of a cycle each source has follows
from its share alone, and which ones from a keyed permutation. So any place of a mix is reached
directly: the source there, and how many rows of every source came before.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import whole
from tensorrepo.formats.dataset.streaming.checks import numbers, whole_numbers
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
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
        rows: of an epoch: whole slots, and `rest`.
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
        found = []
        left, weight = slots, sum(self.shares)
        for share in self.shares:
            mine = left * share // weight if share else 0
            found.append(mine)
            left, weight = left - mine, weight - share
        return found

    @property
    def epoch_rows(self) -> list[int]:
        """Rows of each source in an epoch."""
        rest = self.rest or (0,) * len(self.shares)
        taken = self.taken(self.slots)
        return [slots * self.slot_rows + left for slots, left in zip(taken, rest, strict=True)]

    def sources(self, seed: int, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
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

    def rows_before(self, seed: int, epoch: int, position: int) -> NDArray[np.int64]:
        """Rows of each source at the positions before `position` of the epoch."""
        cycle = min(position // self.slot_rows, self.slots) // self.cycle_slots
        begins = cycle * self.cycle_slots
        taken = np.array(self.taken(begins), dtype=np.int64) * self.slot_rows
        inside = self.sources(seed, epoch, begins * self.slot_rows, min(position, self.rows))
        found: NDArray[np.int64] = taken + np.bincount(inside, minlength=len(self.shares))
        return found


@lru_cache(maxsize=64)
def _cycle(blend: SourceBlend, seed: int, epoch: int, cycle: int) -> NDArray[np.int64]:
    """The source of every slot of a cycle; the last cycle of an epoch may have fewer."""
    start = cycle * blend.cycle_slots
    stop = min(start + blend.cycle_slots, blend.slots)
    counts = np.subtract(blend.taken(stop), blend.taken(start))
    in_turn = np.repeat(np.arange(len(blend.shares)), counts)
    key = number(epoch_key(seed, epoch, Purpose.MIX), cycle)
    return in_turn[permutation(key, stop - start)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWish:
    """What was asked of a mix, as it was asked; None where nothing was. Kept in the state."""

    batching: str
    weights: tuple[float, ...] | None
    repeat: tuple[float, ...] | None
    choose: tuple[int, ...] | None
    rows: int | None
    steps: int | None

    def __str__(self) -> str:
        told = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ", ".join(f"{name}={_text(value)}" for name, value in told if value is not None)


def _text(value: str | int | tuple[float, ...]) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    return str([int(each) if each == int(each) else each for each in value])


def wish_of(
    batching: str,
    weights: Any = None,
    repeat: Any = None,
    choose: Any = None,
    rows: Any = None,
    steps: Any = None,
) -> MixWish:
    """What was asked for, each by itself found to be what it has to be.

    Raises:
        InvalidInputError: no numbers, or ones that cannot be; rows and steps.
    """
    if rows is not None and steps is not None:
        raise InvalidInputError("rows and steps of a mix say different things: give one")
    return MixWish(
        batching=batching,
        weights=None if weights is None else numbers("weights of a mix", weights),
        repeat=None if repeat is None else numbers("repeat of a mix", repeat),
        choose=None if choose is None else whole_numbers("choose of a mix", choose),
        rows=None if rows is None else whole("rows of a mix", rows, 1),
        steps=None if steps is None else whole("steps of a mix", steps, 1),
    )


def blend_of(
    source_rows: Sequence[int],
    *,
    batch_size: int,
    batching: Batching = "random",
    weights: Sequence[float] | None = None,
    repeat: Sequence[float] | None = None,
    choose: Sequence[int] | None = None,
    rows: int | None = None,
) -> SourceBlend:
    """The blend that a user asks for.

    Args:
        source_rows: of each source.
        batch_size: rows of a step, of all ranks together.
        batching: "random" shuffles sources over some thousand rows; "stratified" gives every step
            the same rows of each source; "per_source" makes whole steps of one source, and
            what is left of the sources comes last.
        weights: how often each source comes. An epoch has `rows`, or those of all sources.
        repeat: how often an epoch goes through each source.
        choose: rows of each source in an epoch.
        rows: of an epoch, with `weights` or with nothing: then sources come as often as they are
            large. Without any of the four an epoch has every row of every source once.

    Raises:
        InvalidInputError: the wishes contradict each other, or a source would never come.
    """
    given = [name for name, wish in _named(weights, repeat, choose) if wish is not None]
    if len(given) > 1 or (rows is not None and given in (["repeat"], ["choose"])):
        said = [*given, *(["rows"] if rows is not None else [])]
        raise InvalidInputError(f"{' and '.join(said)} of a mix say different things: give one")
    for name, wish in _named(weights, repeat, choose):
        _check(name, wish, len(source_rows))
    if batching not in ("random", "stratified", "per_source"):
        raise InvalidInputError(
            f"batching is 'random', 'stratified' or 'per_source', got {batching!r}"
        )
    if not source_rows or min(source_rows) < 1:
        raise InvalidInputError(f"every source of a mix has rows, these have {list(source_rows)}")
    slot_rows = batch_size if batching == "per_source" else 1
    cycle_slots = batch_size if batching == "stratified" else CYCLE_SLOTS
    if weights is None and rows is None:
        counts = _counts(source_rows, repeat, choose)
        shares = tuple(count // slot_rows for count in counts)
        rest = tuple(count % slot_rows for count in counts)
        return SourceBlend(shares, cycle_slots, slot_rows, sum(counts), rest if any(rest) else ())
    shares = rounded(source_rows if weights is None else weights, cycle_slots)
    wanted = sum(source_rows) if rows is None else rows
    if wanted < 1:
        raise InvalidInputError(f"an epoch of a mix has at least one row, got {wanted}")
    return SourceBlend(shares, cycle_slots, slot_rows, -(-wanted // slot_rows) * slot_rows)


def _named(
    weights: Sequence[float] | None, repeat: Sequence[float] | None, choose: Sequence[int] | None
) -> list[tuple[str, Sequence[float] | None]]:
    return [("weights", weights), ("repeat", repeat), ("choose", choose)]


def _check(name: str, wish: Sequence[float] | None, sources: int) -> None:
    if wish is None:
        return
    (whole_numbers if name == "choose" else numbers)(f"{name} of a mix", wish)
    if len(wish) != sources:
        raise InvalidInputError(f"{name} has {len(wish)} numbers for {sources} sources")


def _counts(
    source_rows: Sequence[int], repeat: Sequence[float] | None, choose: Sequence[int] | None
) -> list[int]:
    if choose is not None:
        return [max(1, int(count)) for count in choose]
    if repeat is None:
        return list(source_rows)
    return [max(1, round(times * n)) for times, n in zip(repeat, source_rows, strict=True)]


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

    step: NDArray[np.int64]
    source: NDArray[np.int64]
    epoch: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.int64]
    turn: NDArray[np.int64]


def parts_of(
    step: NDArray[np.int64],
    source: NDArray[np.int64],
    before: NDArray[np.int64],
    source_rows: NDArray[np.int64],
    world: int,
) -> Parts:
    """The parts of some steps.

    Args:
        step: of each row of these steps, ascending from 0.
        source: of each of them.
        before: rows of each source before the first of them, earlier epochs counted too.
        source_rows: rows of an epoch of each source.
        world: ranks that share every step.
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
    given = np.cumsum(left) - left
    turn = (given - given[np.searchsorted(part_step, part_step)]) % world
    return Parts(part_step, at_source[which], epoch, start, rows, turn)


def rank_turns(world: int, stride: int) -> NDArray[np.int64]:
    """When each rank's turn is to get a row more: neighbours far apart."""
    turns = np.empty(world, dtype=np.int64)
    turns[np.arange(world) * stride % world] = np.arange(world)
    return turns


def rank_cut(
    parts: Parts, rank: int, turns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which sorted places of each part go to `rank`: first, and one after the last."""
    world = turns.size
    each, left = parts.rows // world, parts.rows % world
    gets_more = (turns[:, None] - parts.turn[None, :]) % world < left[None, :]
    first = rank * each + gets_more[:rank].sum(axis=0)
    return first, first + each + gets_more[rank]
