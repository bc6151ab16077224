"""Element types of datasets: names, codes and numpy types.

A stored element is little-endian; a bool takes a byte, 0 or 1. Names are numpy's and those of
ml_dtypes, codes are what stored formats say, and never change.

Source:
    docs/spec/dataset.md, section "Element types".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

DTypeLike = str | np.dtype[Any] | type
Ints = NDArray[np.int64]  # row numbers, offsets, counts
Bools = NDArray[np.bool_]  # whether each row, or page, is one of some kind
_N = TypeVar("_N", bound=np.integer[Any])

_CODED: Final = (  # the first has code 1
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
CODES: Final = {name: code for code, name in enumerate(_CODED, 1)}
# What numpy raises for words that are no dtype; it takes those with a comma for a record's.
NOT_A_DTYPE: Final = (TypeError, ValueError, SyntaxError)
_NAMES: Final = {code: name for name, code in CODES.items()}
# Their `dtype.kind` is "V" or "f", and their scalars are no np.floating: ask `is_float`.
SMALL_FLOATS: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(getattr(ml_dtypes, name)) for name in _CODED[14:]
}


@lru_cache(maxsize=len(CODES))  # asked several times for each page
def element_dtype(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype of a stored element type. Raises InvalidInputError."""
    if name in SMALL_FLOATS:
        return SMALL_FLOATS[name]
    if name not in CODES:
        raise InvalidInputError(f"unknown element type {name!r}; known: {', '.join(CODES)}")
    return np.dtype(name).newbyteorder("<")


@lru_cache(maxsize=64)  # numpy makes a name in Python, and batches ask this of every array
def is_small_float(dtype: np.dtype[Any]) -> bool:
    """Whether this is bfloat16 or a float of 8 bits, of either byte order: Arrow has none."""
    return dtype.name in SMALL_FLOATS


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether elements are real floating-point numbers of any width."""
    return dtype.kind == "f" or is_small_float(dtype)


def dtype_name(dtype: DTypeLike) -> str:
    """Name of an element type given as a name, a numpy dtype or a numpy scalar class.

    Raises:
        InvalidInputError: not an element type (objects, strings, records, ...).
    """
    if isinstance(dtype, str) and dtype in CODES:
        return dtype
    try:
        name = str(np.dtype(dtype).name)
    except NOT_A_DTYPE as error:
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


def distinct(numbers: NDArray[_N]) -> NDArray[_N]:
    """Numbers that are there, each once, the smallest first: `np.unique` of whole ones.

    That one loads `numpy.ma`, in 20 ms of the first epoch of a process, and takes five times as
    long for few numbers.
    """
    found = np.sort(numbers, axis=None)
    first = np.ones(found.size, np.bool_)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]
