"""Names and codes of element types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dtypes import (
    CODES,
    LATER,
    dtype_code,
    dtype_from_code,
    dtype_name,
    element_dtype,
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


@pytest.mark.parametrize("given", ["float31", "object", "U5", "datetime64[s]", "float128", "i4,f4"])
def test_what_is_no_element_type_is_refused(given: str) -> None:
    with pytest.raises(InvalidInputError, match="known: bool, int8"):
        dtype_name(given)


@pytest.mark.parametrize("name", sorted(LATER))
def test_planned_types_are_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(UnsupportedError, match="Store its bits"):
        dtype_name(name)


@pytest.mark.parametrize(("code", "error"), [(0, CorruptError), (15, UnsupportedError)])
def test_an_unknown_code_is_refused(code: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        dtype_from_code(code)
