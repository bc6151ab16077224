"""Byte planes of small frames packed, and unpacked, together; and whether there are many values.

`NATIVE` does it in C (encoding.c and rans.c beside this) where it was built. `PYTHON` leaves it to
those who ask, and they come to identical results. `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import distinct
from tensorrepo.formats.native.extensions import codecs as native

MOST_PLANE_BYTES: Final = 4096

# Number of a plane codec and what is stored; or, where zstd may store less, what is known without:
# bytes of symbols that are expected, how often the most frequent byte stands there, and what the
# coder stores, None where that is no smaller than the plane.
PackedPlane = tuple[int, bytes] | tuple[float, int, bytes | None]


class SmallPlanes:
    """Packs and unpacks many planes in one call where it can; in Python it cannot."""

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

    def unpack(
        self,
        pack: memoryview,  # noqa: ARG002
        offsets: NDArray[np.uint64],
        sizes: NDArray[np.uint64],  # noqa: ARG002
        codecs: NDArray[np.uint8],  # noqa: ARG002
        out: NDArray[np.uint8],  # noqa: ARG002
    ) -> list[int]:
        """Planes out of a pack, ``(planes, bytes)``: as many as can be unpacked in one call.

        Args:
            pack: bytes that all of them lie in.
            offsets: where each begins.
            sizes: stored bytes of each.
            codecs: plane codec of each.
            out: becomes the planes.

        Returns:
            Numbers of those that are to be unpacked one after the other, or are not well-formed.
        """
        return list(range(len(offsets)))

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
        return native.pack_planes(planes, count, most)

    def unpack(
        self,
        pack: memoryview,
        offsets: NDArray[np.uint64],
        sizes: NDArray[np.uint64],
        codecs: NDArray[np.uint8],
        out: NDArray[np.uint8],
    ) -> list[int]:
        return native.unpack_planes(pack, offsets, sizes, codecs, out)

    def has_more_values(self, numbers: NDArray[Any], most: int) -> bool:
        return native.has_more_values(numbers, numbers.itemsize, most)


PYTHON: Final = SmallPlanes()
NATIVE: SmallPlanes | None = None if native is None else NativeSmallPlanes()
BEST: SmallPlanes = NATIVE or PYTHON
