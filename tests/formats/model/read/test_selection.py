from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.model.read.selection import row_numbers, select
from tensorrepo.repo.errors import InvalidInputError


def gathered(array: Any, index: Any, frame_items: int) -> Any:
    """`array[index]`, put together from the frames that the selection asks for."""
    selection = select(array.shape, index)
    flat, out = array.reshape(-1), np.empty(selection.items, array.dtype)
    for number in selection.frames(frame_items):
        start = number * frame_items
        selection.copy(flat[start : start + frame_items], start, out)
    return out.reshape(selection.shape)


def forward(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(part, slice) or (part.step or 1) > 0 for part in parts)


@given(st.data(), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
def test_any_basic_index_selects_what_numpy_selects(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    array = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    index = data.draw(arrays.basic_indices(shape).filter(forward))
    frame_items = data.draw(st.integers(1, 40))
    assert np.array_equal(gathered(array, index, frame_items), array[index])


@given(st.data(), arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9))
def test_rows_by_number_are_those_that_numpy_takes(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    array = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    ids = data.draw(
        arrays.arrays(np.int8, arrays.array_shapes(min_dims=0, min_side=0, max_side=6),
                      elements=st.integers(-shape[0], shape[0] - 1))
    )  # fmt: skip
    frame_items = data.draw(st.integers(1, 40))
    assert np.array_equal(gathered(array, row_numbers(shape, ids), frame_items), array[ids])


def test_rows_need_the_frames_that_hold_them_once_each() -> None:
    rows = row_numbers((10, 100), [9, -1, 0, 5, 9])
    assert select((10, 100), rows).frames(250) == [0, 2, 3]


@pytest.mark.parametrize(
    ("shape", "ids", "told"),
    [
        ((10, 2), [3, 10], r"row 10 \(number 1 of those asked for\): it has 10 rows"),
        ((10, 2), [-11], "row -11"),
        ((10, 2), np.array([1 << 63], np.uint64), "row 9223372036854775808"),
        ((10, 2), [1.0], "found float64 in list"),
        ((10, 2), [True], "found bool"),
        ((10, 2), "ab", "found str"),
        ((10, 2), [[1], [2, 3]], "ids: "),
        ((), [0], "no rows"),
    ],
)
def test_what_numbers_no_row_is_refused(shape: tuple[int, ...], ids: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        row_numbers(shape, ids)


def test_long_runs_are_copied_across_frames() -> None:
    array = np.arange(4000).reshape(4, 1000)
    assert np.array_equal(gathered(array, (slice(1, 4), slice(3, 990)), 700), array[1:4, 3:990])


def test_only_the_frames_that_it_touches_are_asked_for() -> None:
    assert select((10, 100), (slice(None), slice(0, 5))).frames(250) == [0, 1, 2, 3]
    assert select((10, 100), slice(5, 6)).frames(250) == [2]
    assert select((10, 100), slice(5, 5)).frames(250) == []


@pytest.mark.parametrize(
    "index",
    [
        10,
        -11,
        (0, 0, 0),
        (..., ...),
        slice(None, None, -1),
        slice("a"),
        [1, 2],
        None,
        True,
        np.array([True] * 10),
        1.0,
    ],
    ids=repr,
)
def test_what_is_no_basic_index_is_refused(index: Any) -> None:
    with pytest.raises(InvalidInputError):
        select((10, 100), index)


def test_blocks_are_not_cut() -> None:
    assert select((4, 8), (slice(None), slice(2, 6))).in_blocks(2).run == 2
    with pytest.raises(InvalidInputError, match="2 elements"):
        select((4, 8), (slice(None), slice(1, 5))).in_blocks(2)
