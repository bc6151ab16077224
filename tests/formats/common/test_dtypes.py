"""Names and codes of element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorrepo.formats.common.dtypes import (
    CODES,
    distinct,
    dtype_code,
    dtype_from_code,
    dtype_name,
    element_dtype,
    is_float,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError


@pytest.mark.parametrize("name", sorted(CODES))
def test_a_type_is_found_by_its_name_and_its_code(name: str) -> None:
    dtype = element_dtype(name)
    assert dtype_name(dtype) == name
    assert dtype_from_code(dtype_code(name)) == name
    assert dtype.byteorder in ("<", "=", "|")


@pytest.mark.parametrize(
    ("given", "name"), [(np.float32, "float32"), (">i4", "int32"), (bool, "bool")]
)
def test_numpys_ways_to_say_a_type_are_understood(given: Any, name: str) -> None:
    assert dtype_name(given) == name


@pytest.mark.parametrize(
    "given",
    ["float31", "object", "U5", "datetime64[s]", "float128", "i4,f4", ",loat32", "9" * 50 + "f4"],
)
def test_what_is_no_element_type_is_refused(given: str) -> None:
    with pytest.raises(InvalidInputError, match="known: bool, int8"):
        dtype_name(given)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_small_floats_are_known_by_their_dtype_and_their_class(name: str, order: Any) -> None:
    dtype = getattr(ml_dtypes, name)
    assert dtype_name(np.dtype(dtype).newbyteorder(order)) == name
    assert dtype_name(dtype) == name
    assert is_float(np.dtype(dtype))


@pytest.mark.parametrize("given", ["V2", "V1", ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.int4])
def test_what_only_looks_like_a_small_float_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="unknown element type"):
        dtype_name(given)


@pytest.mark.parametrize(("code", "error"), [(0, CorruptError), (18, UnsupportedError)])
def test_an_unknown_code_is_refused(code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        dtype_from_code(code)


@pytest.mark.parametrize("numbers", [[], [3], [5, -1, 5, 2, -1], list(range(100, 0, -1)) * 3])
def test_distinct_numbers_are_those_of_a_set(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
