"""Which rows of a dataset were chosen, and how often does each come in an epoch?

Rows are the live ones of the whole dataset. If every row stands in a line as often as it comes, the
line's places are *items*: `before` says how many items lie before a row, `row_of` which row an item
is. Both are looked up for many at once, in a bitmap (2 bits a row) or in small counts (from 1 byte
a row), so that nothing of the size of the chosen rows is made.

Source:
    docs/spec/stream-order.md, section "Items".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_WORD = 64  # rows of a word of the bitmap, and of a block of counts
_SPARSE = 16  # from one row in so many on, bits are set one by one
_LOOKED_UP_AT_ONCE = 1 << 13  # a block of counts for each: 4 MiB as they are added up


class Choice(Protocol):
    """How often each of `rows` live rows comes."""

    @property
    def rows(self) -> int: ...

    @property
    def total(self) -> int:
        """Items: all rows, each as often as it comes."""
        ...

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Items before each of `rows`, which are in ``[0, self.rows]``."""
        ...

    def row_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each of `items`, which are in ``[0, total)``."""
        ...

    def counts(self, start: int, stop: int) -> NDArray[np.int64]:
        """How often each of the rows ``[start, stop)`` comes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class EveryRow:
    """Every row once."""

    rows: int

    @property
    def total(self) -> int:
        return self.rows

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows

    def row_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        return items

    def counts(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.ones(stop - start, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RowBits:
    """Some rows, once each.

    `words` is little-endian uint64: row r is bit ``r % 64`` of word ``r // 64``, and there is at
    least one word behind the last row. `ahead` is int64 ``(words,)``, the chosen rows before each.
    """

    rows: int
    words: NDArray[np.uint64]
    ahead: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int(self.ahead[-1])  # the last word is empty

    @property
    def bitmap(self) -> NDArray[np.uint8]:
        """``(ceil(rows / 8),)``: row r is bit ``r % 8`` of byte ``r // 8``."""
        return self.words.view(np.uint8)[: -(-self.rows // 8)]

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        word, bit = rows // _WORD, (rows % _WORD).astype(np.uint64)
        below = self.words[word] & ((np.uint64(1) << bit) - np.uint64(1))
        found: NDArray[np.int64] = self.ahead[word] + np.bitwise_count(below)
        return found

    def row_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        word = np.searchsorted(self.ahead, items, side="right") - 1
        return word * _WORD + _nth_bit(self.words[word], items - self.ahead[word])

    def counts(self, start: int, stop: int) -> NDArray[np.int64]:
        first = start // 8
        some = self.words.view(np.uint8)[first : -(-stop // 8)]
        bits = np.unpackbits(some, bitorder="little")[start - 8 * first : stop - 8 * first]
        return bits.astype(np.int64)


def _nth_bit(words: NDArray[np.uint64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in each word its n-th set bit is, counted from 0: halving the word six times."""
    found = np.zeros(words.shape, np.int64)
    for half in (32, 16, 8, 4, 2, 1):
        low = np.bitwise_count(words & np.uint64((1 << half) - 1)).astype(np.int64)
        above = n >= low
        n = n - low * above
        words = words >> (above * half).astype(np.uint64)
        found += above * half
    return found


def bits_of(rows: int, pieces: Iterable[NDArray[np.int64]]) -> RowBits:
    """The rows that `pieces` name, in any order; one that is named twice comes once."""
    words = np.zeros(rows // _WORD + 1, np.uint64)
    as_bytes = words.view(np.uint8)
    for numbers in pieces:
        _set_bits(as_bytes, numbers)
    return _counted(rows, words)


def _set_bits(as_bytes: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
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
    ahead = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.bitwise_count(words), out=ahead[1:])
    if rows % _WORD:  # an empty word behind the last row, so that all items have a word after them
        words = np.append(words, np.uint64(0))
        return RowBits(rows, words, ahead)
    return RowBits(rows, words, ahead[:-1])


@dataclass(frozen=True, slots=True, eq=False)
class RowCounts:
    """Rows that come any number of times.

    `each` is an array of small unsigned numbers, as many as fill blocks of 64 and at least one
    more than there are rows; `ahead` is int64, the items before each block, and all of them.
    """

    rows: int
    each: NDArray[Any]
    ahead: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int(self.ahead[-1])

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        block, inside = rows // _WORD, rows % _WORD
        found = np.empty(rows.shape, np.int64)
        for at in range(0, len(rows), _LOOKED_UP_AT_ONCE):
            some = slice(at, at + _LOOKED_UP_AT_ONCE)
            counts = self._blocks(block[some])
            ahead = np.where(np.arange(_WORD) < inside[some, None], counts, 0).sum(axis=1)
            found[some] = self.ahead[block[some]] + ahead
        return found

    def row_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        block = np.searchsorted(self.ahead, items, side="right") - 1
        rest = items - self.ahead[block]
        found = np.empty(items.shape, np.int64)
        for at in range(0, len(items), _LOOKED_UP_AT_ONCE):
            some = slice(at, at + _LOOKED_UP_AT_ONCE)
            ends = np.cumsum(self._blocks(block[some]), axis=1)
            found[some] = (ends <= rest[some, None]).sum(axis=1)
        return block * _WORD + found

    def counts(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.each[start:stop].astype(np.int64)

    def _blocks(self, block: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.each.reshape(-1, _WORD)[block].astype(np.int64)
        return found


def counts_of(rows: int, most: int, pieces: Iterable[NDArray[np.uint64]]) -> RowCounts:
    """Rows that come as often as `pieces`, one after the other, say: `most` times at most."""
    each = np.zeros((rows // _WORD + 1) * _WORD, np.min_scalar_type(most))
    first = 0
    for piece in pieces:
        each[first : first + len(piece)] = piece
        first += len(piece)
    ahead = np.zeros(len(each) // _WORD + 1, np.int64)
    np.cumsum(each.reshape(-1, _WORD).sum(axis=1, dtype=np.int64), out=ahead[1:])
    return RowCounts(rows, each, ahead)
