"""Numeric values of element types: decoding of bits, and rounding to the nearest value.

For differences, norms and blends only: models are stored and compared bit by bit. Rounding goes to
the nearest value, ties to even, by integer arithmetic alone, so that every machine finds the same
bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import ML_DTYPES, TensorReader, TensorType


def numbers(data: memoryview, element: TensorType) -> NDArray[Any] | None:
    """The elements of whole blocks as float64 or complex128; None for no numbers (OPAQUE)."""
    if element.numpy is not None:
        plain = np.frombuffer(data, element.numpy)
        with np.errstate(invalid="ignore"):  # signalling NaN
            return plain.astype(np.complex128 if plain.dtype.kind == "c" else np.float64)
    if element.name == "BF16":
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        with np.errstate(invalid="ignore"):  # signalling NaN
            return wide.view("<f4").astype(np.float64)
    if element.name == "C32":
        return np.frombuffer(data, "<f2").astype(np.float64).view(np.complex128)
    if element.name == "F4":
        packed = np.frombuffer(data, np.uint8)
        pairs = np.stack((packed & 15, packed >> 4), axis=-1)
        return _FP4[pairs.reshape(-1)].astype(np.float64)
    if element.name in ML_DTYPES:
        return _small_floats(element.name)[np.frombuffer(data, np.uint8)]
    return None


def read_numbers(tensor: TensorReader, start_byte: int, size_bytes: int) -> NDArray[Any] | None:
    """Numbers of a stretch of a tensor, as `numbers` gives them."""
    data = np.empty(size_bytes, np.uint8).data
    tensor.read_into(start_byte, data)
    return numbers(data, tensor.type)


_FP4: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@cache
def _small_floats(name: str) -> NDArray[np.float64]:
    """The value of each of the 256 bit patterns."""
    return np.arange(256, dtype=np.uint8).view(_small_type(name)).astype(np.float64)


def _small_type(name: str) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
    return kind


_PLAIN: Final = ("F64", "F32", "F16", "C128", "C64")
_SMALL: Final = {"F8_E5M2": 0x7D, "F8_E4M3": 0x7F, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}  # NaN
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


def _odd(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """As float32, rounded to odd: rounding that to the nearest is as rounding once."""
    single = values.astype("<f4")
    bits = single.view("<u4").copy()
    wide = single.astype(np.float64)
    inexact = wide != values
    bits -= (inexact & (np.abs(wide) > np.abs(values))).astype("<u4")
    bits |= inexact.astype("<u4")
    return bits.view("<f4")


def _bfloat(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    bits = _odd(values).view("<u4")
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), _QUIET_NAN, nearest).astype("<u2")


def _small(values: NDArray[np.float64], name: str) -> NDArray[np.uint8]:
    kind, table = _small_type(name), _small_floats(name)
    most = table[np.isfinite(table)].max()
    near = np.clip(values, -most, most)
    if name == "F8_E5M2":  # the only one with infinities
        near = np.where(np.isinf(values), values, near)
    return np.where(np.isnan(values), _SMALL[name], _odd(near).astype(kind).view(np.uint8)).astype(
        np.uint8
    )
