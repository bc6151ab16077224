"""Items of chosen rows: how many lie before a row, and which row an item is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.selecting.row_bits import bits_of, both
from tensorrepo.formats.dataset.streaming.order.items import EveryRow, RowChoice, counts_of

COUNTS = st.lists(st.integers(0, 300), max_size=400)


def chosen_rows(mask: list[bool]) -> RowChoice:
    return bits_of(len(mask), [np.flatnonzero(mask)])


def counted_rows(counts: list[int]) -> RowChoice:
    pieces = [
        np.array(counts[start : start + 50], np.uint64) for start in range(0, len(counts), 50)
    ]
    return counts_of(len(counts), max(counts, default=0), pieces)


def check(choice: RowChoice, counts: list[int]) -> None:
    """Rank and select of all rows and items, against the line of items spelt out."""
    line = np.repeat(np.arange(len(counts)), counts)
    ends = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    assert choice.total == len(line)
    assert choice.before(np.arange(len(counts) + 1)).tolist() == ends.tolist()
    assert choice.row_of(np.arange(len(line))).tolist() == line.tolist()
    assert choice.counts(0, len(counts)).tolist() == counts


@given(st.lists(st.booleans(), max_size=400))
def test_a_bitmap_knows_its_items(mask: list[bool]) -> None:
    check(chosen_rows(mask), [int(each) for each in mask])


@given(COUNTS)
def test_counts_know_their_items(counts: list[int]) -> None:
    check(counted_rows(counts), counts)


@given(st.lists(st.booleans(), max_size=200), st.data())
def test_a_part_of_the_rows_is_counted_alone(mask: list[bool], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(mask)))
    stop = data.draw(st.integers(start, len(mask)))
    assert chosen_rows(mask).counts(start, stop).tolist() == mask[start:stop]


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 128])
def test_every_row_is_what_a_full_bitmap_is(rows: int) -> None:
    check(EveryRow(rows), [1] * rows)
    check(chosen_rows([True] * rows), [1] * rows)


def test_a_row_that_comes_very_often_is_counted() -> None:
    choice = counted_rows([0, 1 << 20, 0, 3])
    assert choice.total == (1 << 20) + 3
    assert choice.row_of(np.array([0, (1 << 20) - 1, 1 << 20])).tolist() == [1, 1, 3]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=200))
def test_rows_of_both_are_those_in_each(pairs: list[tuple[bool, bool]]) -> None:
    one, two = (bits_of(len(pairs), [np.flatnonzero(each)]) for each in _columns(pairs))
    assert both(one, two).counts(0, len(pairs)).tolist() == [a and b for a, b in pairs]


def _columns(pairs: list[tuple[bool, bool]]) -> list[list[bool]]:
    return [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]


def test_a_row_named_twice_is_chosen_once() -> None:
    assert bits_of(10, [np.array([3, 3]), np.array([3, 7])]).counts(0, 10).tolist() == [
        *[0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    ]
