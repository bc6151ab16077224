"""Which bits of an element type come nearest to these numbers?

The way back from `values`: to the nearest value, ties to even, by integer and table arithmetic
alone, so that every machine finds the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.values import numbers
from tensorrepo.formats.tensors import TYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorType

_PLAIN: Final = ("F64", "F32", "F16", "C128", "C64")
_SMALL: Final = ("F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
ROUNDABLE: Final = frozenset({*_PLAIN, *_SMALL, "BF16", "C32"})
_QUIET_NAN: Final = 0x7FC0


def rounded(values: NDArray[Any], element: TensorType) -> NDArray[np.uint8]:
    """The bytes of elements that are nearest to `values` (float64 or complex128).

    A finite number that is too large becomes infinite, except in 8 bits: there it becomes the
    largest number, as does infinity where the type has none.

    Raises:
        KeyError: not one of `ROUNDABLE`.
    """
    if element.name not in ROUNDABLE:
        raise KeyError(element.name)
    if element.name in _SMALL:
        return _small(values, element.name)
    with np.errstate(over="ignore", invalid="ignore"):
        if element.name == "BF16":
            return _bfloat(values).view(np.uint8)
        if element.name == "C32":
            return np.ascontiguousarray(values).view(np.float64).astype("<f2").view(np.uint8)
        return values.astype(element.numpy).view(np.uint8)


def _bfloat(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    # By way of float32, but rounded to odd: rounding to the nearest twice would miss some ties.
    single = values.astype("<f4")
    bits = single.view("<u4").copy()
    wide = single.astype(np.float64)
    inexact = wide != values
    bits -= (inexact & (np.abs(wide) > np.abs(values))).astype("<u4")
    bits |= inexact.astype("<u4")
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), _QUIET_NAN, nearest).astype("<u2")


def _small(values: NDArray[np.float64], name: str) -> NDArray[np.uint8]:
    table, middles, nan = _table(name)
    size = np.abs(values)
    code = np.searchsorted(middles, size, side="left")
    tie = (code < len(middles)) & (middles[np.minimum(code, len(middles) - 1)] == size)
    code += tie & (code & 1 == 1)
    code = np.minimum(code, len(table) - 1)
    if name == "F8_E5M2":
        code = np.where(np.isinf(values), len(table), code)  # the only one with infinities
    signed = code | np.where(np.signbit(values), 128, 0)
    if name.endswith("FNUZ"):
        signed = np.where(code == 0, 0, signed)  # these have no negative zero: 128 is NaN
    return np.where(np.isnan(values), nan, signed).astype(np.uint8)


@cache
def _table(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """The finite values from zero up by code, the middles between them, and the code of a NaN."""
    every = numbers(np.arange(256, dtype=np.uint8).data, TYPES[name])
    assert every is not None, "a small float is a number"
    finite = every[:128][np.isfinite(every[:128])]
    nan = int(np.flatnonzero(np.isnan(every))[0])
    return finite, (finite[1:] + finite[:-1]) / 2, nan
