"""Packed items: so many elements of a run's rows, one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.items import (
    Packing,
    counts_of,
    packed_items,
)
from tests.support.second_readers.items import line_of, packed

NONE = np.zeros(0, np.int64)


def firsts(live: list[int]) -> np.ndarray:
    return np.cumsum(live) - live


def test_pages_tell_how_many_items_runs_have() -> None:
    packing = Packing(4, None, np.array([9, 0, 4, 5, 1]))
    items = packed_items(packing, np.array([0, 1, 2, 3]), firsts([2] * 4), np.full(4, 2), None)
    assert items.runs.tolist() == [0, 2, 3]
    assert items.counts.tolist() == [3, 1, 2]
    assert items.elements.tolist() == [9, 0, 4, 5]
    assert (items.total, items.filled) == (6, 18)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=24), st.integers(1, 12), st.data())
def test_rows_tell_it_where_they_were_chosen(
    live: list[int], size: int, data: st.DataObject
) -> None:
    rows = sum(live)
    counts = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
    packing = Packing(size, np.array(lengths, np.uint32), NONE)
    choice = counts_of(rows, 3, [np.array(counts, np.uint64)])
    items = packed_items(packing, np.arange(len(live)), firsts(live), np.array(live), choice)
    lines = line_of(live, counts)
    assert items.total == len(packed(lines, lengths, size))
    elements = [sum(lengths[row] for row in line) for line in lines]
    assert items.runs.tolist() == [run for run, count in enumerate(elements) if count]
    assert items.elements.tolist() == elements


def test_the_example_of_the_spec() -> None:
    assert packed(line_of([2, 3], [1] * 5), [3, 1, 0, 4, 2], 4) == [
        [0, 0, 0, 1],
        [3, 3, 3, 3],
        [4, 4],
    ]


def test_elements_are_added_up_for_some_rows_at_a_time() -> None:
    live = np.array([1 << 19, 3, 1 << 20, 5])
    lengths = np.ones(int(live.sum()), np.uint32)
    packing = Packing(1000, lengths, NONE)
    items = packed_items(packing, np.arange(4), np.cumsum(live) - live, live, None)
    assert items.elements.tolist() == live.tolist()
