"""Selected rows and their multiplicity: bitmaps, counts, and weights.

If every row stands in a line as often as it comes, `before` says how many items lie before a row,
`row_of` which row an item is; both are looked up for many at once. A weight w is the expected
number of times: in each epoch a row comes floor(w) times or once more, by a keyed number of its
own. Weights are integers in units of 2^-32, so that every machine agrees.

Source:
    docs/spec/stream-order.md, section "Weights".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.selecting.row_bits import RowBits, bits_of, spans
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key, numbers
from tensorrepo.repo.errors import InvalidInputError

_WORD = 64  # rows of a word of the bitmap, and of a block of counts
_LOOKED_UP_AT_ONCE = 1 << 13  # a block of counts for each: 4 MiB as they are added up


class RowChoice(Protocol):
    """How often each of `rows` live rows comes."""

    @property
    def rows(self) -> int: ...

    @property
    def total(self) -> int:
        """Items: all rows, each as often as it comes."""
        ...

    def before(self, rows: Ints) -> Ints:
        """Items before each of `rows`, which are in ``[0, self.rows]``."""
        ...

    def row_of(self, items: Ints) -> Ints:
        """The row of each of `items`, which are in ``[0, total)``."""
        ...

    def counts(self, start: int, stop: int) -> Ints:
        """How often each of the rows ``[start, stop)`` comes."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class EveryRow:
    """Every row once."""

    rows: int

    @property
    def total(self) -> int:
        return self.rows

    def before(self, rows: Ints) -> Ints:
        return rows

    def row_of(self, items: Ints) -> Ints:
        return items

    def counts(self, start: int, stop: int) -> Ints:
        return np.ones(stop - start, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RowCounts:
    """Rows that come any number of times.

    `each` is an array of small unsigned numbers, as many as fill blocks of 64 and at least one
    more than there are rows; `ahead` is int64, the items before each block, and all of them.
    """

    rows: int
    each: NDArray[Any]
    ahead: Ints

    @property
    def total(self) -> int:
        return int(self.ahead[-1])

    def before(self, rows: Ints) -> Ints:
        block, inside = rows // _WORD, rows % _WORD
        items = np.empty(rows.shape, np.int64)
        for at in range(0, len(rows), _LOOKED_UP_AT_ONCE):
            some = slice(at, at + _LOOKED_UP_AT_ONCE)
            counts = self._blocks(block[some])
            ahead = np.where(np.arange(_WORD) < inside[some, None], counts, 0).sum(axis=1)
            items[some] = self.ahead[block[some]] + ahead
        return items

    def row_of(self, items: Ints) -> Ints:
        block = np.searchsorted(self.ahead, items, side="right") - 1
        rest = items - self.ahead[block]
        inside = np.empty(items.shape, np.int64)
        for at in range(0, len(items), _LOOKED_UP_AT_ONCE):
            some = slice(at, at + _LOOKED_UP_AT_ONCE)
            ends = np.cumsum(self._blocks(block[some]), axis=1)
            inside[some] = (ends <= rest[some, None]).sum(axis=1)
        return block * _WORD + inside

    def counts(self, start: int, stop: int) -> Ints:
        return self.each[start:stop].astype(np.int64)

    def _blocks(self, block: Ints) -> Ints:
        counts: Ints = self.each.reshape(-1, _WORD)[block].astype(np.int64)
        return counts


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


UNIT_BITS = 32
MOST_TIMES = 1 << 31  # a row comes at most so often: counts stay below 2^32
_MANTISSA_BITS = 52
_LOW = np.uint64((1 << 32) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """One weight per live row of a dataset.

    Attributes:
        units: uint64, weights in units of 2^-32: one per row, or one per kind of row.
        kind: unsigned ``(rows,)``, a place in `units`; None where each row has a weight of its own.
    """

    units: NDArray[np.uint64]
    kind: NDArray[Any] | None = None

    @property
    def rows(self) -> int:
        return len(self.units if self.kind is None else self.kind)

    @property
    def total_units(self) -> int:
        """Sum over all rows: 2^32 times the expected length of an epoch."""
        if self.kind is None:
            return exact_sum(self.units)
        rows = np.bincount(self.kind, minlength=len(self.units))
        return sum(a * b for a, b in zip(rows.tolist(), self.units.tolist(), strict=True))

    @property
    def expected_rows(self) -> int:
        """The mean length of an epoch, rounded."""
        return (self.total_units + (1 << UNIT_BITS - 1)) >> UNIT_BITS

    def of(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Units of the rows ``[start, stop)``."""
        return self.units[start:stop] if self.kind is None else self.units[self.kind[start:stop]]

    def positive(self) -> RowBits:
        """The rows that can come at all."""
        above = (first + np.flatnonzero(self.of(first, stop)) for first, stop in spans(self.rows))
        return bits_of(self.rows, above)

    def counts(self, seed: int, epoch: int) -> RowCounts:
        """How often each row comes in one epoch: 10 ns a row."""
        most = (int(self.units.max(initial=0)) >> UNIT_BITS) + 1
        return counts_of(self.rows, most, self._drawn(epoch_key(seed, epoch, Purpose.WEIGHTS)))

    def _drawn(self, key: int) -> Iterator[NDArray[np.uint64]]:
        for start, stop in spans(self.rows):
            units = numbers(key, np.arange(start, stop, dtype=np.uint64))
            units >>= np.uint64(64 - UNIT_BITS)
            units += self.of(start, stop)
            units >>= np.uint64(UNIT_BITS)
            yield units


def given_weights(given: NDArray[Any], chosen: RowBits | None, epoch_rows: int | None) -> Weights:
    """Weights as people give them: expected counts, or shares of `epoch_rows`.

    Args:
        given: ``(rows,)`` numbers, finite and not below 0.
        chosen: rows outside of it come never; None: all are in.
        epoch_rows: the expected length of an epoch; None: the sum of the weights.

    Raises:
        InvalidInputError: no such numbers, or all of them are 0.
    """
    weights = np.array(given, np.float64)
    if chosen is not None:
        for start, stop in spans(len(weights)):
            weights[start:stop][chosen.counts(start, stop) == 0] = 0
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InvalidInputError(f"row {row} has weight {weights[row]}: weights are 0 or more")
    if not weights.any():
        raise InvalidInputError("all weights are 0: no row would ever come")
    units = _scaled(weights, epoch_rows) if epoch_rows else np.rint(np.ldexp(weights, UNIT_BITS))
    return _checked(units)


def _scaled(weights: NDArray[np.float64], epoch_rows: int) -> NDArray[np.float64]:
    """Weights in units, so that they add up to `epoch_rows`. Integers carry the sum, exactly."""
    exponent = math.frexp(float(weights.max()))[1]
    whole = np.rint(np.ldexp(weights, _MANTISSA_BITS - exponent))
    scale = (epoch_rows << UNIT_BITS) / exact_sum(whole.astype(np.uint64))
    return np.rint(whole * scale)


def _checked(units: NDArray[np.float64]) -> Weights:
    if units.max() > MOST_TIMES << UNIT_BITS:
        row = int(units.argmax())
        raise InvalidInputError(
            f"row {row} would come {units[row] / 2**UNIT_BITS:.3g} times an epoch; at most "
            f"{MOST_TIMES:,} times are possible. Scale the weights with epoch_rows=."
        )
    return Weights(units.astype(np.uint64))


def balanced_weights(kind: NDArray[Any], rows_of_kind: Ints, length: int) -> Weights:
    """Weights by which every kind of rows comes equally often.

    Args:
        kind: unsigned ``(rows,)``, the class of each row; the last one is of rows that come never.
        rows_of_kind: int64 ``(classes,)``, rows of each class but that one; none is 0.
        length: expected rows of an epoch, of all classes together.
    """
    classes = len(rows_of_kind)
    units = [(length << UNIT_BITS) // (classes * rows) for rows in rows_of_kind.tolist()]
    if max(units) > MOST_TIMES << UNIT_BITS:
        raise InvalidInputError(f"a class would come {max(units) >> UNIT_BITS:,} times an epoch")
    return Weights(np.array([*units, 0], np.uint64), kind)


def exact_sum(units: NDArray[np.uint64]) -> int:
    """The sum of numbers below 2^63, without overflow."""
    total = 0
    for start, stop in spans(len(units)):
        some = units[start:stop]
        total += (int((some >> np.uint64(32)).sum()) << 32) + int((some & _LOW).sum())
    return total
