"""Rows of a frame beside those of a base: which are alike, and how far most numbers moved.

Weight decay moves a number by an amount that follows from its class, the eight bits below the
exponent. `NATIVE` does it in C (row_moves.c beside this) where it was built, `NUMPY` everywhere,
with identical results; `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Decay".
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native import delta_tokens
from tensorrepo.formats.native.delta_tokens import Numbers
from tensorrepo.formats.native.extensions import codecs
from tensorrepo.formats.native.thread_buffers import buffer_for

CLASSES: Final = 256
FARTHEST: Final = 2047  # a distance that is counted


class TakenRows(NamedTuple):
    """Rows of a frame, those that moved apart from the others.

    Attributes:
        marks: which rows moved.
        moved: their numbers, and those of the base.
        calm: numbers of the others, and what a table says of them; none where there is no table.
    """

    marks: NDArray[np.bool_]
    moved: tuple[NDArray[Any], NDArray[Any]]
    calm: tuple[NDArray[Any], NDArray[Any]]


_NO_TABLE: Final = np.zeros(0, "<u2")


class RowMoves:
    """Compares frames with their bases, in numpy. Both are arrays of the numbers' `dtype`."""

    name = "numpy"

    def alike(
        self, frame: NDArray[Any], base: NDArray[Any], columns: int, skipped: int
    ) -> NDArray[np.uint32]:
        """How many numbers of each row are equal.

        Args:
            frame: numbers, of which there is one at least.
            base: as many.
            columns: numbers in a row.
            skipped: numbers of the first row that lie before the frame.
        """
        starts = np.arange(0, skipped + frame.size, columns) - skipped
        starts[0] = 0
        return np.add.reduceat(frame == base, starts, dtype=np.uint32)

    def take(
        self, frame: NDArray[Any], base: NDArray[Any], columns: int, skipped: int
    ) -> TakenRows:
        """The rows that are not as in the base; arguments are those of `alike`.

        They may lie in memory of this thread, good until it takes others.
        """
        which = (np.arange(frame.size) + skipped) // columns
        marks = self.alike(frame, base, columns, skipped) < np.bincount(which)
        moved = marks[which]
        return TakenRows(marks, (frame[moved], base[moved]), (frame[:0], base[:0]))

    def take_decayed(
        self,
        frame: NDArray[Any],
        base: NDArray[Any],
        of: Numbers,
        columns: int,
        skipped: int,
        below: int,
        table: NDArray[np.uint16],
    ) -> TakenRows:
        """As `take`, the rows of which most numbers are not as far from the base as `table` says.

        For `below` and `table` see `step`.
        """
        which = (np.arange(frame.size) + skipped) // columns
        predicted = self.step(base, of, below, table)
        marks = 2 * self.alike(frame, predicted, columns, skipped) <= np.bincount(which)
        moved = marks[which]
        calm = frame[~moved], predicted[~moved]
        return TakenRows(marks, (frame[moved], base[moved]), calm)

    def step(
        self, base: NDArray[Any], of: Numbers, below: int, table: NDArray[np.uint16]
    ) -> NDArray[Any]:
        """The numbers as far from the base as the table says of the class of each.

        Args:
            base: numbers.
            of: what they are, of 4 or 8 bytes.
            below: bits below a class.
            table: distance of each class.

        Returns:
            Memory of this thread, good until the next call.
        """
        classes = (base >> base.dtype.type(below)).astype(np.uint8)
        return delta_tokens.NUMPY.restore(table.astype(of.dtype)[classes], base, of)

    def frequent(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers, below: int, stride: int
    ) -> tuple[NDArray[np.uint16], int]:
        """Distances that are frequent among one number of each `stride`.

        Returns:
            Of each class the one that is most frequent, the least of several; and how many numbers
            moved by what most of those moved by that did, in their class.
        """
        some, under = frame[::stride], base[::stride]
        moved = delta_tokens.NUMPY.differ(some, under, of)
        near = np.minimum(moved, of.dtype.type(FARTHEST + 1)).astype(np.intp)
        classes = (under >> under.dtype.type(below)).astype(np.uint8)
        cells = classes * np.intp(FARTHEST + 2) + near
        counts = np.bincount(cells, minlength=CLASSES * (FARTHEST + 2))
        counts = counts.reshape(CLASSES, -1)[:, :-1]
        return counts.argmax(1).astype("<u2"), int(counts[:, 1:].max(1).sum())


class NativeRowMoves(RowMoves):
    """In C, without the interpreter lock."""

    name = "native"

    def alike(
        self, frame: NDArray[Any], base: NDArray[Any], columns: int, skipped: int
    ) -> NDArray[np.uint32]:
        rows = np.empty(-(-(skipped + frame.size) // columns), np.uint32)
        codecs.alike(frame, base, frame.itemsize, columns, skipped, rows)
        return rows

    def step(
        self, base: NDArray[Any], of: Numbers, below: int, table: NDArray[np.uint16]
    ) -> NDArray[Any]:
        out = buffer_for("step", base.size, of.dtype)
        codecs.step(base, of.size, below, np.ascontiguousarray(table), out)
        return out

    def take(
        self, frame: NDArray[Any], base: NDArray[Any], columns: int, skipped: int
    ) -> TakenRows:
        return self._take(frame, base, columns, skipped, -1, _NO_TABLE)

    def take_decayed(
        self,
        frame: NDArray[Any],
        base: NDArray[Any],
        of: Numbers,  # noqa: ARG002  the numbers' size says it
        columns: int,
        skipped: int,
        below: int,
        table: NDArray[np.uint16],
    ) -> TakenRows:
        return self._take(frame, base, columns, skipped, below, table)

    def _take(
        self,
        frame: NDArray[Any],
        base: NDArray[Any],
        columns: int,
        skipped: int,
        below: int,
        table: NDArray[np.uint16],
    ) -> TakenRows:
        size, dtype, unit = frame.size, frame.dtype, frame.itemsize
        marks = np.empty(-(-(skipped + size) // columns), np.bool_)
        rooms = [buffer_for(use, size, dtype) for use in ("frame", "base")]
        rooms += [buffer_for(use, size, dtype) for use in ("calm", "step")] if below >= 0 else rooms
        moved, calm = codecs.take_rows(
            frame, base, unit, columns, skipped, below, table, marks, *rooms
        )
        one, other = moved // unit, calm // unit
        return TakenRows(
            marks, (rooms[0][:one], rooms[1][:one]), (rooms[2][:other], rooms[3][:other])
        )

    def frequent(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers, below: int, stride: int
    ) -> tuple[NDArray[np.uint16], int]:
        table = np.empty(CLASSES, "<u2")
        return table, codecs.frequent(frame, base, of.size, below, stride, table)


NUMPY: Final = RowMoves()
NATIVE: RowMoves | None = None if codecs is None else NativeRowMoves()
BEST: RowMoves = NATIVE or NUMPY
