"""Merged ranges cover what they stand for, in few requests of bounded size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.reading.exact_read import cost_of_rows
from tensorrepo.formats.dataset.reading.range_read import GAP_BYTES, merge_ranges

RANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300)), max_size=30)


@given(RANGES, st.integers(0, 200), st.integers(1, 1000))
def test_every_range_lies_in_the_merged_one_that_it_is_given(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([size for _, size in ranges], np.int64)
    begins, ends, of = merge_ranges(starts, stops, gap_bytes=gap, most_bytes=most)
    assert (begins[of] <= starts).all()
    assert (stops <= ends[of]).all()
    assert ((ends - begins <= most) | np.isin(ends - begins, stops - starts)).all()
    assert (np.diff(begins) >= 0).all()


def test_near_ranges_are_joined_and_far_ones_are_not() -> None:
    begins, ends, of = merge_ranges(
        np.array([500, 0, 110]), np.array([510, 100, 120]), gap_bytes=50
    )
    assert begins.tolist() == [0, 500]
    assert ends.tolist() == [120, 510]
    assert of.tolist() == [1, 0, 0]


def test_rows_close_together_cost_less_than_requests_of_their_own() -> None:
    rows = np.array([0, 1, 500, 900, 5000])
    cost = cost_of_rows(rows, np.array([0, 3]), np.array([1000.0, 10.0]))
    assert cost.tolist() == [2 * GAP_BYTES + 3000.0, GAP_BYTES + 10.0 + 41_000.0]
