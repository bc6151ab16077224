"""Bitmap of rows: some rows of a dataset, once each, with rank and select.

Rows are counted without deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.repo.deferred_dataclass import dataclass

_WORD = 64  # rows of a word of the bitmap
_SPARSE = 16  # from one row in so many on, bits are set one by one
_AT_ONCE = 1 << 16  # rows handled at once: 512 KiB an array


@dataclass(frozen=True, slots=True, eq=False)
class RowBits:
    """Some rows, once each.

    `words` is little-endian uint64: row r is bit ``r % 64`` of word ``r // 64``, and there is at
    least one word behind the last row. `ahead` is int64 ``(words,)``, the chosen rows before each.
    """

    rows: int
    words: NDArray[np.uint64]
    ahead: Ints

    @property
    def total(self) -> int:
        return int(self.ahead[-1])  # the last word is empty

    def before(self, rows: Ints) -> Ints:
        word, bit = rows // _WORD, (rows % _WORD).astype(np.uint64)
        below = self.words[word] & ((np.uint64(1) << bit) - np.uint64(1))
        return self.ahead[word] + np.bitwise_count(below)

    def numbers(self) -> Ints:
        """Numbers of the chosen rows, ascending."""
        parts = [
            start + np.flatnonzero(self.counts(start, stop)) for start, stop in spans(self.rows)
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def row_of(self, items: Ints) -> Ints:
        word = np.searchsorted(self.ahead, items, side="right") - 1
        return word * _WORD + _nth_bit(self.words[word], items - self.ahead[word])

    def counts(self, start: int, stop: int) -> Ints:
        first = start // 8
        some = self.words.view(np.uint8)[first : -(-stop // 8)]
        bits = np.unpackbits(some, bitorder="little")[start - 8 * first : stop - 8 * first]
        return bits.astype(np.int64)


def _nth_bit(words: NDArray[np.uint64], n: Ints) -> Ints:
    """Where in each word its n-th set bit is, counted from 0: halving the word six times."""
    position = np.zeros(words.shape, np.int64)
    for half in (32, 16, 8, 4, 2, 1):
        low = np.bitwise_count(words & np.uint64((1 << half) - 1)).astype(np.int64)
        above = n >= low
        n = n - low * above
        words = words >> (above * half).astype(np.uint64)
        position += above * half
    return position


def bits_of(rows: int, pieces: Iterable[Ints]) -> RowBits:
    """The rows that `pieces` name, in any order; one that is named twice comes once."""
    words = np.zeros(rows // _WORD + 1, np.uint64)
    as_bytes = words.view(np.uint8)
    for piece in pieces:
        _set_bits(as_bytes, piece)
    return _counted(rows, words)


def _set_bits(as_bytes: NDArray[np.uint8], rows: Ints) -> None:
    if not rows.size:
        return
    first, stop = int(rows.min()) // 8 * 8, int(rows.max()) + 1
    if stop - first > _SPARSE * rows.size:
        np.bitwise_or.at(as_bytes, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))
        return
    mask = np.zeros(stop - first, np.bool_)
    mask[rows - first] = True
    as_bytes[first // 8 : -(-stop // 8)] |= np.packbits(mask, bitorder="little")


def both(one: RowBits, other: RowBits) -> RowBits:
    """Rows that are in both of two choices of one dataset."""
    return _counted(one.rows, one.words & other.words)


def _counted(rows: int, words: NDArray[np.uint64]) -> RowBits:
    ahead = offsets_of(np.bitwise_count(words))
    if rows % _WORD:  # an empty word behind the last row, so that all items have a word after them
        words = np.append(words, np.uint64(0))
        return RowBits(rows, words, ahead)
    return RowBits(rows, words, ahead[:-1])


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """``[0, rows)`` in pieces that stay in cache."""
    for start in range(0, rows, _AT_ONCE):
        yield start, min(start + _AT_ONCE, rows)
