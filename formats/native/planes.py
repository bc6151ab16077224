"""Byte planes: numbers split by significance.

`NATIVE` does it in C (planes.c beside this) where it was built, `NUMPY` everywhere, with identical
results; `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs
from tensorrepo.repo.ids import Buffer


class PlaneSplitter:
    """Takes numbers apart into byte planes, the most significant first; in numpy by transposing.

    With `turn`, for floats, the sign is the top bit of the second plane, not of the first: so the
    first is the exponent alone, and two planes are the upper 16 bits.
    """

    name = "numpy"

    def split(self, frame: NDArray[np.uint8], size: int, *, turn: bool) -> NDArray[np.uint8]:
        """Planes ``(size, numbers)`` of numbers of `size` bytes: 1, 2, 4 or 8."""
        planes = np.empty((size, frame.size // size), np.uint8)
        self.split_into(frame, list(planes), turn=turn)
        return planes

    def split_into(
        self, frame: NDArray[np.uint8], planes: Sequence[NDArray[np.uint8]], *, turn: bool
    ) -> None:
        """Fill planes, one for each byte of the numbers, which share no memory with `frame`."""
        each = frame.reshape(-1, len(planes)).T[::-1]
        for plane, part in zip(planes, each, strict=True):
            plane[...] = part
        if turn:
            first, second = each[:2]
            planes[0][...] = first << 1 | second >> 7
            planes[1][...] = first & 0x80 | second & 0x7F

    def join(
        self, planes: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8], *, turn: bool
    ) -> None:
        """Fill `out` with the numbers that have these planes, one for each of their bytes."""
        numbers = out.reshape(-1, len(planes))[:, ::-1]
        for place, plane in enumerate(planes):
            numbers[:, place] = plane
        if turn:
            numbers[:, 0] = planes[1] & 0x80 | planes[0] >> 1
            numbers[:, 1] = planes[0] << 7 | planes[1] & 0x7F

    def join_stored(
        self,
        planes: Sequence[tuple[int, Buffer]],  # noqa: ARG002  only C does it in one go
        size: int,  # noqa: ARG002
        out: memoryview,  # noqa: ARG002
        *,
        turn: bool,  # noqa: ARG002
    ) -> bool:
        """Fill `out` with numbers of `size` bytes that have these planes as they are stored.

        Args:
            planes: plane codec and stored bytes of each.
            size: bytes of each number, of which each has its plane.
            out: becomes the numbers.
            turn: see `PlaneSplitter`.

        Returns:
            False where they are to be unpacked one after the other, or are not well-formed; then
            `out` means nothing.
        """
        return False


class NativePlanes(PlaneSplitter):
    """In C, without the interpreter lock."""

    name = "native"

    def split_into(
        self, frame: NDArray[np.uint8], planes: Sequence[NDArray[np.uint8]], *, turn: bool
    ) -> None:
        codecs.split(frame, len(planes), turn, tuple(planes))

    def join(
        self, planes: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8], *, turn: bool
    ) -> None:
        codecs.join(tuple(planes), len(planes), turn, out)

    def join_stored(
        self, planes: Sequence[tuple[int, Buffer]], size: int, out: memoryview, *, turn: bool
    ) -> bool:
        return codecs.join_stored(planes, size, turn, out)


NUMPY = PlaneSplitter()
NATIVE: PlaneSplitter | None = None if codecs is None else NativePlanes()
BEST: PlaneSplitter = NATIVE or NUMPY
