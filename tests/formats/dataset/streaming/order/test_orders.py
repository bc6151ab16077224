"""The order of an epoch: its test vectors, its promises, and random access to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.orders import (
    Buffered,
    PairedLanes,
    RowOrder,
    Scattered,
    choose_lanes,
    paired_lanes,
)
from tests.support.builders.streams import row_at
from tests.support.second_readers import order as reference

EXAMPLE = (
    "0.1 7.3 1.2 7.0 0.0 7.2 1.1 4.3 1.3 4.1 0.2 7.1 5.0 4.2 1.4 6.3 1.0 4.4 2.1 6.2 "
    "3.2 4.5 2.0 6.4 3.3 4.0 3.0 6.0 3.1 6.1"
)


@st.composite
def orders(draw: st.DrawFn) -> PairedLanes:
    """Any order: pages of one row, few rows, more lanes than rows, unequal runs."""
    live = draw(st.lists(st.integers(1, 9), min_size=1, max_size=24))
    bands = draw(st.integers(1, 8))
    per_band = draw(st.integers(1, 5)) * (2 if bands % 2 else 1)
    seed, epoch = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 5))
    return paired_lanes(np.array(live), seed=seed, epoch=epoch, lanes=bands * per_band, bands=bands)


def sequence(order: PairedLanes) -> list[tuple[int, int]]:
    return [row_at(order, position) for position in range(order.rows)]


def as_reference(order: PairedLanes) -> reference.Lanes:
    return reference.Lanes(order.live.tolist(), order.seed, order.epoch, order.lanes, order.bands)


def test_the_specs_example_comes_out_row_by_row() -> None:
    order = paired_lanes(np.array([3, 5, 2, 4, 6, 1, 5, 4]), seed=7, epoch=0, lanes=4, bands=2)
    assert " ".join(f"{run}.{row}" for run, row in sequence(order)) == EXAMPLE


@given(orders())
def test_an_order_is_that_of_the_spec(order: PairedLanes) -> None:
    assert sequence(order) == as_reference(order).sequence()


@given(orders())
def test_every_row_comes_exactly_once(order: PairedLanes) -> None:
    found = order.locate(0, order.rows)
    expected = [(run, place) for run, rows in enumerate(order.live) for place in range(rows)]
    assert sorted(zip(found.run.tolist(), found.place.tolist(), strict=True)) == expected


@given(orders(), st.data())
def test_any_stretch_is_found_without_what_comes_before(
    order: PairedLanes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, order.rows))
    stop = data.draw(st.integers(start, order.rows + 3))
    whole, part = order.locate(0, order.rows), order.locate(start, stop)
    assert part.position.tolist() == list(range(start, min(stop, order.rows)))
    assert part.run.tolist() == whole.run[start:stop].tolist()
    assert part.place.tolist() == whole.place[start:stop].tolist()
    assert part.band.tolist() == whole.band[start:stop].tolist()


@given(orders(), st.data())
def test_the_rows_of_some_bands_are_found_without_the_others(
    order: PairedLanes, data: st.DataObject
) -> None:
    low = data.draw(st.integers(0, order.bands - 1))
    bands = range(low, data.draw(st.integers(low + 1, order.bands)))
    whole = order.locate(0, order.rows)
    mine = whole.select((whole.band >= bands.start) & (whole.band < bands.stop))
    part = order.locate(0, order.rows, bands)
    assert part.position.tolist() == mine.position.tolist()
    assert part.run.tolist() == mine.run.tolist()
    assert part.place.tolist() == mine.place.tolist()


@given(orders())
def test_neighbouring_positions_of_a_block_are_of_different_bands(order: PairedLanes) -> None:
    found = order.locate(0, order.rows // order.lanes * order.lanes)
    in_rows_of_bands = found.band.reshape(-1, order.bands)
    assert np.array_equal(
        np.sort(in_rows_of_bands, axis=1),
        np.broadcast_to(np.arange(order.bands), in_rows_of_bands.shape),
    )


@given(orders())
def test_rings_are_of_one_size(order: PairedLanes) -> None:
    sizes = np.diff(order.cut)
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.sum()) == order.rows


def test_another_epoch_or_seed_is_another_order() -> None:
    live = np.full(40, 25)
    first, epoch, seed = (
        paired_lanes(live, seed=seed, epoch=epoch, lanes=8, bands=4).locate(0, 1000)
        for seed, epoch in ((3, 0), (3, 1), (4, 0))
    )
    assert first.run.tolist() != epoch.run.tolist() != seed.run.tolist() != first.run.tolist()


def resident(order: PairedLanes) -> np.ndarray:
    """Runs open at each position: from the first row of a run to its last."""
    found = order.locate(0, order.rows)
    opened = np.full(order.live.size, order.rows)
    np.minimum.at(opened, found.run, found.position)
    closed = np.zeros(order.live.size, dtype=np.int64)
    np.maximum.at(closed, found.run, found.position)
    change = np.bincount(opened, minlength=order.rows + 1)
    change -= np.bincount(closed + 1, minlength=order.rows + 1)
    return np.cumsum(change)


@pytest.mark.parametrize("seed", range(3))
def test_about_as_many_runs_are_resident_as_there_are_lanes(seed: int) -> None:
    order = paired_lanes(np.full(2000, 500), seed=seed, epoch=0, lanes=256, bands=256)
    assert resident(order).max() <= 256 + 4


@pytest.mark.parametrize("seed", range(3))
def test_new_runs_come_evenly(seed: int) -> None:
    order = paired_lanes(np.full(2000, 500), seed=seed, epoch=0, lanes=256, bands=256)
    found = order.locate(0, order.rows)
    opened = np.full(2000, order.rows)
    np.minimum.at(opened, found.run, found.position)
    quarter = 500 * 256 // 4
    inner = np.bincount(opened // quarter)[4:-4]
    assert inner.min() >= 43
    assert inner.max() <= 81


def test_a_batch_has_as_many_runs_as_rows_away_from_the_ends() -> None:
    order = paired_lanes(np.full(2000, 500), seed=1, epoch=0, lanes=256, bands=256)
    middle = order.locate(300 * 256, 3000 * 256).run.reshape(-1, 256)
    distinct = (np.diff(np.sort(middle, axis=1), axis=1) > 0).sum(axis=1) + 1
    assert distinct.min() >= 254
    assert np.unique(order.locate(0, 256).run).size == 256 // 2 + 1


@pytest.mark.parametrize(
    ("window_bytes", "run_bytes", "batch_size", "expected"),
    [
        (512 << 20, 1 << 20, 256, (512, 256)),
        (512 << 20, 256 << 10, 256, (2048, 256)),
        (512 << 20, 1 << 20, 1000, (500, 500)),
        (512 << 20, 1 << 20, 513, (512, 512)),  # no even divisor
        (10, 1, 3, (6, 3)),  # three lanes a band would be odd
        (8, 1, 5, (8, 8)),  # one lane a band would be odd
        (7, 1, 1, (6, 1)),
        (1, 1 << 20, 256, (2, 2)),
        (1, 1 << 20, 1, (2, 1)),
    ],
)
def test_lanes_follow_the_window_and_bands_the_batch(
    window_bytes: int, run_bytes: int, batch_size: int, expected: tuple[int, int]
) -> None:
    assert choose_lanes(window_bytes, run_bytes, batch_size) == expected


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_lanes_are_even_fit_the_window_and_divide_into_bands(window: int, batch: int) -> None:
    lanes, bands = choose_lanes(window, 1, batch)
    assert lanes % 2 == 0
    assert lanes % bands == 0
    assert lanes <= max(2, window)
    assert lanes * 2 > window - 1 or batch > 1


@pytest.mark.parametrize(("lanes", "bands"), [(3, 1), (0, 1), (4, 3), (4, 0)])
def test_odd_lanes_and_bands_that_do_not_divide_are_refused(lanes: int, bands: int) -> None:
    with pytest.raises(ValueError, match="even lanes"):
        paired_lanes(np.array([5]), seed=0, epoch=0, lanes=lanes, bands=bands)


def test_runs_without_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="runs that have rows"):
        paired_lanes(np.array([5, 0]), seed=0, epoch=0, lanes=2, bands=1)


START = np.array([0, 4, 5, 11, 20])


def rows_of(order: RowOrder) -> list[int]:
    found = order.locate(0, order.rows)
    return (START[found.run] + found.place).tolist()


def test_the_global_order_covers_all_runs() -> None:
    rows = rows_of(Scattered(START, 5, 0))
    assert sorted(rows) == list(range(20))
    assert rows != list(range(20))


def test_storage_order_is_storage_order() -> None:
    assert rows_of(RowOrder(START)) == list(range(20))


def test_a_buffer_is_shuffled_inside_its_windows_only() -> None:
    rows = rows_of(Buffered(START, 5, 0, 8))
    assert [sorted(rows[i : i + 8]) for i in (0, 8, 16)] == [
        list(range(8)), list(range(8, 16)), list(range(16, 20)),
    ]  # fmt: skip
    assert rows != list(range(20))


@given(st.integers(0, 20), st.integers(0, 25))
def test_a_buffers_stretch_is_found_without_what_comes_before(start: int, stop: int) -> None:
    order = Buffered(START, 5, 2, 6)
    whole, part = order.locate(0, 20), order.locate(start, stop)
    assert part.run.tolist() == whole.run[start:stop].tolist()
    assert part.place.tolist() == whole.place[start:stop].tolist()
