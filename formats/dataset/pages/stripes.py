"""Where do pages and fragments end?

Rows are cut into stripes: a stripe ends when the first column has a page full. A page is a whole
number of stripes, and a column that ends a page makes every column that fills faster end one too.
So boundaries nest: a page of one column lies inside one page of every slower column.

The table of a tiled column is one page per fragment, however large its rows are. A stripe also ends
when such a column alone has a fragment full.

Source:
    docs/spec/dataset.md, section "Stripes".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.columns.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    TiledValues,
    offsets_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.types import Storage

PAGE_BYTES = 1 << 20
SMALL_PAGE_BYTES = 256 << 10
SMALL_ROW_BYTES = 4096  # rows below this get the small pages, which mix better
MAX_FRAGMENT_ROWS = 1 << 31  # row ids have 32 bits for the offset
NO_LIMIT = 1 << 62  # a page that only the end of its fragment ends: that of a tiled column


@dataclass(frozen=True, slots=True)
class Step:
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
        fragment_bytes: where a fragment ends, all columns together.
    """

    limits: Sequence[int]
    speeds: Sequence[float]
    fragment_bytes: int
    _page: list[int] = field(init=False)  # bytes of the open page, whole stripes only
    _stripe: list[int] = field(init=False)  # bytes of the open stripe
    _stripe_rows: int = 0
    _fragment_bytes: int = 0
    _fragment_rows: int = 0

    def __post_init__(self) -> None:
        self._page = [0] * len(self.limits)
        self._stripe = [0] * len(self.limits)

    @property
    def fragment_rows(self) -> int:
        """Rows since the last fragment ended."""
        return self._fragment_rows

    def restart(self) -> None:
        """The fragment was ended from outside."""
        self.__post_init__()
        self._stripe_rows = self._fragment_bytes = self._fragment_rows = 0

    def advance(self, batch: Sequence[ColumnValues | TiledValues]) -> Iterator[Step]:
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
            yield self._end_stripe(at, stop) if stop < rows else Step(at, stop, (), False)
            at = stop

    def _fits(self, costs: Sequence[_Costs], at: int, rows: int) -> int:
        """Where the open stripe ends at the latest; at least one row when it is empty."""
        stop = min(rows, *(self._reach(place, cost, at) for place, cost in enumerate(costs)))
        return stop if self._stripe_rows else max(stop, at + 1)

    def _reach(self, place: int, costs: _Costs, at: int) -> int:
        """How far one column lets the open stripe go."""
        used = self._stripe[place]
        if self.limits[place] < NO_LIMIT:
            return costs.reach(at, self.limits[place] - used)
        # Up to and with the row that fills the fragment, so that it ends there.
        room = self.fragment_bytes - self._fragment_bytes - used
        return costs.reach(at, room - 1) + 1 if room > 0 else at

    def _end_stripe(self, at: int, stop: int) -> Step:
        self._fragment_bytes += sum(self._stripe)
        ends = (
            self._fragment_bytes >= self.fragment_bytes or self._fragment_rows >= MAX_FRAGMENT_ROWS
        )
        for place, used in enumerate(self._stripe):
            self._page[place] += used
        closes = tuple(range(len(self.limits))) if ends else self._full()
        for place in closes:
            self._page[place] = 0
        self._stripe = [0] * len(self.limits)
        self._stripe_rows = 0
        if ends:
            self._fragment_bytes = self._fragment_rows = 0
        return Step(at, stop, closes, ends)

    def _full(self) -> tuple[int, ...]:
        """Columns that another stripe like the last would overfill, and all faster ones."""
        slowest = min(
            (
                self.speeds[place]
                for place, limit in enumerate(self.limits)
                if self._page[place] + self._stripe[place] > limit
            ),
            default=max(self.speeds),
        )
        return tuple(place for place, speed in enumerate(self.speeds) if speed >= slowest)


class _Costs:
    """Bytes that rows of one column take, as running totals."""

    def __init__(self, values: ColumnValues | TiledValues) -> None:
        self._each = 0
        self._ends: NDArray[np.int64] | None = None
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
    if storage.layout is Layout.TILED:
        return NO_LIMIT
    if page_bytes is not None:
        return page_bytes
    row_bytes = storage.row_bytes if storage.layout is Layout.FIXED else mean_row_bytes
    return SMALL_PAGE_BYTES if row_bytes < SMALL_ROW_BYTES else PAGE_BYTES
