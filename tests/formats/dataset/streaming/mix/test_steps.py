"""Steps of a mix: every row as often as it should come, on any ranks, and runs open when used."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.mix.blend import (
    MixSource,
    MixWish,
    SourceBlend,
    blend_of,
    mixed_stretches,
)
from tensorrepo.formats.dataset.streaming.order.items import Items, row_items
from tensorrepo.formats.dataset.streaming.order.orders import Order, Scattered, paired_lanes
from tensorrepo.formats.dataset.streaming.order.schedule import Share, StepStretch

Row = tuple[int, int]  # run among those of all sources, live row inside it


def lanes_order(lanes: int, bands: int, epoch: int, items: Items) -> Order:
    return paired_lanes(items.counts, seed=5, epoch=epoch, lanes=lanes, bands=bands)


def scattered_order(epoch: int, items: Items) -> Order:
    return Scattered(np.concatenate(([0], np.cumsum(items.counts))), 5, epoch)


def items_of(live: list[int], epoch: int) -> Items:  # noqa: ARG001  the same in every epoch
    counts = np.array(live)
    return row_items(np.cumsum(counts) - counts, counts, None)


def source(live: list[int], first_run: int, lanes: int, bands: int, first_epoch: int) -> MixSource:
    """A source with paired lanes; without lanes one that stays loaded."""
    return MixSource(
        rows=sum(live),
        runs=len(live),
        first_run=first_run,
        seed=5,
        epoch=first_epoch,
        items=partial(items_of, live),
        order=partial(lanes_order, lanes, bands) if lanes else scattered_order,
        keep=not lanes,
    )


@st.composite
def sources(draw: st.DrawFn) -> list[MixSource]:
    found: list[MixSource] = []
    first_run = 0
    for _ in range(draw(st.integers(1, 3))):
        live = draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
        bands = draw(st.sampled_from([0, 1, 2, 3]))
        found.append(source(live, first_run, 2 * bands, bands, draw(st.integers(0, 2))))
        first_run += len(live)
    return found


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[MixSource], SourceBlend, Share]:
    found = draw(sources())
    batch_size = draw(st.integers(4, 20))
    wish = MixWish(
        batching=draw(st.sampled_from(["random", "stratified", "per_source"])),
        repeat=tuple(draw(st.integers(1, 3)) for _ in found),
    )
    blend = blend_of([each.rows for each in found], batch_size, wish)
    share = Share(
        batch_size,
        world=draw(st.integers(1, 4)),
        start=draw(st.integers(0, blend.rows)),
        last=draw(st.sampled_from(["short", "drop"])),
    )
    return found, blend, share


def run_of(
    found: list[MixSource], blend: SourceBlend, share: Share, epoch: int = 0, rows: int = 16
) -> list[StepStretch]:
    return list(
        mixed_stretches(
            found, blend, share, seed=1, epoch=epoch, stretch_rows=4 * rows, first_rows=rows
        )
    )


def rows_of_steps(found: list[StepStretch]) -> list[list[Row]]:
    return [
        list(zip(part.run[low:high].tolist(), part.row[low:high].tolist(), strict=True))
        for part in found
        for low, high in zip(part.bounds[:-1], part.bounds[1:], strict=True)
    ]


def rows_by_the_spec(found: list[MixSource], blend: SourceBlend, epoch: int) -> list[Row]:
    """Every row of an epoch of the mix, one position after the other."""
    reached = [epoch * rows for rows in blend.epoch_rows]
    passes: dict[tuple[int, int], list[Row]] = {}
    rows = []
    for one in blend.sources(1, epoch, 0, blend.rows).tolist():
        number, position = divmod(reached[one], found[one].rows)
        if (one, number) not in passes:
            passes[one, number] = alone(found[one], number)
        rows.append(passes[one, number][position])
        reached[one] += 1
    return rows


def alone(one: MixSource, epoch: int) -> list[Row]:
    """One epoch of one source by itself, as a mix of nothing else."""
    only = [replace(one, epoch=one.epoch + epoch, first_run=0)]
    rows = rows_of_steps(run_of(only, SourceBlend((1,), 50, 1, one.rows), Share(one.rows)))[0]
    return [(one.first_run + run, row) for run, row in rows]


@given(mixes(), st.integers(0, 2))
def test_every_position_holds_the_row_that_the_spec_says(
    given_: tuple[list[MixSource], SourceBlend, Share], epoch: int
) -> None:
    found, blend, share = given_
    steps = rows_of_steps(run_of(found, blend, replace(share, world=1), epoch))
    every = rows_by_the_spec(found, blend, epoch)
    bounds = [share.bounds(step, blend.rows) for step in range(share.steps(blend.rows))]
    assert steps == [every[low:high] for low, high in bounds]


@given(sources(), st.integers(1, 20))
def test_an_epoch_without_wishes_has_every_row_once(
    found: list[MixSource], batch_size: int
) -> None:
    blend = blend_of([each.rows for each in found], batch_size, MixWish())
    rows = Counter(chain.from_iterable(rows_of_steps(run_of(found, blend, Share(batch_size)))))
    assert set(rows.values()) == {1}
    assert len(rows) == sum(each.rows for each in found)


@given(mixes())
def test_the_ranks_together_hold_every_step_once_and_equally_much(
    given_: tuple[list[MixSource], SourceBlend, Share],
) -> None:
    found, blend, share = given_
    ranks = [
        rows_of_steps(run_of(found, blend, replace(share, rank=rank)))
        for rank in range(share.world)
    ]
    whole = rows_of_steps(run_of(found, blend, replace(share, world=1)))
    together = list(zip(*ranks, strict=True))
    assert [sorted(chain.from_iterable(parts)) for parts in together] == [
        sorted(step) for step in whole
    ]
    sizes = [[len(part) for part in parts] for parts in together]
    assert all(max(size) - min(size) <= 1 for size in sizes)


@given(mixes())
def test_a_padded_step_is_the_short_one_filled_up_with_its_own_rows(
    given_: tuple[list[MixSource], SourceBlend, Share],
) -> None:
    found, blend, share = given_
    ranks = [
        run_of(found, blend, replace(share, rank=rank, last="pad")) for rank in range(share.world)
    ]
    whole = rows_of_steps(run_of(found, blend, replace(share, world=1, last="short")))
    own = [
        step[: len(step) - parts[-1].repeated]
        for parts in ranks
        for step in rows_of_steps(parts)[-1:]
    ]
    assert sorted(chain.from_iterable(own)) == sorted(chain.from_iterable(whole[-1:]))
    full = {share.batch_size // share.world, -(-share.batch_size // share.world)}
    assert {len(step) for parts in ranks for step in rows_of_steps(parts)} <= full
    assert {row for parts in ranks for step in rows_of_steps(parts)[-1:] for row in step} <= {
        row for step in whole[-1:] for row in step
    }


@given(mixes(), st.integers(1, 3))
def test_workers_that_take_turns_make_every_step(
    given_: tuple[list[MixSource], SourceBlend, Share], turns: int
) -> None:
    found, blend, share = given_
    whole = rows_of_steps(run_of(found, blend, share))
    workers = [
        rows_of_steps(run_of(found, blend, replace(share, turn=turn, turns=turns)))
        for turn in range(turns)
    ]
    assert workers == [whole[turn::turns] for turn in range(turns)]


@given(mixes())
def test_a_run_is_open_whenever_it_is_used_and_few_are_in_the_end(
    given_: tuple[list[MixSource], SourceBlend, Share],
) -> None:
    found, blend, share = given_
    opened: set[int] = set()
    for part in run_of(found, blend, share):
        for step in range(part.steps):
            opened |= set(part.opened[part.opened_at == step].tolist())
            assert set(part.run[part.bounds[step] : part.bounds[step + 1]].tolist()) <= opened
            opened -= set(part.closed[part.closed_at == step].tolist())
    kept = set(
        chain.from_iterable(
            range(one.first_run, one.first_run + one.runs * one.keep) for one in found
        )
    )
    assert len(opened - kept) <= 6 * len(found)  # no more than there are lanes


def test_one_rank_reads_every_run_once_an_epoch_of_its_source() -> None:
    found = [source([25] * 200, 0, 16, 8, 0), source([10] * 100, 200, 8, 8, 0)]
    blend = blend_of([5000, 1000], 32, MixWish(repeat=(1, 1)))
    parts = run_of(found, blend, Share(32), rows=1024)
    reads = np.concatenate([part.opened for part in parts])
    assert sorted(reads.tolist()) == list(range(300))


def test_ranks_read_few_runs_twice() -> None:
    found = [source([25] * 200, 0, 16, 8, 0), source([25] * 200, 200, 16, 8, 0)]
    blend = blend_of([5000, 5000], 16, MixWish(batching="stratified"))
    reads = [
        sum(part.opened.size for part in run_of(found, blend, Share(16, rank, 4), rows=1024))
        for rank in range(4)
    ]
    assert 400 <= sum(reads) <= 400 + 2 * 3 * 3
