"""How often does a row come that has a weight?

A weight w is the expected number of times: in each epoch a row comes floor(w) times or once more,
by a keyed number of its own. So epochs differ, their mean is w, and every machine agrees: weights
are integers in units of 2^-32, and no sum of floats depends on its order.

Source:
    docs/spec/stream-order.md, section "Weights".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.choice import RowBits, RowCounts, bits_of
from tensorrepo.formats.dataset.streaming.ordering.choice import counts_of as row_counts_of
from tensorrepo.formats.dataset.streaming.ordering.keyed import Purpose, epoch_key, numbers
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

UNIT_BITS = 32
MOST_TIMES = 1 << 31  # a row comes at most so often: counts stay below 2^32
_AT_ONCE = 1 << 16  # rows handled at once: 512 KiB an array
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
        return row_counts_of(self.rows, most, self._drawn(epoch_key(seed, epoch, Purpose.WEIGHTS)))

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


def balanced_weights(kind: NDArray[Any], rows_of_kind: NDArray[np.int64], length: int) -> Weights:
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


def spans(rows: int) -> Iterator[tuple[int, int]]:
    """``[0, rows)`` in pieces that stay in cache."""
    for start in range(0, rows, _AT_ONCE):
        yield start, min(start + _AT_ONCE, rows)
