"""Order keys order like the values do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.dtypes import CODES, SMALL_FLOATS, element_dtype
from tensorrepo.formats.dataset.schema.values import NO_RANGE, Range, order_key, range_of
from tests.support.builders.column_types import elements

ORDERED = sorted(name for name in CODES if not name.startswith("complex"))


@given(st.sampled_from(ORDERED), st.integers(0, 2**32), st.integers(1, 40))
@pytest.mark.filterwarnings("ignore:invalid value")  # NaNs that signal
def test_a_range_holds_the_key_of_every_value(dtype: str, seed: int, count: int) -> None:
    given = elements(element_dtype(dtype), (count,), np.random.default_rng(seed))
    plain = given.astype(np.float32) if dtype in SMALL_FLOATS else given
    found = range_of(given, None)
    numbers = plain[~np.isnan(plain)]
    assert found.has_nan == (len(numbers) < len(plain))
    assert (found.smallest is None) == (not len(numbers))
    for number in numbers:
        assert found.smallest <= order_key(number) <= found.largest  # type: ignore[operator]  # there is a number


@given(st.sampled_from(ORDERED), st.integers(0, 2**32))
@pytest.mark.filterwarnings("ignore:invalid value")  # NaNs that signal
def test_keys_order_like_the_values(dtype: str, seed: int) -> None:
    given = elements(element_dtype(dtype), (20,), np.random.default_rng(seed))
    given = given.astype(np.float32) if dtype in SMALL_FLOATS else given
    numbers = np.unique(given[~np.isnan(given)])
    keys = [order_key(number) for number in numbers]
    assert keys == sorted(keys)


@pytest.mark.parametrize("dtype", sorted(SMALL_FLOATS))
def test_small_floats_have_the_keys_of_the_numbers_that_they_are(dtype: str) -> None:
    given = np.array([3, -0.0, np.nan, -2], element_dtype(dtype))
    assert range_of(given, None) == Range(order_key(-2.0), order_key(3.0), has_nan=True)
    assert range_of(given[:1], None).is_sorted
    assert order_key(given[3]) == order_key(-2.0)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_nothing_but_nan_has_no_range(dtype: str) -> None:
    given = np.array([np.nan], element_dtype(dtype))
    assert range_of(given, None) == Range(None, None, has_nan=True)


def test_nulls_are_left_out() -> None:
    given = np.array([9, 1, 2], np.int8)
    valid = np.array([False, True, True])
    assert range_of(given, valid) == Range(
        order_key(np.int8(1)), order_key(np.int8(2)), False, True
    )
    assert range_of(given, np.zeros(3, np.bool_)) == NO_RANGE


def test_a_zero_covers_both_signs() -> None:
    assert range_of(np.array([0.0]), None) == range_of(np.array([-0.0]), None)


def test_complex_numbers_have_no_order() -> None:
    assert range_of(np.array([1j]), None) == NO_RANGE


@pytest.mark.parametrize("place", range(9))
def test_a_signalling_nan_hides_no_value(place: int) -> None:
    values = np.arange(1, 10, dtype=np.float32)
    values.view(np.uint32)[place] = 0x7F800001
    found = range_of(values, None)
    numbers = values[~np.isnan(values)]
    assert (found.smallest, found.largest) == (order_key(numbers[0]), order_key(numbers[-1]))
    assert found.has_nan
