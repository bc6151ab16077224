"""What if only few rows of a tensor moved?

A step moves the embeddings of the words that it saw. A bitmap says which rows those are, and only
their numbers are compared with the base.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.codecs.delta import decode_against, encode_against
from tensorrepo.formats.model.codecs.numbers import as_numbers, numbers_of
from tensorrepo.formats.model.codecs.planecodec import StoredPlane, pack_plane, raw_view
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.native.distances import Numbers
    from tensorrepo.formats.tensors import TensorType


class Rows:
    """Against one base of the same type and size, of which most rows are the same."""

    name: Final = "rows"
    number: Final = 5
    bases: Final = 1

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Tensors of several rows, each of whole numbers."""
        if len(shape) < 2 or shape[0] < 2:
            return False
        row_bytes = element.bytes_of(shape) // shape[0]
        whole = row_bytes * shape[0] == element.bytes_of(shape)
        return whole and row_bytes > 0 and row_bytes % numbers_of(element).size == 0

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 2

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        of = numbers_of(about.element)
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        rows, spread = _rows(about, of)
        moved = np.zeros(rows, np.bool_)
        moved[spread[numbers != base]] = True
        which = moved[spread]
        bitmap = np.packbits(moved, bitorder="little")
        return [pack_plane(bitmap), encode_against(numbers[which], base[which], of)]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        of = numbers_of(about.element)
        rows, spread = _rows(about, of)
        if len(planes) != 2:
            raise CorruptError(f"{len(planes)} planes, a frame of codec rows has 2")
        bitmap = raw_view(planes[0], (rows + 7) // 8)
        if rows % 8 and bitmap[-1] >> rows % 8:
            raise CorruptError("rows: bits after the last row are set")
        which = np.unpackbits(bitmap, count=rows, bitorder="little").view(np.bool_)[spread]
        numbers, base = as_numbers(out, of), as_numbers(bases[0], of)
        moved = np.empty(np.count_nonzero(which), of.dtype)
        decode_against(planes[1], base[which], of, moved)
        numbers[...] = base
        numbers[which] = moved


def _rows(about: FrameShape, of: Numbers) -> tuple[int, NDArray[Any]]:
    """How many rows have a part in the frame, and the row of each of its numbers."""
    if about.row_bytes <= 0 or about.row_bytes % of.size or about.first_byte % of.size:
        raise CorruptError(
            f"codec rows: {about.row_bytes} bytes are no row of {about.element.name}"
        )
    row = about.row_bytes // of.size
    skipped = about.first_byte // of.size % row
    count = about.size_bytes // of.size
    spread = np.arange(skipped, skipped + count) // row
    return (skipped + count + row - 1) // row, spread
