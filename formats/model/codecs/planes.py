"""Which bytes of a tensor's elements compress, and which are noise?

A float's exponent has few values, the low bits of its mantissa are random. So each byte of the
elements makes a plane of its own, the most significant first, and each plane is stored as is best
for it. The first planes alone are the elements cut short. A float's sign goes to its second plane,
so that the first is the exponent alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.codecs.numbers import numbers_of
from tensorrepo.formats.model.codecs.planecodec import StoredPlane, pack_plane, raw_view
from tensorrepo.formats.native.planes import BEST
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return numbers_of(element).size

    def encode(
        self,
        frame: memoryview,
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
    ) -> list[StoredPlane]:
        of = numbers_of(about.element)
        raw = np.frombuffer(frame, np.uint8)
        return [
            pack_plane(plane) for plane in BEST.split(raw, of.size, turn=bool(of.exponent_bits))
        ]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
        out: memoryview,
    ) -> None:
        if len(planes) != self.planes(about.element):
            raise CorruptError(f"{len(planes)} planes, expected {self.planes(about.element)}")
        self.truncated(planes, about, out)

    def truncated(self, planes: Sequence[StoredPlane], about: FrameShape, out: memoryview) -> None:
        """Fill `out` from the first planes only; what the others would say is zero.

        From two planes of F32 that is its BF16 truncation. From all of them it is the frame. One
        plane of a float lacks its sign.

        Raises:
            CorruptError: no or too many planes, or one does not decode.
        """
        of = numbers_of(about.element)
        if not 0 < len(planes) <= of.size or out.nbytes % of.size:
            raise CorruptError(f"{len(planes)} planes of a frame that has {of.size}")
        count = out.nbytes // of.size
        found = [raw_view(plane, count) for plane in planes]
        found += [np.zeros(count, np.uint8)] * (of.size - len(planes))
        BEST.join(found, np.frombuffer(out, np.uint8), turn=bool(of.exponent_bits))
