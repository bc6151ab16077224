"""Row bitmaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.selecting.select_rows import RowBitmap


@given(st.lists(st.sets(st.integers(0, 99)), max_size=3))
def test_a_bitmap_names_each_row_that_some_array_names_once(pieces: list[set[int]]) -> None:
    arrays = [np.array(sorted(piece), np.int64) for piece in pieces]
    bitmap = RowBitmap.of(100, arrays, "some")
    assert np.concatenate(list(bitmap.numbers())).tolist() == sorted(set().union(*pieces))


@pytest.mark.parametrize("rows", [0, 1, 8, (1 << 20) - 1, 1 << 20, (1 << 20) + 9])
def test_all_rows_come_back_in_pieces(rows: int) -> None:
    bitmap = RowBitmap.of(rows, [np.arange(rows)], "true")
    assert len(bitmap.bits) == -(-rows // 8)
    assert np.array_equal(np.concatenate(list(bitmap.numbers())), np.arange(rows))
