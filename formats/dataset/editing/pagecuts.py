"""Where do the pages of a column end that is written beside others?

Boundaries nest: of any two columns, the pages of one are whole numbers of pages of the other. A
column that is added later therefore ends a page wherever the next slower one does, and only where
the next faster one does. Where it is the fastest, it cuts as it likes between these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.values import BinaryValues, FixedValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.values import ColumnValues


@dataclass(frozen=True, slots=True, eq=False)
class PageCuts:
    """Where pages of one fragment may end, as rows counted within it, ascending.

    Attributes:
        must: where they end in any case; the last is the number of rows.
        may: where else they may end; None: anywhere.
    """

    must: NDArray[np.int64]
    may: NDArray[np.int64] | None


def page_cuts(others: Sequence[NDArray[np.int64]], rows: int, page_rows: float) -> PageCuts:
    """The cuts of a new column.

    Args:
        others: per column that is there already, where its pages end.
        rows: of the fragment.
        page_rows: how many rows of the new column make a full page.
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
        ends = row_ends(values)
        return max(1, int(np.searchsorted(ends, ends[at] + room, "right")) - 1 - at)

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


def row_ends(values: ColumnValues) -> NDArray[np.int64]:
    """Bytes before each row, and before the end: int64 ``(rows + 1,)``."""
    if isinstance(values, FixedValues):
        return np.arange(values.rows + 1) * max(1, values.values[:1].nbytes)
    items = values.data if isinstance(values, BinaryValues) else values.elements
    bytes_before: NDArray[np.int64] = (values.offsets - values.offsets[0]) * items.dtype.itemsize
    return bytes_before + 8 * np.arange(len(values.offsets))
