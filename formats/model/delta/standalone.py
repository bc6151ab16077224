"""Frame codecs without a base: byte planes, and palettes of few values.

A float's exponent has few values, the low bits of its mantissa are random. So each byte of the
elements makes a plane of its own, the most significant first, and each plane is stored as is best
for it. The first planes alone are the elements cut short. A float's sign goes to its second plane,
so that the first is the exponent alone.

Masks, indices, quantised or tied weights: a table of the values, and for each number its place in
the table.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.delta.distances import as_numbers, numbers_of
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane, pack_plane, raw_view
from tensorrepo.formats.native.planes import BEST
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from tensorrepo.formats.common.tensors import TensorType
    from tensorrepo.formats.model.delta.frame_codec import FrameShape


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


MAX_VALUES: Final = 256
_SAMPLE: Final = 4096


class Palette:
    """At most 256 distinct values. Needs no base."""

    name: Final = "palette"
    number: Final = 3
    bases: Final = 0

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        """Not numbers of one byte: those are their own places."""
        return numbers_of(element).size > 1

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 2

    def encode(
        self,
        frame: memoryview,
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
    ) -> list[StoredPlane] | None:
        """None for a frame of too many values."""
        numbers = as_numbers(frame, numbers_of(about.element))
        # Most frames have more values than that in their first few thousand numbers.
        if np.unique(numbers[:_SAMPLE]).size > MAX_VALUES:
            return None
        values, places = np.unique(numbers, return_inverse=True)
        if values.size > MAX_VALUES:
            return None
        return [
            StoredPlane(PlaneCodec.RAW, values.view(np.uint8).data),
            pack_plane(places.astype(np.uint8)),
        ]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],  # noqa: ARG002
        about: FrameShape,
        out: memoryview,
    ) -> None:
        of = numbers_of(about.element)
        if len(planes) != 2 or planes[0].codec != PlaneCodec.RAW:
            raise CorruptError(f"{len(planes)} planes, a palette has a raw one and another")
        table = np.frombuffer(planes[0].data, np.uint8)
        if not 0 < table.size <= MAX_VALUES * of.size or table.size % of.size:
            raise CorruptError(f"a palette of {table.size} bytes for numbers of {of.size}")
        values = np.frombuffer(table.tobytes(), of.dtype)
        if (values[1:] <= values[:-1]).any():
            raise CorruptError("a palette's values are not ascending")
        numbers = as_numbers(out, of)
        places = raw_view(planes[1], numbers.size)
        if places.max(initial=0) >= values.size:
            raise CorruptError(f"place {places.max()} in a palette of {values.size}")
        np.take(values, places, out=numbers, mode="clip")
