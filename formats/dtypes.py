"""Which element types can be stored, under which name and code?

A stored element is little-endian; a bool takes a byte, 0 or 1. Names are numpy's, codes are what
stored formats say, and never change.

Source:
    docs/spec/dataset.md, section "Element types".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

DTypeLike = str | np.dtype[Any] | type

CODES: Final = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "complex64": 13,
    "complex128": 14,
}
# Codes kept free for types that numpy lacks: 15 bfloat16, 16 float8_e4m3fn, 17 float8_e5m2.
LATER: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_NAMES: Final = {code: name for name, code in CODES.items()}


def element_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of a stored element type.

    Raises:
        InvalidInputError: no such type.
        UnsupportedError: a type that is planned but cannot be stored yet.
    """
    if name in LATER:
        raise UnsupportedError(
            f"datasets cannot store {name} yet. Store its bits as uint8 or uint16, or use float32."
        )
    if name not in CODES:
        raise InvalidInputError(f"unknown element type {name!r}; known: {', '.join(CODES)}")
    return np.dtype(name).newbyteorder("<")


def dtype_name(dtype: DTypeLike) -> str:
    """Name of an element type given as a name, a numpy dtype or a numpy scalar class.

    Raises:
        InvalidInputError: not an element type (objects, strings, records, ...).
        UnsupportedError: a type that is planned but cannot be stored yet.
    """
    if isinstance(dtype, str) and dtype in LATER:
        element_dtype(dtype)
    try:
        name = str(np.dtype(dtype).name)
    except TypeError as error:
        raise InvalidInputError(
            f"unknown element type {dtype!r}; known: {', '.join(CODES)}"
        ) from error
    element_dtype(name)
    return name


def dtype_code(name: str) -> int:
    return CODES[dtype_name(name)]


def dtype_from_code(code: int) -> str:
    """Name of the element type with this stored code.

    Raises:
        UnsupportedError: a code of a newer version.
        CorruptError: a code that no version gives.
    """
    if code in _NAMES:
        return _NAMES[code]
    if code == 0:
        raise CorruptError("element type code 0 stands for no type")
    raise UnsupportedError(f"element type code {code} is unknown here. Update tensorrepo.")
