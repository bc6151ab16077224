"""What numbers does a tensor type consist of?

Codecs see a frame as unsigned integers of 1, 2, 4 or 8 bytes, one for each element, two for each
complex one. Types whose elements are no whole number of bytes (4 bits, 6 bits, blocks) are bytes
to them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.native.distances import Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorType

_EXPONENT_BITS: Final = {"F16": 5, "BF16": 8, "F32": 8, "F64": 11}
_COMPLEX: Final = {"C32": "F16", "C64": "F32", "C128": "F64"}
_SMALL_FLOATS: Final = frozenset({"F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


@cache
def numbers_of(element: TensorType) -> Numbers:
    """The numbers of a type; bytes for types that are not known here."""
    name = _COMPLEX.get(element.name, element.name)
    size = element.block_bytes // (2 if element.name in _COMPLEX else 1)
    if element.block_elements > 1 or size not in {1, 2, 4, 8}:
        return Numbers(1, signed_magnitude=False, exponent_bits=0)
    exponent = _EXPONENT_BITS.get(name, 0)
    return Numbers(size, bool(exponent) or name in _SMALL_FLOATS, exponent)


def as_numbers(frame: memoryview, of: Numbers) -> NDArray[Any]:
    """The frame as an array of its numbers; a view."""
    return np.frombuffer(frame, of.dtype)
