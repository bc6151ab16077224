"""Which bytes of a tensor's elements compress, and which are noise?

A float's exponent has few values, the low bits of its mantissa are random. So each byte of the
elements makes a plane of its own, the most significant first, and each plane is stored as is best
for it. The first planes alone are the elements cut short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.codecs.lanes import parts_of
from tensorrepo.formats.model.codecs.planecodec import StoredPlane, pack_plane, unpack_plane
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.tensors import TensorType


class Planes:
    """Byte planes, most significant first. Needs no base."""

    name: Final = "planes"
    number: Final = 2
    bases: Final = 0

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return True

    def planes(self, element: TensorType) -> int:
        return parts_of(element).size

    def encode(
        self,
        frame: memoryview,
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
    ) -> list[StoredPlane]:
        return [pack_plane(plane) for plane in split(frame, self.planes(about.element))]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
        out: memoryview,
    ) -> None:
        self.truncated(planes, about, out)

    def truncated(self, planes: Sequence[StoredPlane], about: FrameShape, out: memoryview) -> None:
        """Fill `out` from the first planes only; what the others would say is zero.

        From two planes of F32 that is its BF16 truncation. From all of them it is the frame.

        Raises:
            CorruptError: too many planes, or one does not decode.
        """
        size = self.planes(about.element)
        if not 0 < len(planes) <= size or out.nbytes % size:
            raise CorruptError(f"{len(planes)} planes, a frame of {about.element.name} has {size}")
        bytes_of = np.frombuffer(out, np.uint8).reshape(-1, size)
        plane = np.empty(len(bytes_of), np.uint8)
        for place in range(size):
            if place < len(planes):
                unpack_plane(planes[place], plane)
                bytes_of[:, size - 1 - place] = plane
            else:
                bytes_of[:, size - 1 - place] = 0


def split(frame: memoryview, size: int) -> NDArray[np.uint8]:
    """The byte planes of numbers of `size` bytes, most significant first: ``(size, numbers)``."""
    numbers = np.frombuffer(frame, np.uint8).reshape(-1, size)
    return np.ascontiguousarray(numbers.T[::-1])
