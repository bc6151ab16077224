"""How do predictions read floats, and round to them, alike on every machine?

A prediction is computed in 64-bit floats. Subnormal numbers count as zero on every machine,
whatever its mode, and where a prediction is no number the base's bits stand in.

Source:
    docs/spec/model.md, section "Predictions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MANTISSA_BITS: Final = {"F32": 23, "BF16": 7, "F16": 10}
"""Types that are predicted, and their bits below the exponent."""


def widened(bits: NDArray[Any], name: str) -> NDArray[np.float64]:
    """The numbers of type `name` with these bits."""
    bits = _normal(bits, name)
    if name == "BF16":
        bits = bits.astype("<u4") << np.uint32(16)
    found: NDArray[np.float64] = bits.view("<f2" if name == "F16" else "<f4").astype(np.float64)
    return found


def narrowed(found: NDArray[np.float64], base: NDArray[Any], name: str) -> NDArray[Any]:
    """Rounded to the nearest, ties to even, as bits; the base's where there is no number."""
    if name == "BF16":
        single = found.astype("<f4").view("<u4")
        half = np.uint32(0x7FFF) + (single >> np.uint32(16) & np.uint32(1))
        bits = (single + half >> np.uint32(16)).astype("<u2")
    else:
        bits = found.astype("<f2" if name == "F16" else "<f4").view(base.dtype)
    bits, unknown = _normal(bits, name), np.isnan(found)
    return np.where(unknown, base, bits) if unknown.any() else bits


def _normal(bits: NDArray[Any], name: str) -> NDArray[Any]:
    """Subnormal numbers as zeros of their sign."""
    top = 1 << 8 * bits.itemsize - 1
    exponent = bits.dtype.type(top - (1 << MANTISSA_BITS[name]))
    below = (bits & exponent) == 0
    return np.where(below, bits & bits.dtype.type(top), bits) if below.any() else bits
