"""What every order promises, on run tables as large as real ones.

Tables of up to 400 small runs or 25 of up to 5,000 rows, any window, batch and number of ranks,
and epochs that go on elsewhere. `test_orders` and `test_schedule` compare small orders with the
spec row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.dataset.streaming.order.grouped import grouped_lanes, grouping
from tensorrepo.formats.dataset.streaming.order.orders import (
    Buffered,
    Order,
    PairedLanes,
    RowOrder,
    Scattered,
    choose_lanes,
    paired_lanes,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import Share, StepStretch, stretches
from tests.support.effort import examples, sampled

Kind = Literal["pages", "groups", "global", "buffer", "storage"]
LARGE = settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Table:
    """Runs of an epoch, how they are ordered, and how large steps are."""

    live: NDArray[np.int64]
    kind: Kind
    lanes: int
    bands: int
    batch_size: int
    seed: int = 3
    epoch: int = 0

    @property
    def rows(self) -> int:
        return int(self.live.sum())

    def order(self) -> Order:
        start = np.concatenate(([0], np.cumsum(self.live)))
        lanes = {"seed": self.seed, "epoch": self.epoch, "lanes": self.lanes, "bands": self.bands}
        groups = np.arange(self.live.size) // 7
        makers = {
            "pages": lambda: paired_lanes(self.live, **lanes),
            "groups": lambda: grouped_lanes(grouping(self.live, groups, 50), **lanes),
            "global": lambda: Scattered(start, self.seed, self.epoch),
            "buffer": lambda: Buffered(start, self.seed, self.epoch, 1 + self.rows // 5),
            "storage": lambda: RowOrder(start),
        }
        return makers[self.kind]()

    def steps(self, share: Share) -> list[StepStretch]:
        key = epoch_key(self.seed, self.epoch, Purpose.ROWS)
        rows = max(1024, 2 * self.lanes)
        found = stretches(self.order(), self.live, share, key=key, keep=False, stretch_rows=rows)
        return list(found)

    def numbers(self, share: Share) -> NDArray[np.int64]:
        """The row of the dataset at each place of the share."""
        first = np.cumsum(self.live) - self.live
        parts = [first[part.run] + part.row for part in self.steps(share)]
        return np.concatenate([np.zeros(0, np.int64), *parts])


@st.composite
def tables(draw: st.DrawFn, kinds: tuple[Kind, ...]) -> Table:
    most, largest = draw(st.sampled_from([(400, 1), (400, 2), (400, 40), (300, 400), (25, 5000)]))
    runs = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    live = rng.integers(1, largest + 1, runs)
    batch_size = draw(st.sampled_from([1, 3, 8, 60, 256, 1000]))
    lanes, bands = choose_lanes(draw(st.integers(1, 600)), 1, batch_size)
    epoch = draw(st.integers(0, 3))
    return Table(live, draw(st.sampled_from(kinds)), lanes, bands, batch_size, epoch=epoch)


EVERY: tuple[Kind, ...] = ("pages", "groups", "global", "buffer", "storage")


@LARGE
@given(tables(EVERY))
def test_every_row_comes_once(table: Table) -> None:
    found = table.numbers(Share(table.batch_size))
    assert np.array_equal(np.sort(found), np.arange(table.rows))


@LARGE
@given(tables(EVERY), st.integers(1, 9))
def test_ranks_share_the_steps_that_one_rank_has_and_differ_by_one_row(
    table: Table, world: int
) -> None:
    whole = Share(table.batch_size)
    ranks = [table.steps(replace(whole, rank=rank, world=world)) for rank in range(world)]
    sizes = np.array([np.concatenate([np.diff(part.bounds) for part in rank]) for rank in ranks])
    assert (sizes.max(axis=0) - sizes.min(axis=0)).max() <= 1
    assert np.array_equal(sorted_steps(ranks), sorted_steps([table.steps(whole)]))


def sorted_steps(ranks: list[list[StepStretch]]) -> NDArray[np.int64]:
    """All rows as (step, run, row), sorted."""
    rows = [
        np.stack(
            (
                np.repeat(part.first_step + np.arange(part.steps), np.diff(part.bounds)),
                part.run,
                part.row,
            )
        )
        for rank in ranks
        for part in rank
    ]
    every = np.concatenate(rows, axis=1)
    return every[:, np.lexsort(every[::-1])]


@settings(LARGE, max_examples=examples(6))
@given(tables(EVERY), st.integers(1, 5), st.sampled_from([1, 7, 64, 300]), st.floats(0, 1))
def test_what_is_left_of_an_epoch_is_the_same_elsewhere(
    table: Table, world: int, batch_size: int, at: float
) -> None:
    start = int(at * table.rows)
    whole = table.numbers(Share(table.batch_size, start=start))
    assert np.array_equal(whole, table.numbers(Share(table.batch_size))[start:])
    ranks = [table.numbers(Share(batch_size, rank, world, start)) for rank in range(world)]
    assert np.array_equal(np.sort(np.concatenate(ranks)), np.sort(whole))


@LARGE
@given(tables(("pages",)))
def test_one_rank_reads_every_run_once(table: Table) -> None:
    parts = table.steps(Share(table.batch_size))
    assert sum(part.opened.size for part in parts) == table.live.size


@LARGE
@given(tables(("pages",)), st.sampled_from([2, 4, 8]), st.integers(1, 3))
def test_whole_bands_are_read_twice_on_borders_only(table: Table, world: int, per: int) -> None:
    bands = world * per * 2
    cut = replace(table, lanes=2 * bands, bands=bands, batch_size=bands)
    reads = [
        sum(part.opened.size for part in cut.steps(Share(bands, rank, world)))
        for rank in range(world)
    ]
    assert sum(reads) <= cut.live.size + 3 * (world - 1) + last_step_runs(cut)


def last_step_runs(table: Table) -> int:
    """Runs of the short steps at the end, in which bands do not come equally often."""
    order = table.order()
    return int(np.unique(order.locate(order.whole_rows, order.rows).run).size)


@LARGE
@given(tables(("pages",)))
def test_no_more_runs_are_open_than_there_are_lanes_and_some_that_are_divided(
    table: Table,
) -> None:
    opened = open_runs([table.order()], 1)
    assert opened.max() <= table.lanes + table.lanes // 2


def open_runs(orders: list[Order], batch_size: int) -> NDArray[np.int64]:
    """Runs that are open in each step of some epochs: from the first row of a run to its last."""
    change = np.zeros(sum(-(-order.rows // batch_size) for order in orders) + 1, dtype=np.int64)
    before = 0
    for order in orders:
        found = order.locate(0, order.rows)
        step = before + found.position // batch_size
        before += -(-order.rows // batch_size)
        runs, first = np.unique(found.run, return_index=True)
        last = found.run.size - 1 - np.unique(found.run[::-1], return_index=True)[1]
        assert runs.size
        np.add.at(change, step[first], 1)
        np.add.at(change, step[last] + 1, -1)
    return np.cumsum(change)[:-1]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_few_more_than_the_lanes_are_open_even_where_an_epoch_ends(seed: int) -> None:
    live = np.full(2000, 500)
    orders: list[Order] = [
        paired_lanes(live, seed=seed, epoch=epoch, lanes=256, bands=256) for epoch in range(2)
    ]
    assert open_runs(orders, 256).max() <= 270


@pytest.mark.parametrize("world", sampled([2, 8, 64], 1))
def test_a_rank_holds_its_part_of_the_window(world: int) -> None:
    order = paired_lanes(np.full(2000, 500), seed=1, epoch=0, lanes=256, bands=256)
    assert isinstance(order, PairedLanes)
    share = Share(256, 0, world)
    key = epoch_key(1, 0, Purpose.ROWS)
    parts = stretches(order, order.live, share, key=key, keep=False, stretch_rows=512)
    held = np.cumsum([part.opened.size - part.closed.size for part in parts])
    assert held.max() <= 256 // world * 1.25 + 4
