"""Row bitmap: chosen rows of a dataset, a bit for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_STEP = 1 << 20  # rows that are unpacked at a time; a multiple of 8


@dataclass(frozen=True, slots=True, eq=False)
class RowBitmap:
    """Chosen rows out of `rows`, deleted ones not counted.

    Attributes:
        rows: number of rows that could be chosen.
        bits: uint8 ``(ceil(rows / 8),)``, the lowest bit first.
        text: condition that chose them, for messages.
    """

    rows: int
    bits: NDArray[np.uint8]
    text: str

    @classmethod
    def of(cls, rows: int, numbers: Iterable[NDArray[np.int64]], text: str) -> RowBitmap:
        """The rows that arrays of `numbers` name, in any order."""
        bits = np.zeros(-(-rows // 8), np.uint8)
        for some in numbers:
            np.bitwise_or.at(bits, some >> 3, np.left_shift(1, some & 7).astype(np.uint8))
        return cls(rows, bits, text)

    def numbers(self) -> Iterator[NDArray[np.int64]]:
        """Numbers of the chosen rows, ascending, some at a time; at least one array."""
        for start in range(0, max(1, self.rows), _STEP):
            some = self.bits[start // 8 : (start + _STEP) // 8]
            yield start + np.flatnonzero(np.unpackbits(some, bitorder="little"))

    def __str__(self) -> str:
        return self.text
