"""Numeric values of element types: decoding of bits, and rounding to the nearest value.

For differences, norms and blends only: models are stored and compared bit by bit. Rounding goes to
the nearest value, ties to even, by integer and table arithmetic alone, so that every machine finds
the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TYPES, TensorType

# Sign, exponent and mantissa bits, bias; `fn`: no infinities, only S.1111.111 is NaN.
_SMALL_FLOATS: Final = {
    "F8_E5M2": (5, 2, 15, "ieee"),
    "F8_E4M3": (4, 3, 7, "fn"),
    "F8_E5M2FNUZ": (5, 2, 16, "fnuz"),
    "F8_E4M3FNUZ": (4, 3, 8, "fnuz"),
}


def numbers(data: memoryview, element: TensorType) -> NDArray[Any] | None:
    """The elements as float64 or complex128; None for types that are no numbers (OPAQUE).

    Args:
        data: a whole number of blocks.
        element: what is in them.
    """
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
    if element.name == "F8_E8M0":
        return _exponents()[np.frombuffer(data, np.uint8)]
    if element.name in _SMALL_FLOATS:
        return _small_floats(element.name)[np.frombuffer(data, np.uint8)]
    return None


_FP4: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@cache
def _exponents() -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.exp2(np.arange(256, dtype=np.float64) - 127)
    values[255] = np.nan
    return values


@cache
def _small_floats(name: str) -> NDArray[np.float64]:
    """The value of each of the 256 bit patterns."""
    exponent_bits, mantissa_bits, bias, style = _SMALL_FLOATS[name]
    codes = np.arange(256)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = exponent > 0
    size = np.where(normal, 1 + mantissa, mantissa) * np.exp2(np.maximum(exponent, 1) - bias)
    values: NDArray[np.float64] = np.where(codes >= 128, -size, size)
    if style == "fnuz":
        values[128] = np.nan
    elif style == "fn":
        values[codes & 127 == 127] = np.nan
    else:
        last = exponent == (1 << exponent_bits) - 1
        values[last] = np.where(mantissa[last] == 0, np.copysign(np.inf, values[last]), np.nan)
    return values


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
