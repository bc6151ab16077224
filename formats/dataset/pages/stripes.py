"""Page and fragment boundaries, which nest.

Rows are cut into stripes: a stripe ends when the first column has a page full. A page is a whole
number of stripes, and a column that ends a page makes every column that fills faster end one too.
So boundaries nest: a page of one column lies inside one page of every slower column.

The table of a tiled column is one page per fragment, however large its rows are. A stripe also ends
when such a column alone has a fragment full.

A column that is added later ends a page wherever the next slower one does, and only where the next
faster one does. Where it is the fastest, it cuts as it likes between these.

Source:
    docs/spec/dataset.md, section "Stripes".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    TiledValues,
    offsets_of,
)
from tensorrepo.repo.deferred_dataclass import dataclass

PAGE_BYTES = 1 << 20
SMALL_PAGE_BYTES = 256 << 10
SMALL_ROW_BYTES = 4096  # rows below this get the small pages, which mix better
MAX_FRAGMENT_ROWS = 1 << 31  # row ids have 32 bits for the offset
NO_LIMIT = 1 << 62  # a page that only the end of its fragment ends: that of a tiled column


@dataclass(frozen=True, slots=True)
class StripeStep:
    """The next rows ``[start, stop)`` of a batch, and what ends after them."""

    start: int
    stop: int
    closes: tuple[int, ...]  # columns, by place, whose page ends here
    fragment_ends: bool


@dataclass(slots=True)
class Stripes:
    """Where the writer stands. `advance` is the one way to move it.

    Attributes:
        limits: bytes of a full page, per column; NO_LIMIT for tiled ones.
        speeds: expected share of a page that one row fills, per column.
        fragment_bytes: bytes of a full fragment, all columns together.
    """

    limits: Sequence[int]
    speeds: Sequence[float]
    fragment_bytes: int
    _page: list[int] = field(init=False)  # bytes of the open page, whole stripes only
    _stripe: list[int] = field(init=False)  # bytes of the open stripe
    _fastest: float = field(init=False)
    _closes: dict[float, tuple[int, ...]] = field(init=False)  # columns as fast as that, and faster
    _stripe_rows: int = 0
    _fragment_bytes: int = 0
    _fragment_rows: int = 0

    def __post_init__(self) -> None:
        self._page = [0] * len(self.limits)
        self._stripe = [0] * len(self.limits)
        self._fastest = max(self.speeds, default=0.0)
        self._closes = {}

    def restart(self) -> None:
        """The fragment was ended from outside."""
        self.__post_init__()
        self._stripe_rows = self._fragment_bytes = self._fragment_rows = 0

    def advance(self, batch: Sequence[ColumnValues | TiledValues]) -> Iterator[StripeStep]:
        """Cut one batch, given as the values of every column; rows at its end may stay open."""
        rows = batch[0].rows
        costs = [_Costs(values) for values in batch]
        at = 0
        while at < rows:
            stop = self._fits(costs, at, rows)
            for place, cost in enumerate(costs):
                self._stripe[place] += cost.between(at, stop)
            self._stripe_rows += stop - at
            self._fragment_rows += stop - at
            yield self._end_stripe(at, stop) if stop < rows else StripeStep(at, stop, (), False)
            at = stop

    # What follows is done for each page, by loops: generators took half as long again.
    def _fits(self, costs: Sequence[_Costs], at: int, rows: int) -> int:
        """Where the open stripe ends at the latest; at least one row when it is empty."""
        stop = rows
        for place, cost in enumerate(costs):
            stop = min(stop, self._reach(place, cost, at))
        return stop if self._stripe_rows else max(stop, at + 1)

    def _reach(self, place: int, costs: _Costs, at: int) -> int:
        """How far one column lets the open stripe go."""
        used = self._stripe[place]
        if self.limits[place] < NO_LIMIT:
            return costs.reach(at, self.limits[place] - used)
        # Up to and with the row that fills the fragment, so that it ends there.
        room = self.fragment_bytes - self._fragment_bytes - used
        return costs.reach(at, room - 1) + 1 if room > 0 else at

    def _end_stripe(self, at: int, stop: int) -> StripeStep:
        for place, used in enumerate(self._stripe):
            self._page[place] += used
            self._fragment_bytes += used
        ends = (
            self._fragment_bytes >= self.fragment_bytes or self._fragment_rows >= MAX_FRAGMENT_ROWS
        )
        closes = tuple(range(len(self.limits))) if ends else self._full()
        for place in closes:
            self._page[place] = 0
        self._stripe = [0] * len(self.limits)
        self._stripe_rows = 0
        if ends:
            self._fragment_bytes = self._fragment_rows = 0
        return StripeStep(at, stop, closes, ends)

    def _full(self) -> tuple[int, ...]:
        """Columns that another stripe like the last would overfill, and all faster ones."""
        slowest = self._fastest
        for place, limit in enumerate(self.limits):
            if self._page[place] + self._stripe[place] > limit and self.speeds[place] < slowest:
                slowest = self.speeds[place]
        closes = self._closes.get(slowest)
        if closes is None:
            speeds = enumerate(self.speeds)
            closes = tuple(place for place, speed in speeds if speed >= slowest)
            self._closes[slowest] = closes
        return closes


class _Costs:
    """Bytes that rows of one column take, as running totals."""

    def __init__(self, values: ColumnValues | TiledValues) -> None:
        self._each = 0
        self._ends: Ints | None = None
        if isinstance(values, FixedValues):
            self._each = max(1, values.values[:1].nbytes)
            return
        if isinstance(values, TiledValues):
            self._ends = offsets_of(values.row_bytes())
            return
        items = values.data if isinstance(values, BinaryValues) else values.elements
        lengths = (values.offsets - values.offsets[0]) * items.dtype.itemsize
        self._ends = lengths + 8 * np.arange(len(lengths))

    def between(self, start: int, stop: int) -> int:
        if self._ends is None:
            return self._each * (stop - start)
        return int(self._ends[stop] - self._ends[start])

    def reach(self, start: int, room: int) -> int:
        """The last `stop` for which rows ``[start, stop)`` take no more than `room` bytes."""
        if self._ends is None:
            return start + max(0, room) // self._each
        return int(np.searchsorted(self._ends, self._ends[start] + max(0, room), "right")) - 1


def page_limit(storage: Storage, mean_row_bytes: float, page_bytes: int | None) -> int:
    """Bytes of a full page of a column; `page_bytes` is the caller's wish."""
    if storage.layout is ColumnLayout.TILED:
        return NO_LIMIT
    if page_bytes is not None:
        return page_bytes
    row_bytes = storage.row_bytes if storage.layout is ColumnLayout.FIXED else mean_row_bytes
    return SMALL_PAGE_BYTES if row_bytes < SMALL_ROW_BYTES else PAGE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class PageCuts:
    """Where pages of one fragment end in any case, the last row too, and where they may (None:
    anywhere), as rows counted within it, ascending.
    """

    must: Ints
    may: Ints | None


def page_cuts(others: Sequence[Ints], rows: int, page_rows: float) -> PageCuts:
    """The cuts of a new column.

    `others` says per column where its pages end in the fragment of `rows` rows; `page_rows` make a
    full page of the new column.
    """
    end = np.array([rows], np.int64)
    by_count = sorted({len(each): each for each in others}.items())
    slower = [each for count, each in by_count if rows / count >= page_rows]
    faster = [each for count, each in by_count if rows / count < page_rows]
    return PageCuts(slower[-1] if slower else end, faster[0] if faster else None)


class PageFiller:
    """Joins rows to pages, given where these may end. `add` and `finish` give complete pages."""

    def __init__(self, cuts: PageCuts, page_bytes: int) -> None:
        self._may = cuts.must if cuts.may is None else np.union1d(cuts.must, cuts.may)
        self._must = frozenset(cuts.must.tolist())
        self._anywhere = cuts.may is None
        self._page_bytes = page_bytes
        self._open: list[ColumnValues] = []
        self._open_bytes = 0
        self._unit: list[ColumnValues] = []  # since the last place where a page may end
        self._unit_bytes = 0
        self._row = 0
        self._next = 0  # place in `_may`

    def add(self, values: ColumnValues) -> Iterator[list[ColumnValues]]:
        """The pages that end within these rows, which come behind all before; each as pieces."""
        at = 0
        while at < values.rows:
            stop = min(values.rows, at + int(self._may[self._next]) - self._row)
            if self._anywhere:
                stop = min(stop, at + self._room(values, at))
            piece = values.slice(at, stop)
            self._unit.append(piece)
            self._unit_bytes += piece.nbytes
            self._row += stop - at
            at = stop
            if self._anywhere or self._row == self._may[self._next]:
                yield from self._end_unit()

    def _room(self, values: ColumnValues, at: int) -> int:
        """How many rows the open page takes yet: one at least."""
        room = max(0, self._page_bytes - self._open_bytes)
        return max(1, _Costs(values).reach(at, room) - at)

    def _end_unit(self) -> Iterator[list[ColumnValues]]:
        if self._open and self._open_bytes + self._unit_bytes > self._page_bytes:
            yield self._end_page()
        self._open += self._unit
        self._open_bytes += self._unit_bytes
        self._unit, self._unit_bytes = [], 0
        if self._row == self._may[self._next]:
            self._next += 1
        if self._row in self._must:
            yield self._end_page()

    def _end_page(self) -> list[ColumnValues]:
        done, self._open, self._open_bytes = self._open, [], 0
        return done
