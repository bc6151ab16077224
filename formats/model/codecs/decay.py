"""What if most rows only decayed?

Weight decay shrinks also what no gradient reached, such as the embeddings of words that did not
occur: in units of the last place by an amount that follows from a number's first digits. So a table
of those amounts says where such rows are, and the other rows are stored as they moved.

Source:
    docs/spec/model.md, section "Decay".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.codecs.delta import decode_against, encode_against
from tensorrepo.formats.model.codecs.numbers import as_numbers, numbers_of
from tensorrepo.formats.model.codecs.planecodec import pack_plane, raw_view
from tensorrepo.formats.model.codecs.rowgrid import row_grid
from tensorrepo.formats.native.distances import BEST
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.model.codecs.planecodec import StoredPlane
    from tensorrepo.formats.native.distances import Numbers
    from tensorrepo.formats.tensors import TensorType

_CLASSES: Final = 256  # by the eight bits below the exponent
_BELOW: Final = {"F32": 15, "F64": 44}  # bits below those
_FARTHEST: Final = 2047  # a distance that is counted
_COUNTED: Final = 1 << 16  # numbers that the table is made from
_PROBED: Final = 1 << 13  # numbers that tell whether it is worth trying
_PROMISING: Final = 0.15  # of them


class Decay:
    """Against one base of the same type and size, of which most rows moved alike."""

    name: Final = "decay"
    number: Final = 8
    bases: Final = 1

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Tensors of several rows: in types of fewer digits a decay is lost in rounding."""
        return element.name in _BELOW and len(shape) > 1 and element.bytes_of(shape) > 0

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 4

    def seems_better(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> bool:
        """Whether many of some numbers moved, and by what is frequent in their class."""
        of, name = numbers_of(about.element), about.element.name
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        counts = _counted(numbers, base, of, name, _PROBED)
        return bool(counts[:, 1:].max(1).sum() > _PROMISING * min(numbers.size, _PROBED))

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        of = numbers_of(about.element)
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        table = _table(numbers, base, of, about.element.name)
        predicted = _predicted(base, table, of, about.element.name)
        rows = row_grid(about, of, "decay")
        moved = rows.moved(numbers == predicted)
        bitmap, which = np.packbits(moved, bitorder="little"), rows.numbers_in(moved)
        return [
            pack_plane(table.view(np.uint8)),
            pack_plane(bitmap),
            encode_against(numbers[~which], predicted[~which], of),
            encode_against(numbers[which], base[which], of),
        ]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        of, name = numbers_of(about.element), about.element.name
        if len(planes) != 4:
            raise CorruptError(f"{len(planes)} planes, a frame of codec decay has 4")
        if name not in _BELOW:
            raise CorruptError(f"codec decay: for type {name}")
        table = np.frombuffer(raw_view(planes[0], 2 * _CLASSES).tobytes(), "<u2")
        if table.max() > _FARTHEST:
            raise CorruptError(f"decay: a table with a distance of {table.max()}")
        rows = row_grid(about, of, "decay")
        bitmap = raw_view(planes[1], (rows.rows + 7) // 8)
        if rows.rows % 8 and bitmap[-1] >> rows.rows % 8:
            raise CorruptError("decay: bits after the last row are set")
        moved_rows = np.unpackbits(bitmap, count=rows.rows, bitorder="little").view(np.bool_)
        which = rows.numbers_in(moved_rows)
        numbers, base = as_numbers(out, of), as_numbers(bases[0], of)
        for moved, plane in ((False, planes[2]), (True, planes[3])):
            chosen = which if moved else ~which
            some = base[chosen]
            under = some if moved else _predicted(some, table, of, name)
            part = np.empty(some.size, of.dtype)
            decode_against(plane, under, of, part)
            numbers[chosen] = part


def _classes(base: NDArray[Any], name: str) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = (base >> base.dtype.type(_BELOW[name])).astype(np.uint8)
    return found


def _predicted(
    base: NDArray[Any], table: NDArray[np.uint16], of: Numbers, name: str
) -> NDArray[Any]:
    """The numbers as far from the base as the table says for each."""
    return BEST.restore(table.astype(of.dtype)[_classes(base, name)], base, of)


def _table(numbers: NDArray[Any], base: NDArray[Any], of: Numbers, name: str) -> NDArray[np.uint16]:
    """The distance that is most frequent in each class, the least of several."""
    found: NDArray[np.uint16] = _counted(numbers, base, of, name, _COUNTED).argmax(1).astype("<u2")
    return found


def _counted(
    numbers: NDArray[Any], base: NDArray[Any], of: Numbers, name: str, most: int
) -> NDArray[np.intp]:
    """How frequent each near distance is in each class, of `most` numbers about."""
    step = max(1, numbers.size // most)
    some, some_base = (np.ascontiguousarray(one[::step]) for one in (numbers, base))
    moved = np.minimum(BEST.differ(some, some_base, of), of.dtype.type(_FARTHEST + 1))
    places = _classes(some_base, name) * np.intp(_FARTHEST + 2) + moved.astype(np.intp)
    counts = np.bincount(places, minlength=_CLASSES * (_FARTHEST + 2))
    return counts.reshape(_CLASSES, -1)[:, :-1]
