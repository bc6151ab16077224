"""Byte planes of a small frame packed together, and early looks at how many values there are.

`NATIVE` does it in C (encoding.c beside this) where it was built. `PYTHON` leaves it to those who
ask, and they come to identical results. `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import distinct
from tensorrepo.formats.native.extensions import codecs

MOST_PLANE_BYTES: Final = 4096

# Number of a plane codec and what is stored; or, where zstd may store less, what is known without:
# bytes of symbols that are expected, how often the most frequent byte stands there, and what the
# coder stores, None where that is no smaller than the plane.
PackedPlane = tuple[int, bytes] | tuple[float, int, bytes | None]


class SmallPlanes:
    """Packs all planes of a frame in one call where it can; in Python it cannot."""

    name = "python"

    def pack(self, planes: NDArray[np.uint8], most: float) -> list[PackedPlane] | None:  # noqa: ARG002
        """Small planes as they are stored, or what that depends on.

        Args:
            planes: ``(planes, bytes)``, contiguous; planes of 2 to MOST_PLANE_BYTES bytes.
            most: bytes of symbols; where more are expected, nothing is coded.

        Returns:
            None where they are to be packed one after the other.
        """
        return None

    def has_more_values(self, numbers: NDArray[Any], most: int) -> bool:
        """Whether more than `most` numbers differ: unsigned ones of 2, 4 or 8 bytes.

        `most` is at most 256.
        """
        # Mostly the first few hundred are enough.
        return any(distinct(one).size > most for one in (numbers[: 2 * most], numbers))


class NativeSmallPlanes(SmallPlanes):
    """In C; the interpreter lock is kept: to hand it over takes longer."""

    name = "native"

    def pack(self, planes: NDArray[np.uint8], most: float) -> list[PackedPlane] | None:
        count, size = planes.shape
        if not 2 <= size <= MOST_PLANE_BYTES:
            return None
        return codecs.pack_planes(planes, count, most)

    def has_more_values(self, numbers: NDArray[Any], most: int) -> bool:
        return codecs.has_more_values(numbers, numbers.itemsize, most)


PYTHON: Final = SmallPlanes()
NATIVE: SmallPlanes | None = None if codecs is None else NativeSmallPlanes()
BEST: SmallPlanes = NATIVE or PYTHON
