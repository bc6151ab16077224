"""Items: what an order counts, and how it is numbered again afterwards."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.streaming.order.items import (
    EveryRow,
    RowSelection,
    Weights,
    counts_of,
    given_weights,
    placed,
    row_items,
)
from tensorrepo.formats.dataset.streaming.order.orders import paired_lanes
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import Share, stretches
from tests.support.second_readers.items import line_of, weighted
from tests.support.second_readers.order import Lanes

LIVE = [3, 5, 2, 4, 6, 1, 5, 4]


def firsts(live: list[int]) -> np.ndarray:
    return np.cumsum(live) - live


def test_a_plan_without_a_selection_has_its_rows_as_items() -> None:
    items = row_items(firsts(LIVE), np.array(LIVE), None)
    assert items.runs.tolist() == list(range(8))
    assert items.counts.tolist() == LIVE
    assert items.rows(np.array([4, 0]), np.array([5, 2])).tolist() == [5, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=24), st.data())
def test_the_items_of_a_run_are_its_rows_as_often_as_they_come(
    live: list[int], data: st.DataObject
) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=sum(live), max_size=sum(live)))
    items = row_items(
        firsts(live), np.array(live), counts_of(sum(live), 3, [np.array(counts, np.uint64)])
    )
    lines = line_of(live, counts)
    kept = [run for run, line in enumerate(lines) if line]
    assert items.runs.tolist() == kept
    assert items.counts.tolist() == [len(lines[run]) for run in kept]
    run = np.repeat(np.arange(len(kept)), items.counts)
    item = np.concatenate([np.arange(0), *(np.arange(count) for count in items.counts)])
    rows = items.rows(run, item) + firsts(live)[items.runs[run]]
    assert rows.tolist() == [row for line in lines for row in line]


def test_the_example_of_a_view_in_the_spec() -> None:
    view = bits_of(30, [np.arange(0, 30, 3)])
    items = row_items(firsts(LIVE), np.array(LIVE), view)
    order = paired_lanes(items.counts, seed=7, epoch=0, lanes=4, bands=2)
    found = stretches(order, items.counts, Share(10), key=epoch_key(7, 0, Purpose.ROWS), keep=False)
    stretch = placed(next(found), items)
    pairs = zip(stretch.run.tolist(), stretch.row.tolist(), strict=True)
    assert " ".join(f"{run}.{row}" for run, row in pairs) == (
        "0.0 3.2 1.3 4.1 6.3 4.4 1.0 2.1 6.0 7.1"
    )
    assert sorted(stretch.opened.tolist()) == [0, 1, 2, 3, 4, 6, 7]
    assert sorted(stretch.closed.tolist()) == [0, 1, 2, 3, 4, 6, 7]


def test_the_reference_agrees_with_the_example() -> None:
    lines = line_of(LIVE, [int(row % 3 == 0) for row in range(30)])
    kept = [run for run, line in enumerate(lines) if line]
    pairs = Lanes([len(lines[run]) for run in kept], 7, 0, 4, 2).sequence()
    rows = [lines[kept[run]][item] - int(firsts(LIVE)[kept[run]]) for run, item in pairs]
    assert rows == [0, 2, 3, 1, 3, 4, 0, 1, 0, 1]


def test_the_examples_of_weights_in_the_spec() -> None:
    half, more = np.full(16, 0.5), np.full(16, 1.25)
    expected = [1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert given_weights(half, None, None).counts(7, 0).counts(0, 16).tolist() == expected
    assert weighted([1 << 31] * 16, 7, 0) == expected
    expected = [1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert given_weights(more, None, None).counts(7, 0).counts(0, 16).tolist() == expected


def test_the_digest_is_of_the_rows_however_they_were_named() -> None:
    one = RowSelection(bits_of(100, [np.arange(0, 100, 3)]), None, "every third")
    two = RowSelection(bits_of(100, [np.array([99, 0]), np.arange(3, 99, 3)]), None, "others")
    assert one.digest == two.digest
    bitmap = sum(1 << row for row in range(0, 100, 3)).to_bytes(13, "little")
    said = b"tensorrepo selection v1 rows" + (100).to_bytes(8, "little") + bitmap
    assert one.digest == hashlib.sha256(said).hexdigest()


def test_the_digest_is_of_the_weights_however_they_are_kept() -> None:
    kind = np.array([0, 1, 1, 0], np.uint8)
    units = np.array([1 << 31, 3 << 32], np.uint64)
    one = RowSelection(EveryRow(4), Weights(units, kind), "")
    two = RowSelection(EveryRow(4), Weights(units[kind]), "")
    other = RowSelection(EveryRow(4), Weights(units[1 - kind]), "")
    assert one.digest == two.digest
    assert one.digest != other.digest
    said = b"tensorrepo selection v1 weights" + (4).to_bytes(8, "little")
    each = b"".join(int(units[at]).to_bytes(8, "little") for at in kind)
    assert one.digest == hashlib.sha256(said + each).hexdigest()


def test_the_counts_of_the_newest_epoch_are_kept() -> None:
    found = RowSelection(EveryRow(100), given_weights(np.full(100, 0.5), None, None), "")
    first = found.choice(0, 0)
    assert found.choice(0, 0) is first
    assert found.choice(0, 1) is not first
    assert found.expected_rows == 50
    assert row_items(np.array([0]), np.array([100]), first).total == first.total
