"""Lanes over groups of runs: the order of the spec, every row once, and little looked into."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.grouped import (
    TURNS,
    GroupedLanes,
    Grouping,
    GroupRuns,
    RunSlots,
    grouped_lanes,
    grouping,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import Share, stretches
from tests.support.builders.streams import row_at
from tests.support.second_readers import order as reference

EXAMPLE = (
    "2.0 7.0 2.1 7.1 3.3 6.3 4.3 7.3 4.1 7.2 3.2 6.2 3.0 0.2 4.2 6.1 4.4 0.0 3.1 6.0 "
    "4.0 0.1 1.0 6.4 4.5 1.2 1.4 5.0 1.3 1.1"
)


def order_of(
    groups: list[list[int]], *, seed: int, epoch: int, lanes: int, bands: int, run_rows: int
) -> GroupedLanes:
    counts = np.array(list(chain.from_iterable(groups)))
    numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    made = grouping(counts, numbers, run_rows)
    return grouped_lanes(made, seed=seed, epoch=epoch, lanes=lanes, bands=bands)


@st.composite
def grouped_runs(draw: st.DrawFn) -> tuple[list[list[int]], GroupedLanes]:
    group = st.lists(st.integers(1, 6), min_size=1, max_size=5)
    groups = draw(st.lists(group, min_size=1, max_size=8))
    bands = draw(st.integers(1, 4))
    lanes = bands * draw(st.integers(1, 3)) * (2 if bands % 2 else 1)
    seed, epoch = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 3))
    run_rows = draw(st.integers(1, 6))
    return groups, order_of(
        groups, seed=seed, epoch=epoch, lanes=lanes, bands=bands, run_rows=run_rows
    )


def sequence(order: GroupedLanes) -> list[tuple[int, int]]:
    return [row_at(order, position) for position in range(order.rows)]


def test_the_specs_example_comes_out_row_by_row() -> None:
    groups = [[3, 5], [2, 4, 6], [1, 5, 4]]
    order = order_of(groups, seed=7, epoch=0, lanes=4, bands=2, run_rows=4)
    assert " ".join(f"{run}.{row}" for run, row in sequence(order)) == EXAMPLE


@given(grouped_runs())
def test_an_order_is_that_of_the_spec(given_: tuple[list[list[int]], GroupedLanes]) -> None:
    groups, order = given_
    expected = reference.GroupedLanes(
        groups, order.seed, order.epoch, order.lanes, order.bands, order.groups.run_rows
    )
    assert sequence(order) == expected.sequence()


@given(grouped_runs())
def test_every_row_comes_exactly_once(given_: tuple[list[list[int]], GroupedLanes]) -> None:
    groups, order = given_
    found = order.locate(0, order.rows)
    runs = enumerate(chain.from_iterable(groups))
    assert sorted(zip(found.run.tolist(), found.place.tolist(), strict=True)) == [
        (run, place) for run, rows in runs for place in range(rows)
    ]


@given(grouped_runs(), st.data())
def test_any_stretch_is_found_without_what_comes_before(
    given_: tuple[list[list[int]], GroupedLanes], data: st.DataObject
) -> None:
    _, order = given_
    start = data.draw(st.integers(0, order.rows))
    stop = data.draw(st.integers(start, order.rows + 3))
    whole, part = order.locate(0, order.rows), order.locate(start, stop)
    assert part.run.tolist() == whole.run[start:stop].tolist()
    assert part.place.tolist() == whole.place[start:stop].tolist()


@given(grouped_runs(), st.integers(1, 12))
def test_steps_have_the_rows_of_the_order(
    given_: tuple[list[list[int]], GroupedLanes], batch_size: int
) -> None:
    groups, order = given_
    live = np.array(list(chain.from_iterable(groups)))
    key = epoch_key(order.seed, order.epoch, Purpose.ROWS)
    parts = stretches(order, live, Share(batch_size), key=key, keep=False, stretch_rows=9)
    rows = [row for part in parts for row in zip(part.run.tolist(), part.row.tolist(), strict=True)]
    assert rows == sequence(order)


LARGE = [[50] * 32] * 50  # 1,600 runs


def test_few_runs_are_read_twice_and_about_as_many_are_open_as_there_are_lanes() -> None:
    order = order_of(LARGE, seed=1, epoch=0, lanes=32, bands=16, run_rows=50)
    live = np.full(1600, 50)
    parts = list(stretches(order, live, Share(16), key=1, keep=False, stretch_rows=256))
    reads = sum(part.opened.size for part in parts)
    assert 1600 <= reads <= 1600 + 32 // 2
    change = [part.opened.size - part.closed.size for part in parts]
    assert np.cumsum(change).max() <= 32 + 16


def test_new_runs_come_evenly() -> None:
    order = order_of(LARGE, seed=1, epoch=0, lanes=32, bands=16, run_rows=50)
    found = order.locate(0, order.rows)
    opened = np.full(1600, order.rows)
    np.minimum.at(opened, found.run, found.position)
    inner = np.bincount(opened // (50 * 32 // 4))[4:-4]
    assert inner.max() <= 2 * 32 // 4


def test_only_groups_that_lanes_are_in_are_looked_into() -> None:
    looked: list[int] = []

    def counts(group: int) -> np.ndarray:
        looked.append(group)
        return np.full(64, 50)

    groups = 5000
    rows = np.full(groups, 64 * 50)
    made = Grouping(rows, np.arange(groups + 1) * 64, counts, 50)
    order = grouped_lanes(made, seed=1, epoch=0, lanes=16, bands=8)
    assert looked == []
    half = order.rows // 2
    order.locate(half, half + 16 * 200)
    assert 16 <= len(looked) <= 48
    assert len(order.lines) <= 48


@pytest.mark.parametrize(("lanes", "bands"), [(3, 1), (4, 3)])
def test_odd_lanes_and_bands_that_do_not_divide_are_refused(lanes: int, bands: int) -> None:
    with pytest.raises(ValueError, match="even lanes"):
        order_of([[5]], seed=0, epoch=0, lanes=lanes, bands=bands, run_rows=5)


def test_a_slot_that_went_to_another_run_is_not_that_of_the_first_any_more() -> None:
    counts = np.array([4, 4])
    first = np.array([0, 4])
    group = GroupRuns(0, counts, first, counts, counts, first)
    slots = RunSlots(2, {0: group}.get)
    slot = int(slots.of(group, np.array([0]))[0])
    for _ in range(TURNS):
        slots.begin()
    assert int(slots.of(group, np.array([1]))[0]) == slot
    again = int(slots.of(group, np.array([0]))[0])
    assert (slots.where(slot), slots.where(again)) == ((0, 1), (0, 0))
