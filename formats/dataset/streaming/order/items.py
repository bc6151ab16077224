"""Items: what an order counts, as rows, repeated rows, or packed elements.

Mostly an item is a row. A selection changes only how many items a run has: rows that were not
chosen are none, a row that comes three times is three. In a packed column the chosen rows of a run
are one line of elements, of which every `size` are an item. Orders and schedules see counts alone;
what an item is gets looked up afterwards, for thousands at once.

Source:
    docs/spec/stream-order.md, section "Items".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.selecting.row_bits import spans
from tensorrepo.formats.dataset.streaming.order.schedule import StepStretch
from tensorrepo.formats.dataset.streaming.order.selection import EveryRow, RowChoice, Weights


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

    def rows(self, run: Ints, item: Ints) -> Ints:
        """What each item of each run, as the order numbers it, is: a live row inside the run."""
        ...


def items_total(items: Items) -> int:
    """The length of the epoch."""
    if isinstance(items, RowItems) and isinstance(items.choice, EveryRow):
        return items.choice.rows
    return int(items.counts.sum())


def placed(stretch: StepStretch, items: Items) -> StepStretch:
    """A stretch of items, with the plan's own numbers of runs and rows."""
    if isinstance(items, RowItems) and isinstance(items.choice, EveryRow):
        return stretch
    row, runs = items.rows(stretch.run, stretch.row), items.runs
    return replace(
        stretch,
        run=runs[stretch.run],
        row=row,
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

    def rows(self, run: Ints, item: Ints) -> Ints:
        if isinstance(self.choice, EveryRow):
            return item
        return self.choice.row_of(self.ahead[run] + item) - self.first_row[run]


def row_items(first_row: Ints, live: Ints, choice: RowChoice | None) -> RowItems:
    """The items of runs that begin with these live rows of the dataset and have so many.

    Args:
        first_row: int64 ``(runs,)``.
        live: int64 ``(runs,)``, all above 0.
        choice: how often each row comes; None: once.
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
        text: what was asked for, for people.
    """

    chosen: RowChoice
    weights: Weights | None
    text: str
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
        rows, weights = self.chosen.rows, self.weights
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

    `elements` are those of each run, `choice` says how often each row stands in its line.
    """

    runs: Ints
    counts: Ints
    size: int
    elements: Ints
    choice: RowChoice | None

    def rows(self, run: Ints, item: Ints) -> Ints:  # noqa: ARG002 items count within their run already
        return item


def packed_items(
    packing: Packing, pages: Ints, first_row: Ints, live: Ints, choice: RowChoice | None
) -> PackedItems:
    """The items of runs; those without elements have none."""
    elements = packing.elements(pages, first_row, live, choice)
    runs = np.flatnonzero(elements)
    counts = -(-elements[runs] // packing.size)
    return PackedItems(runs, counts, packing.size, elements[runs], choice)
