"""Items: what an order counts, as rows, repeated rows, or packed elements.

Mostly an item is a row. A selection changes only how many items a run has: rows that were not
chosen are none, a row that comes three times is three. In a packed column the chosen rows of a run
are one line of elements, of which every `size` are an item. Orders and schedules see counts alone;
what an item is gets looked up afterwards, for thousands at once.

If every row stands in a line as often as it comes, `RowChoice.before` says how many items lie
before a row, `row_of` which row an item is. A weight w is the expected number of times: in each
epoch a row comes floor(w) times or once more, by a keyed number of its own. Weights are integers in
units of 2^-32, so that every machine agrees.

Source:
    docs/spec/stream-order.md, sections "Items" and "Weights".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.selecting.row_bits import RowBits, bits_of, spans
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key, numbers
from tensorrepo.formats.dataset.streaming.order.schedule import StepStretch
from tensorrepo.repo.deferred_dataclass import dataclass
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

    def before(self, rows: Ints) -> Ints:
        """Items before each of `rows`, which are in ``[0, self.rows]``."""

    def row_of(self, items: Ints) -> Ints:
        """The row of each of `items`, which are in ``[0, total)``."""

    def counts(self, start: int, stop: int) -> Ints:
        """How often each of the rows ``[start, stop)`` comes."""


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
class EchoedRows:
    """The rows of a choice, each so many `times` as often. Time t of an item is `t % times`."""

    choice: RowChoice
    times: int

    @property
    def rows(self) -> int:
        return self.choice.rows

    @property
    def total(self) -> int:
        return self.choice.total * self.times

    def before(self, rows: Ints) -> Ints:
        return self.choice.before(rows) * self.times

    def row_of(self, items: Ints) -> Ints:
        return self.choice.row_of(items // self.times)

    def counts(self, start: int, stop: int) -> Ints:
        return self.choice.counts(start, stop) * self.times


@dataclass(frozen=True, slots=True, eq=False)
class RowsWithin:
    """How often the rows ``[first, first + rows)`` of a choice come, counted from `first`."""

    choice: RowChoice
    first: int
    rows: int

    @property
    def total(self) -> int:
        return int(self.before(np.array([self.rows]))[0])

    def before(self, rows: Ints) -> Ints:
        items = self.choice.before(np.concatenate(([self.first], rows + self.first)))
        inside: Ints = items[1:] - items[0]
        return inside

    def row_of(self, items: Ints) -> Ints:
        ahead = self.choice.before(np.array([self.first]))
        return self.choice.row_of(items + ahead) - self.first

    def counts(self, start: int, stop: int) -> Ints:
        return self.choice.counts(self.first + start, self.first + stop)


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
        return self.each.reshape(-1, _WORD)[block].astype(np.int64)


def counts_of(rows: int, most: int, pieces: Iterable[NDArray[np.uint64]]) -> RowCounts:
    """Rows that come as often as `pieces`, one after the other, say: `most` times at most."""
    each = np.zeros((rows // _WORD + 1) * _WORD, np.min_scalar_type(most))
    first = 0
    for piece in pieces:
        each[first : first + len(piece)] = piece
        first += len(piece)
    return RowCounts(rows, each, offsets_of(each.reshape(-1, _WORD).sum(axis=1, dtype=np.int64)))


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
        rows = rows_by_kind(self.kind, len(self.units))
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


def rows_by_kind(kind: NDArray[Any], kinds: int) -> Ints:
    """Rows of each kind, ``(kinds,)``, of unsigned ``(rows,)``."""
    found, step = np.zeros(kinds, np.int64), max(1 << 16, 8 * kinds)
    # In parts: numpy counts 64-bit numbers, and would make one of each row at once.
    for start in range(0, len(kind), step):
        found += np.bincount(kind[start : start + step], minlength=kinds)
    return found


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
    if units.max() > MOST_TIMES << UNIT_BITS:
        row = int(units.argmax())
        raise InvalidInputError(
            f"row {row} would come {units[row] / 2**UNIT_BITS:.3g} times an epoch; at most "
            f"{MOST_TIMES:,} times are possible. Scale the weights with epoch_rows=."
        )
    return Weights(units.astype(np.uint64))


def _scaled(weights: NDArray[np.float64], epoch_rows: int) -> NDArray[np.float64]:
    """Weights in units, so that they add up to `epoch_rows`. Integers carry the sum, exactly."""
    exponent = math.frexp(float(weights.max()))[1]
    whole = np.rint(np.ldexp(weights, _MANTISSA_BITS - exponent))
    scale = (epoch_rows << UNIT_BITS) / exact_sum(whole.astype(np.uint64))
    return np.rint(whole * scale)


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


class Items(Protocol):
    """The items of an epoch, by run.

    Attributes:
        runs: int64 ``(n,)``, numbers of the plan's runs that have items. An order numbers these
            from 0, so its runs all have items.
        counts: int64 ``(n,)``, items of each: at least one.
    """

    @property
    def runs(self) -> Ints: ...

    @property
    def counts(self) -> Ints: ...

    @property
    def total(self) -> int:
        """The length of the epoch."""

    def rows(self, run: Ints, item: Ints) -> Ints:
        """What each item of each run, as the order numbers it, is: a live row inside the run."""


def placed(stretch: StepStretch, items: Items) -> StepStretch:
    """A stretch of items, with the plan's own numbers of runs and rows."""
    if isinstance(items, RowItems) and isinstance(items.choice, EveryRow):
        return stretch
    row, runs = items.rows(stretch.run, stretch.row), items.runs
    choice = items.choice if isinstance(items, RowItems) else None
    return replace(
        stretch,
        run=runs[stretch.run],
        row=row,
        echo=stretch.row % choice.times if isinstance(choice, EchoedRows) else None,
        opened=runs[stretch.opened],
        closed=runs[stretch.closed],
    )


@dataclass(frozen=True, slots=True, eq=False)
class RowItems:
    """Items that are rows.

    `first_row` is the live row of the dataset that each run begins with, `ahead` the items of the
    whole dataset before it; both by the order's numbers of runs.
    """

    runs: Ints
    counts: Ints
    choice: RowChoice
    first_row: Ints
    ahead: Ints

    @property
    def total(self) -> int:
        return self.choice.total

    def rows(self, run: Ints, item: Ints) -> Ints:
        if isinstance(self.choice, EveryRow):
            return item
        return self.choice.row_of(self.ahead[run] + item) - self.first_row[run]


def row_items(first_row: Ints, live: Ints, choice: RowChoice | None) -> RowItems:
    """The items of runs that begin with these live rows of the dataset and have so many.

    `live` are above 0; without a `choice` each row comes once.
    """
    if choice is None:
        every = EveryRow(int(live.sum()))
        return RowItems(np.arange(len(live)), live, every, first_row, first_row)
    ahead = choice.before(first_row)
    counts = choice.before(first_row + live) - ahead
    runs = np.flatnonzero(counts)
    return RowItems(runs, counts[runs], choice, first_row[runs], ahead[runs])


@dataclass(frozen=True, slots=True, eq=False)
class RowLengths:
    """Lengths of all live rows of a column, uint32, and the bytes that were read to know them."""

    column: str
    values: NDArray[np.uint32]
    read_bytes: int


# ------------------------------------------------------------------------------ selections


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Some rows of a dataset, or all of them with weights.

    Attributes:
        chosen: the rows that can come at all.
        weights: weights of all live rows, 0 where not chosen; None: each comes once.
        text: wish of the caller, for people.
        is_reported: whether the weights follow from reports: then they differ from epoch to epoch,
            and the digest is that of the rows alone.
    """

    chosen: RowChoice
    weights: Weights | None
    text: str
    is_reported: bool = False
    _newest: dict[tuple[int, int], RowChoice] = field(default_factory=dict)

    def choice(self, seed: int, epoch: int) -> RowChoice:
        """How often each row comes in one epoch; the newest one asked for is kept."""
        if self.weights is None:
            return self.chosen
        choice = self._newest.get((seed, epoch))
        if choice is None:
            choice = self.weights.counts(seed, epoch)
            self._newest.clear()
            self._newest[seed, epoch] = choice
        return choice

    @cached_property
    def expected_rows(self) -> int:
        """The length of an epoch; with weights its mean, rounded."""
        if self.weights is None:
            return self.chosen.total
        return self.weights.expected_rows

    @cached_property
    def digest(self) -> str:
        """64 hex digits of what was chosen, in whatever way it was named."""
        rows, weights = self.chosen.rows, None if self.is_reported else self.weights
        kind = b"rows" if weights is None else b"weights"
        hasher = hashlib.sha256(b"tensorrepo selection v1 " + kind + rows.to_bytes(8, "little"))
        for start, stop in spans(rows):
            if weights is None:
                bits = np.packbits(self.chosen.counts(start, stop) > 0, bitorder="little")
                hasher.update(bits.data)
            else:
                hasher.update(weights.of(start, stop).astype("<u8").data)
        return hasher.hexdigest()


_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Items of `size` elements.

    Attributes:
        size: elements of an item.
        lengths: uint32, of every live row of the dataset; None where pages tell all.
        page_elements: int64, elements of each page of the column, which `lengths` None needs.
    """

    size: int
    lengths: NDArray[np.uint32] | None
    page_elements: Ints

    def elements(self, pages: Ints, first_row: Ints, live: Ints, choice: RowChoice | None) -> Ints:
        """Elements of each run: the page `pages`, of the live rows from `first_row` on."""
        if self.lengths is None:
            return self.page_elements[pages]
        counts = np.zeros(len(live), np.int64)
        ends = offsets_of(live)
        at = 0
        while at < len(live):
            stop = max(at + 1, int(np.searchsorted(ends, ends[at] + _ROWS_AT_ONCE, "right")) - 1)
            counts[at:stop] = self._elements(first_row[at:stop], live[at:stop], choice)
            at = stop
        return counts

    def _elements(self, first_row: Ints, live: Ints, choice: RowChoice | None) -> Ints:
        assert self.lengths is not None, "pages do not tell"
        start, stop = int(first_row[0]), int(first_row[-1] + live[-1])
        lengths = self.lengths[start:stop].astype(np.int64)
        if choice is not None:
            lengths *= choice.counts(start, stop)
        before = offsets_of(lengths)
        counts: Ints = before[first_row + live - start] - before[first_row - start]
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class PackedItems:
    """Items that are elements ``[item * size, (item + 1) * size)`` of a run's line of elements.

    `elements` are those of each run of the plan, `choice` says how often each row stands in its
    line. An epoch has `total` items, and in them `filled` elements that are no padding.
    """

    runs: Ints
    counts: Ints
    size: int
    elements: Ints
    choice: RowChoice | None
    total: int
    filled: int

    def rows(self, run: Ints, item: Ints) -> Ints:  # noqa: ARG002 items count within their run already
        return item


def packed_items(
    packing: Packing, pages: Ints, first_row: Ints, live: Ints, choice: RowChoice | None
) -> PackedItems:
    """The items of runs; those without elements have none."""
    elements = packing.elements(pages, first_row, live, choice)
    runs = np.flatnonzero(elements)
    counts = -(-elements[runs] // packing.size)
    total, filled = int(counts.sum()), int(elements.sum())
    return PackedItems(runs, counts, packing.size, elements, choice, total, filled)
