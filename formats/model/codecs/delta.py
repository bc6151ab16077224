"""How far did each number move from its base?

Both tensors' bits become integers that are ordered as the numbers are, whose difference is small
where the numbers are close. What the base owns is used to encode the difference: the decoder has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.codecs.lanes import Parts, parts_of
from tensorrepo.formats.model.codecs.planecodec import StoredPlane, pack_plane, unpack_plane
from tensorrepo.formats.model.codecs.planes import split
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.tensors import TensorType


class Delta:
    """Against one base of the same type and size."""

    name: Final = "delta"
    number: Final = 4
    bases: Final = 1

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return True

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 1

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        parts = parts_of(about.element)
        moved = differences(parts.of(frame), parts.of(bases[0]), parts)
        return [pack_plane(split(moved.view(np.uint8).data, parts.size).reshape(-1))]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        if len(planes) != 1:
            raise CorruptError(f"{len(planes)} planes, a frame of codec delta has 1")
        parts = parts_of(about.element)
        flat = np.empty(out.nbytes, np.uint8)
        unpack_plane(planes[0], flat)
        moved = np.ascontiguousarray(flat.reshape(parts.size, -1)[::-1].T).reshape(-1)
        found = moved.view(parts.dtype)
        parts.of(out)[...] = apply_differences(found, parts.of(bases[0]), parts)


def differences(numbers: NDArray[Any], base: NDArray[Any], parts: Parts) -> NDArray[Any]:
    """How far each number is from its base, zigzag: small for near ones."""
    moved = _ordered(numbers, parts) - _ordered(base, parts)
    if parts.signed_magnitude:
        # Away from zero or toward it is what training does, on both sides of zero.
        moved = np.where(_negative(base, parts), np.negative(moved), moved)
    signed = moved.view(f"<i{parts.size}")
    zigzag: NDArray[Any] = ((signed << 1) ^ (signed >> (parts.bits - 1))).view(parts.dtype)
    return zigzag


def apply_differences(zigzag: NDArray[Any], base: NDArray[Any], parts: Parts) -> NDArray[Any]:
    """The numbers that are so far from `base`."""
    one = parts.dtype.type(1)
    moved = (zigzag >> one) ^ np.negative(zigzag & one)
    if parts.signed_magnitude:
        moved = np.where(_negative(base, parts), np.negative(moved), moved)
    return _unordered(_ordered(base, parts) + moved, parts)


def _negative(numbers: NDArray[Any], parts: Parts) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (numbers >> parts.dtype.type(parts.bits - 1)).astype(bool)
    return found


def _ordered(numbers: NDArray[Any], parts: Parts) -> NDArray[Any]:
    """Floats' bits as unsigned integers in the order of the floats; others as they are."""
    if not parts.signed_magnitude:
        return numbers
    signs = (numbers.view(f"<i{parts.size}") >> (parts.bits - 1)).view(parts.dtype)
    return numbers ^ (signs | parts.dtype.type(1 << parts.bits - 1))


def _unordered(numbers: NDArray[Any], parts: Parts) -> NDArray[Any]:
    if not parts.signed_magnitude:
        return numbers
    signs = (~numbers.view(f"<i{parts.size}") >> (parts.bits - 1)).view(parts.dtype)
    return numbers ^ (signs | parts.dtype.type(1 << parts.bits - 1))
