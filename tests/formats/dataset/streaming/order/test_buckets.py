"""Buckets: rows of like length in one step, wherever one looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.buckets import Bucketed, Buckets, buckets_of
from tensorrepo.formats.dataset.streaming.order.items import row_items
from tensorrepo.formats.dataset.streaming.order.orders import (
    Order,
    RowOrder,
    Scattered,
    paired_lanes,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import permutation
from tensorrepo.formats.dataset.streaming.order.schedule import Share, shared_rows, stretches
from tests.support.second_readers.items import bucketed
from tests.support.second_readers.order import Lanes

LIVE = [3, 5, 2, 4, 6, 1, 5, 4]
FIRST = np.concatenate(([0], np.cumsum(LIVE)))
LENGTHS = [row * 7 % 10 for row in range(30)]


def base_of(
    live: list[int], kind: str, seed: int, epoch: int
) -> tuple[Order, list[tuple[int, int]]]:
    """An order, and its rows of the dataset with their bands."""
    first = np.concatenate(([0], np.cumsum(live)))
    if kind == "lanes":
        order: Any = paired_lanes(np.array(live), seed=seed, epoch=epoch, lanes=4, bands=2)
        pairs = Lanes(live, seed, epoch, 4, 2).sequence()
        band = order.locate(0, order.rows).band.tolist()
        return order, [(int(first[run]) + row, band[at]) for at, (run, row) in enumerate(pairs)]
    order = RowOrder(first) if kind == "storage" else Scattered(first, seed, epoch)
    found = order.locate(0, order.rows)
    return order, [(row, 0) for row in (first[found.run] + found.place).tolist()]


def sorted_order(
    live: list[int], lengths: list[int], kind: str, batch: int, steps: int, groups: int = 1
) -> tuple[Bucketed, list[int]]:
    base, rows = base_of(live, kind, 7, 0)
    first = np.cumsum(live) - live
    items = row_items(first, np.array(live), None)
    found = Bucketed(
        base,
        items,
        np.array(lengths, np.uint32),
        first,
        Buckets(batch, steps, base.bands, groups),
        seed=7,
        epoch=0,
        lanes=4,
    )
    return found, bucketed(rows, lengths, batch, steps, 7, 0, list(range(groups)))


def rows_of(found: Any, live: list[int]) -> list[int]:
    return ((np.cumsum(live) - live)[found.run] + found.place).tolist()


def test_the_example_of_the_spec() -> None:
    order, expected = sorted_order(LIVE, LENGTHS, "lanes", 4, 3)
    assert rows_of(order.locate(0, 30), LIVE) == expected
    assert expected == SPEC


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=24),
    st.sampled_from(["lanes", "storage", "global"]),
    st.integers(1, 6),
    st.integers(2, 5),
    st.data(),
)
def test_any_places_are_those_that_the_spec_says(
    live: list[int], kind: str, batch: int, steps: int, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=sum(live), max_size=sum(live)))
    order, expected = sorted_order(live, lengths, kind, batch, steps)
    for _ in range(3):  # anywhere, also back
        start = data.draw(st.integers(0, sum(live)))
        stop = data.draw(st.integers(start, sum(live) + 3))
        found = order.locate(start, stop)
        assert rows_of(found, live) == expected[start:stop]
        assert found.position.tolist() == list(range(start, min(stop, sum(live))))


@given(
    st.lists(st.integers(1, 9), min_size=4, max_size=24),
    st.sampled_from([2, 4, 6]),
    st.integers(2, 5),
    st.data(),
)
def test_groups_of_bands_are_sorted_by_themselves(
    live: list[int], batch: int, steps: int, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=sum(live), max_size=sum(live)))
    order, expected = sorted_order(live, lengths, "lanes", batch, steps, groups=2)
    found = order.locate(0, sum(live))
    assert rows_of(found, live) == expected
    whole = sum(live) // (batch * steps) * steps
    even = (batch * steps) % 4 == 0
    bands = found.band[: whole * batch].reshape(-1, batch) if even else np.zeros((0, 2), int)
    assert (bands.sum(axis=1) * 2 == bands.shape[1]).all()


def test_ranks_read_few_runs_in_common() -> None:
    live = np.full(300, 100)
    first = np.cumsum(live) - live
    base = paired_lanes(live, seed=1, epoch=0, lanes=64, bands=32)
    lengths = np.random.default_rng(0).integers(0, 1000, 30_000).astype(np.uint32)
    buckets = buckets_of(32, 128, 32)
    items = row_items(first, live, None)
    read = []
    for rank in range(4):
        order = Bucketed(base, items, lengths, first, buckets, seed=1, epoch=0, lanes=64)
        found = stretches(order, live, Share(32, rank, 4), key=0, keep=False, stretch_rows=1 << 14)
        read += [run for stretch in found for run in stretch.opened.tolist()]
    assert buckets.groups == 4
    assert set(read) == set(range(300))
    # A block that is not whole, at the end, is shared in another way.
    assert len(read) < 1.4 * 300


@pytest.mark.parametrize(
    ("batch", "steps", "bands", "groups"),
    [(256, 64, 256, 16), (1024, 64, 1024, 64), (256, 64, 6, 2), (256, 64, 5, 1), (8, 64, 8, 1)],
)
def test_groups_leave_enough_to_sort(batch: int, steps: int, bands: int, groups: int) -> None:
    assert buckets_of(batch, steps, bands).groups == groups


@given(st.integers(1, 4), st.integers(1, 13), st.integers(0, 30))
def test_ranks_share_every_step_of_it(world: int, batch_size: int, start: int) -> None:
    _, expected = sorted_order(LIVE, LENGTHS, "lanes", 4, 3)
    shares = []
    for rank in range(world):
        order, _ = sorted_order(LIVE, LENGTHS, "lanes", 4, 3)
        share = Share(batch_size, rank, world, start)
        shares.append(shared_rows(order, share, start, min(start + batch_size, 30)))
    together = [row for share in shares for row in rows_of(share, LIVE)]
    assert sorted(together) == sorted(expected[start : start + batch_size])
    sizes = [share.run.size for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_band_is_looked_up_by_itself() -> None:
    order, _ = sorted_order(LIVE, LENGTHS, "lanes", 4, 3)
    every, one = order.locate(3, 25), order.locate(3, 25, range(1, 2))
    assert rows_of(one, LIVE) == rows_of(every.select(every.band == 1), LIVE)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11, 12])
def test_a_short_step_comes_last_and_may_have_any_length(rows: int) -> None:
    lengths = np.arange(rows, dtype=np.uint32)
    turns = [Buckets(4, 3).order(key, lengths, np.zeros(rows, int)) for key in range(40)]
    assert all(sorted(turn.tolist()) == list(range(rows)) for turn in turns)
    whole_steps = [turn[: rows // 4 * 4].reshape(-1, 4) for turn in turns]
    assert all((np.diff(step, axis=1) == 1).all() for step in whole_steps)


def test_the_order_of_steps_is_keyed() -> None:
    found = Buckets(2, 3).order(9, np.arange(6, dtype=np.uint32), np.zeros(6, int))
    assert found.reshape(3, 2)[:, 0].tolist() == (permutation(9, 3) * 2).tolist()


SPEC = [
    *[1, 4, 17, 27, 2, 5, 15, 28, 0, 26, 6, 29],
    *[9, 19, 12, 25, 18, 8, 24, 7, 20, 3, 23, 16],
    *[10, 13, 22, 21, 11, 14],
]
