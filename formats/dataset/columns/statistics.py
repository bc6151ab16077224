"""Which 8-byte keys order the values of a column?

A key is an unsigned number that orders like the values do: integers with the sign bit flipped,
floats in total order (as float64) without NaN, bools 0 and 1. Pages and columns carry the
smallest and the largest, so that readers skip what cannot match.

Source:
    docs/spec/dataset.md, section "Order keys".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dtypes import element_dtype, is_float, is_small_float

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SIGN = 1 << 63
_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Order keys of the smallest and largest value, nulls and NaN left out.

    `smallest` and `largest` are None where there is no value to speak of.
    """

    smallest: int | None
    largest: int | None
    has_nan: bool = False
    is_sorted: bool = False


NO_RANGE = Range(None, None)


def range_of(values: NDArray[Any], valid: NDArray[np.bool_] | None) -> Range:
    """The range of a column of scalars; none for types without an order (complex)."""
    if valid is not None:
        values = values[valid]
    if is_small_float(values.dtype):
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            values = values.astype(np.float32)
    kind = values.dtype.kind
    if kind == "c" or not len(values):
        return NO_RANGE
    ascending = len(values) < 2 or bool((values[1:] >= values[:-1]).all())
    if kind != "f":
        return Range(order_key(values.min()), order_key(values.max()), is_sorted=ascending)
    # Not by fmin: of a signalling NaN and a number it may keep the NaN.
    missing = np.isnan(values)
    has_nan = bool(missing.any())
    numbers = values[~missing] if has_nan else values
    if not len(numbers):
        return Range(None, None, has_nan=True)
    # Zeros of both signs are equal but differ in their bits: cover both.
    low, high = order_key(numbers.min() or -0.0), order_key(numbers.max() or 0.0)
    return Range(low, high, has_nan=has_nan, is_sorted=ascending)


def order_key(value: Any) -> int:
    """The key of one number or bool."""
    bits: int
    if isinstance(value, float | np.floating) or _is_small_float(value):
        (bits,) = unpack("<Q", pack("<d", float(value)))
        return (bits ^ _ALL) if bits & _SIGN else bits | _SIGN
    number: int = int(value)
    unsigned = isinstance(value, np.unsignedinteger | np.bool_ | bool)
    return number if unsigned else (number + _SIGN) & _ALL


def _is_small_float(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)  # such scalars are no np.floating
    return dtype is not None and is_small_float(dtype)


def value_of_key(key: int, dtype: str) -> int | float:
    """The number whose `order_key` this is, as a value of this element type."""
    element = element_dtype(dtype)
    if is_float(element):
        value: float
        (value,) = unpack("<d", pack("<Q", key ^ _SIGN if key & _SIGN else key ^ _ALL))
        return value
    return key - _SIGN if element.kind == "i" else key
