"""Frame codecs: their contract, the choice among them by sample, and those without a base.

A codec turns one frame of a tensor, and the same frame of its bases, into planes and back, bit for
bit. It is pure and thread-safe, and lets go of the interpreter lock in everything that takes time:
call it on a pool, a frame a task.

Codecs see a frame as unsigned integers of 1, 2, 4 or 8 bytes, one for each element, two for each
complex one. Types whose elements are no whole number of bytes (4 bits, 6 bits, blocks) are bytes
to them.

Byte planes: a float's exponent has few values, the low bits of its mantissa are random. So each
byte of the elements makes a plane of its own, the most significant first, and each plane is stored
as is best for it. The first planes alone are the elements cut short. A float's sign goes to its
second plane, so that the first is the exponent alone.

Palette, for masks, indices, quantised or tied weights: a table of the values, and for each number
its place in the table.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TYPES, TensorType
from tensorrepo.formats.model.delta.plane_codec import (
    PlaneCodec,
    StoredPlane,
    expected_plane_bytes,
    pack_plane,
    pack_planes,
    raw_view,
)
from tensorrepo.formats.native import encoding
from tensorrepo.formats.native import planes as byte_planes
from tensorrepo.formats.native.delta_tokens import Numbers
from tensorrepo.formats.native.frame_memory import IDLE
from tensorrepo.formats.native.thread_buffers import buffer_for
from tensorrepo.repo.errors import CorruptError

_BYTE: Final = np.dtype(np.uint8)

Frames = Sequence[memoryview]  # of bases: of each the same frame
PlaneList = Sequence[StoredPlane]


class FrameShape(NamedTuple):
    """What a codec knows of a frame beside its bytes.

    Attributes:
        element: type of the tensor.
        size_bytes: bytes of the frame, decoded.
        row_bytes: bytes of ``tensor[0]``; 0 for tensors of rank 0 and 1.
        first_byte: place in the tensor where the frame begins.
        params: parameters of the member, at most 64 bytes; the codec knows their meaning.
    """

    element: TensorType
    size_bytes: int
    row_bytes: int = 0
    first_byte: int = 0
    params: bytes = b""


class FrameCodec(ABC):
    """Encodes frames.

    Attributes:
        name: name of the codec, as placements say it.
        number: number of the codec, as packs say it; never changes its meaning.
        bases: number of base frames that it needs. Each has the type and size of the frame, but
            for a codec with a `base_type`.
        base_type: element type of its base, by name, where that is another one; "" else.
        plane_count: number of planes of each frame, where it is the same for all types.
        needs_many_rows: whether only a whole frame shows what it saves.
        needs_look: whether `seems_better` tells anything.
    """

    name: ClassVar[str]
    number: ClassVar[int]
    bases: ClassVar[int] = 0
    base_type: ClassVar[str] = ""
    plane_count: ClassVar[int] = 1
    needs_many_rows: ClassVar[bool] = False
    needs_look: ClassVar[bool] = False

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        """Whether it can encode such a tensor, well or badly."""
        return True

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        """Planes of each frame."""
        return self.plane_count

    def base_shape(self, about: FrameShape) -> FrameShape:
        """The same elements of a base as a frame of it."""
        if not self.base_type:
            return about
        element = TYPES[self.base_type]
        scale = element.block_bytes // about.element.block_bytes
        return FrameShape(
            element, about.size_bytes * scale, about.row_bytes * scale, about.first_byte * scale
        )

    def seems_better(self, frame: memoryview, bases: Frames, about: FrameShape) -> bool:  # noqa: ARG002
        """Whether a look at a whole frame says that a trial is worth its time."""
        return True

    def least_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:  # noqa: ARG002
        """How many bytes a look at a whole frame says that it will take at least."""
        return 0.0

    def expected_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float | None:
        """How many bytes `encode` would make of a frame, about; None where it cannot encode it."""
        planes = self.encode(frame, bases, about)
        return None if planes is None else sum(plane.size_bytes for plane in planes)

    def check_planes(self, planes: PlaneList, about: FrameShape) -> None:
        """Whether a frame has as many planes as it must; CorruptError if not."""
        count = self.planes(about.element)
        if len(planes) != count:
            raise CorruptError(f"{len(planes)} planes, a frame of codec {self.name} has {count}")

    @abstractmethod
    def encode(
        self, frame: memoryview, bases: Frames, about: FrameShape
    ) -> list[StoredPlane] | None:
        """One frame as planes; None where this codec cannot encode this one.

        (Only `palette` gives None, for a frame of too many values.) The planes together may be
        larger than the frame by a few bytes.
        """

    @abstractmethod
    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:
        """Fill `out`, of exactly the frame's size, with the frame.

        `out` shares no memory with the bases.

        Raises:
            CorruptError: the planes do not decode to exactly this frame.
            UnsupportedError: a plane codec that this version does not know.
        """


class FrameSample(NamedTuple):
    """A frame of the tensor, and the same frame of each base that the codec needs."""

    frame: memoryview
    bases: Frames
    about: FrameShape


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


class Planes(FrameCodec):
    """Byte planes, most significant first. Needs no base."""

    name = "planes"
    number = 2

    def planes(self, element: TensorType) -> int:
        return numbers_of(element).size

    def encode(self, frame: memoryview, bases: Frames, about: FrameShape) -> list[StoredPlane]:  # noqa: ARG002
        size = numbers_of(about.element).size
        if frame.nbytes <= size * encoding.MOST_PLANE_BYTES:
            return pack_planes(self._split(frame, about))
        # Each where it may stay: planes that are stored as they are need not be copied.
        planes = [IDLE.take(frame.nbytes // size) for _ in range(size)]
        self._split_into(frame, about, planes)
        stored = [pack_plane(plane) for plane in planes]
        for plane, packed in zip(planes, stored, strict=True):
            if packed.codec != PlaneCodec.RAW:
                IDLE.give(plane)
        return stored

    def expected_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:  # noqa: ARG002
        return sum(map(expected_plane_bytes, self._split(frame, about)))

    def encode_together(
        self, frames: NDArray[np.uint8], element: TensorType
    ) -> list[list[StoredPlane]]:
        """What `encode` makes of each row of ``(frames, bytes)``."""
        count = len(frames)
        planes = self._split(frames.data, FrameShape(element, frames.size))
        stored = pack_planes(planes.reshape(count * len(planes), -1))
        return [stored[at::count] for at in range(count)]

    def join(self, planes: NDArray[np.uint8], element: TensorType) -> NDArray[np.uint8]:
        """The bytes of numbers whose planes are ``(planes, numbers)``."""
        out = np.empty(planes.size, np.uint8)
        turn = bool(numbers_of(element).exponent_bits)
        byte_planes.BEST.join(list(planes), out, turn=turn)
        return out

    def _split(self, frame: memoryview, about: FrameShape) -> NDArray[np.uint8]:
        """The planes, in memory of this thread: good until it splits another frame."""
        size = numbers_of(about.element).size
        planes = buffer_for("split", frame.nbytes, _BYTE).reshape(size, -1)
        self._split_into(frame, about, planes)
        return planes

    def _split_into(
        self, frame: memoryview, about: FrameShape, planes: Iterable[NDArray[np.uint8]]
    ) -> None:
        turn = bool(numbers_of(about.element).exponent_bits)
        byte_planes.BEST.split_into(np.frombuffer(frame, np.uint8), list(planes), turn=turn)

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:  # noqa: ARG002
        of = numbers_of(about.element)
        turn = bool(of.exponent_bits)
        if byte_planes.BEST.join_stored(planes, of.size, out, turn=turn):
            return
        self.check_planes(planes, about)
        self.truncated(planes, about, out)

    def truncated(self, planes: PlaneList, about: FrameShape, out: memoryview) -> None:
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
        found = [raw_view(plane, count, f"plane {at}") for at, plane in enumerate(planes)]
        if len(planes) < of.size:
            found += [np.zeros(count, np.uint8)] * (of.size - len(planes))
        byte_planes.BEST.join(found, np.frombuffer(out, np.uint8), turn=bool(of.exponent_bits))

    def add(self, planes: PlaneList, first: int, about: FrameShape, out: memoryview) -> None:
        """Put planes from number `first` on into a frame that `truncated` filled from those before.

        Raises:
            CorruptError: no or too many planes, or one does not decode.
        """
        of = numbers_of(about.element)
        if first < 2 or not planes or first + len(planes) > of.size:
            raise CorruptError(f"planes {first} on of a frame that has {of.size}: {len(planes)}")
        size = of.size
        numbers = np.frombuffer(out, np.uint8).reshape(-1, size)
        for at, plane in enumerate(planes, first):
            # Beyond the second plane no sign is turned: each byte lies where it belongs.
            numbers[:, size - 1 - at] = raw_view(plane, len(numbers), f"plane {at}")


MAX_VALUES: Final = 256
_SAMPLE: Final = 4096


class Palette(FrameCodec):
    """At most 256 distinct values. Needs no base."""

    name = "palette"
    number = 3
    plane_count = 2

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        """Not numbers of one byte: those are their own places."""
        return numbers_of(element).size > 1

    def encode(
        self,
        frame: memoryview,
        bases: Frames,  # noqa: ARG002
        about: FrameShape,
    ) -> list[StoredPlane] | None:
        """None for a frame of too many values."""
        numbers = as_numbers(frame, numbers_of(about.element))
        if encoding.BEST.has_more_values(numbers[:_SAMPLE], MAX_VALUES):
            return None
        values, places = np.unique(numbers, return_inverse=True)
        if values.size > MAX_VALUES:
            return None
        return [
            StoredPlane(PlaneCodec.RAW, values.view(np.uint8).data),
            pack_plane(places.astype(np.uint8)),
        ]

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:  # noqa: ARG002
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
