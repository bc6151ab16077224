"""Steps, shares of ranks, and when runs are opened and closed."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.orders import (
    PairedLanes,
    RowOrder,
    Scattered,
    paired_lanes,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import (
    Last,
    Share,
    StepStretch,
    shared_rows,
    stretches,
)
from tests.support.builders.streams import row_at

SEED = 11
KEY = epoch_key(SEED, 0, Purpose.ROWS)


def lanes_of(live: list[int], lanes: int, bands: int) -> PairedLanes:
    return paired_lanes(np.array(live), seed=SEED, epoch=0, lanes=lanes, bands=bands)


@st.composite
def shared_orders(draw: st.DrawFn) -> tuple[PairedLanes, Share]:
    live = draw(st.lists(st.integers(1, 9), min_size=1, max_size=24))
    bands = draw(st.sampled_from([1, 2, 3, 4, 6]))
    lanes = bands * 2 * draw(st.integers(1, 2))
    order = lanes_of(live, lanes, bands)
    world = draw(st.sampled_from([1, 2, 3, 4]))
    share = Share(
        batch_size=draw(st.integers(1, 13)),
        rank=draw(st.integers(0, world - 1)),
        world=world,
        start=draw(st.integers(0, order.rows)),
        last=draw(st.sampled_from(["short", "drop"])),
    )
    return order, share


def run_of(order: PairedLanes, share: Share, stretch_rows: int = 16) -> list[StepStretch]:
    return list(stretches(order, order.live, share, key=KEY, keep=False, stretch_rows=stretch_rows))


def rows_of_steps(found: list[StepStretch]) -> list[list[tuple[int, int]]]:
    return [
        list(zip(part.run[low:high].tolist(), part.row[low:high].tolist(), strict=True))
        for part in found
        for low, high in zip(part.bounds[:-1], part.bounds[1:], strict=True)
    ]


def rows_by_the_spec(order: PairedLanes, share: Share) -> list[list[tuple[int, int]]]:
    """The share of every step, straight from docs/spec/stream-order.md."""
    whole = order.locate(0, order.rows)
    steps = []
    for step in range(share.steps(order.rows)):
        start, stop = share.bounds(step, order.rows)
        places = sorted((int(whole.band[at]), at) for at in range(start, stop))
        n = stop - start
        low, high = (n * rank // share.world for rank in (share.rank, share.rank + 1))
        steps.append([row_at(order, at) for at in sorted(at for _, at in places[low:high])])
    return steps


@given(shared_orders())
def test_every_step_holds_the_share_that_the_spec_says(given_: tuple[PairedLanes, Share]) -> None:
    order, share = given_
    assert rows_of_steps(run_of(order, share)) == rows_by_the_spec(order, share)


@given(shared_orders(), st.integers(1, 100))
def test_the_length_of_a_stretch_changes_nothing_but_reading(
    given_: tuple[PairedLanes, Share], stretch_rows: int
) -> None:
    order, share = given_
    assert rows_of_steps(run_of(order, share, stretch_rows)) == rows_of_steps(run_of(order, share))


@given(shared_orders())
def test_the_ranks_together_hold_every_step_once(given_: tuple[PairedLanes, Share]) -> None:
    order, share = given_
    ranks = [run_of(order, replace(share, rank=rank)) for rank in range(share.world)]
    whole = run_of(order, replace(share, rank=0, world=1))
    together = zip(*map(rows_of_steps, ranks), strict=True)
    assert [sorted(chain.from_iterable(parts)) for parts in together] == [
        sorted(step) for step in rows_of_steps(whole)
    ]


@given(shared_orders())
def test_the_position_after_a_step_resumes_with_the_next(
    given_: tuple[PairedLanes, Share],
) -> None:
    order, share = given_
    steps = rows_of_steps(run_of(order, share))
    ends = [int(end) for part in run_of(order, share) for end in part.ends]
    resumed = [rows_of_steps(run_of(order, replace(share, start=end))) for end in ends]
    assert resumed == [steps[step + 1 :] for step in range(len(steps))]


@given(shared_orders(), st.booleans())
def test_a_run_is_open_whenever_it_is_used(given_: tuple[PairedLanes, Share], keep: bool) -> None:
    order, share = given_
    opened: set[int] = set()
    for part in stretches(order, order.live, share, key=KEY, keep=keep, stretch_rows=9):
        for step in range(part.steps):
            opened |= set(part.opened[part.opened_at == step].tolist())
            assert set(part.run[part.bounds[step] : part.bounds[step + 1]].tolist()) <= opened
            opened -= set(part.closed[part.closed_at == step].tolist())


@given(shared_orders())
def test_runs_are_opened_when_needed_and_in_that_order(
    given_: tuple[PairedLanes, Share],
) -> None:
    for part in run_of(*given_):
        uses = [
            part.run[part.bounds[step] : part.bounds[step + 1]].tolist() for step in part.opened_at
        ]
        assert all(run in use for run, use in zip(part.opened.tolist(), uses, strict=True))
        assert part.opened_at.tolist() == sorted(part.opened_at.tolist())
        assert part.closed_at.tolist() == sorted(part.closed_at.tolist())


@pytest.mark.parametrize(
    ("world", "twice"),
    [(1, 0), (2, 3), (4, 3 * 3), (8, 7 * 3), (3, 2 * (25 + 3)), (5, 4 * (25 + 3))],
)
def test_ranks_read_a_run_twice_on_their_borders_only(world: int, twice: int) -> None:
    order = lanes_of([25] * 200, 16, 8)  # 8 bands of 25 runs
    reads = [
        sum(part.opened.size for part in run_of(order, Share(8, rank, world), 1024))
        for rank in range(world)
    ]
    assert 200 <= sum(reads) <= 200 + twice


@given(shared_orders())
def test_one_rank_reads_every_run_once(given_: tuple[PairedLanes, Share]) -> None:
    order, share = given_
    whole = replace(share, rank=0, world=1, start=0, last="short")
    parts = run_of(order, whole, 2 * order.lanes)
    every = list(range(order.live.size))
    assert sorted(run for part in parts for run in part.opened.tolist()) == every
    assert sorted(run for part in parts for run in part.closed.tolist()) == every


@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_of_many_runs_reads_each_of_them_once(seed: int) -> None:
    live = np.random.default_rng(seed).integers(50, 150, 2000)
    order = paired_lanes(live, seed=seed, epoch=0, lanes=256, bands=64)
    parts = stretches(order, live, Share(64), key=KEY, keep=False, stretch_rows=1024)
    assert sum(part.opened.size for part in parts) == 2000


def test_orders_without_lanes_are_shared_by_position() -> None:
    order = RowOrder(np.array([0, 10, 20]))
    ranks = [shared_rows(order, Share(10, rank, 3), 0, 20).position for rank in range(3)]
    assert [rank.tolist() for rank in ranks] == [
        [0, 1, 2, 10, 11, 12],
        [3, 4, 5, 13, 14, 15],
        [6, 7, 8, 9, 16, 17, 18, 19],
    ]


def test_runs_that_fit_stay_open() -> None:
    order = Scattered(np.array([0, 10, 20]), SEED, 0)
    found = list(stretches(order, np.array([10, 10]), Share(4), key=KEY, keep=True, stretch_rows=8))
    assert sorted(run for part in found for run in part.opened.tolist()) == [0, 1]
    assert not any(part.closed.size for part in found)


def test_an_epoch_without_rows_has_no_steps() -> None:
    order = RowOrder(np.array([0]))
    assert run_of_nothing(order) == []


def run_of_nothing(order: RowOrder) -> list[StepStretch]:
    return list(stretches(order, np.zeros(0, dtype=np.int64), Share(4), key=KEY, keep=False))


@pytest.mark.parametrize(
    ("rows", "start", "last", "steps"),
    [
        (10, 0, "short", 3),
        (10, 0, "drop", 2),
        (10, 0, "pad", 3),
        (10, 10, "short", 0),
        (10, 2, "drop", 2),
        (0, 0, "pad", 0),
    ],
)
def test_the_number_of_steps_is_known(rows: int, start: int, last: Last, steps: int) -> None:
    assert Share(4, start=start, last=last).steps(rows) == steps


@given(shared_orders())
def test_a_padded_step_is_the_short_one_filled_up_with_its_own_rows(
    given_: tuple[PairedLanes, Share],
) -> None:
    order, share = given_
    padded = [
        run_of(order, replace(share, rank=rank, last="pad"), 16) for rank in range(share.world)
    ]
    short = run_of(order, replace(share, rank=0, world=1, last="short"))
    steps = [
        sorted(chain.from_iterable(parts)) for parts in zip(*map(own_rows, padded), strict=True)
    ]
    assert steps == [sorted(step) for step in rows_of_steps(short)]
    sizes = [[len(step) for step in rows_of_steps(rank)] for rank in padded]
    full = share.batch_size
    parts = range(share.world)
    assert sizes == [
        [(rank + 1) * full // share.world - rank * full // share.world] * len(steps)
        for rank in parts
    ]


def test_the_specs_example_of_padding_comes_out() -> None:
    order = RowOrder(np.array([0, 3]))
    ranks = [
        list(stretches(order, np.array([3]), Share(8, rank, 2, last="pad"), key=KEY, keep=True))
        for rank in range(2)
    ]
    assert [part.row.tolist() for parts in ranks for part in parts] == [[0, 1, 0, 0], [2, 1, 1, 2]]
    assert [part.repeated for parts in ranks for part in parts] == [2, 3]


def own_rows(found: list[StepStretch]) -> list[list[tuple[int, int]]]:
    """The rows of every step without those that fill the last one up."""
    steps = rows_of_steps(found)
    repeated = found[-1].repeated if found else 0
    return [*steps[:-1], *(step[: len(step) - repeated] for step in steps[-1:])]


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"rank": 2, "world": 2}, {"rank": -1}, {"start": -1}]
)
def test_an_impossible_share_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"batch_size|rank"):
        Share(**({"batch_size": 4} | wrong))


@given(shared_orders(), st.integers(1, 4), st.integers(1, 40))
def test_workers_that_take_turns_make_every_step_once_and_whole(
    drawn: tuple[PairedLanes, Share], turns: int, stretch_rows: int
) -> None:
    order, share = drawn
    whole = rows_of_steps(run_of(order, share))
    ends = [end for part in run_of(order, share) for end in part.ends.tolist()]
    for turn in range(turns):
        mine = replace(share, turn=turn, turns=turns)
        found = run_of(order, mine, stretch_rows)
        assert rows_of_steps(found) == whole[turn::turns]
        assert [end for part in found for end in part.ends.tolist()] == ends[turn::turns]


def test_a_worker_opens_only_runs_of_its_own_steps() -> None:
    share = Share(batch_size=4, turn=1, turns=2)
    order = RowOrder(np.arange(0, 36, 4))
    found = list(stretches(order, np.array([4] * 8), share, key=KEY, keep=False))
    assert [run for part in found for run in part.opened.tolist()] == [1, 3, 5, 7]
