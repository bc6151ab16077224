"""What numbers do a tensor's bytes stand for?

For differences and norms only: models are stored and compared bit by bit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorType

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
