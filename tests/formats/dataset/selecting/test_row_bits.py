"""Row bitmaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.selecting.row_bits import bits_of


@given(st.lists(st.sets(st.integers(0, 99)), max_size=3))
def test_a_bitmap_names_each_row_that_some_array_names_once(pieces: list[set[int]]) -> None:
    arrays = [np.array(sorted(piece), np.int64) for piece in pieces]
    assert bits_of(100, arrays).numbers().tolist() == sorted(set().union(*pieces))


@pytest.mark.parametrize("rows", [0, 1, 8, (1 << 16) - 1, 1 << 16, (1 << 16) + 9])
def test_all_rows_come_back(rows: int) -> None:
    bits = bits_of(rows, [np.arange(rows)])
    assert np.array_equal(bits.numbers(), np.arange(rows))
