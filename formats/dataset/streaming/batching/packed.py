"""How do the elements of open runs become packed items?

A run's chosen rows are one line of elements, back to back in memory. An item is a slice of it, so
it is copied at once, and where rows end in it is a search in the run's row table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorrepo.formats.dataset.columns.values import ColumnValues, RaggedValues, offsets_of
from tensorrepo.formats.dataset.streaming.batching.gather import InMemory, Wanted
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.pages.pool import Pool
    from tensorrepo.formats.dataset.streaming.ordering.packing import PackedItems

_NO_OFFSET = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PackedValues:
    """Packed items.

    Attributes:
        values: ``(items, size)``, padded at the end.
        segments: int32 ``(items, size)``: 1, 2, ... for the rows whose elements these are, counted
            within the item; 0 where padded.
        lengths: int64 ``(items,)``, elements that are not padding.
        rows: int64 ``(items,)``, the row of the dataset that each item begins in.
    """

    values: NDArray[Any]
    segments: NDArray[np.int32]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]

    def slice(self, start: int, stop: int) -> PackedValues:
        some = slice(start, stop)
        return PackedValues(
            self.values[some], self.segments[some], self.lengths[some], self.rows[some]
        )


class _Line(NamedTuple):
    """The elements of one run, whose rows of no elements are left out.

    Those of row ``rows[i]`` end at ``ends[i]``; item j begins in row ``rows[first[j]]`` and ends in
    ``rows[last[j]]``.
    """

    elements: NDArray[Any]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]
    first: list[int]
    last: list[int]


class PackedRuns:
    """The open runs of a packed column. Not thread-safe."""

    def __init__(
        self,
        items: PackedItems,
        first_row: NDArray[np.int64],
        element: np.dtype[Any],
        pad: float | None,
        lost: Container[int] = (),
    ) -> None:
        """Prepare.

        Args:
            items: of the epoch.
            first_row: the live row that each run of the plan begins with.
            element: type of the elements.
            pad: fills up the last item of a run; None: 0.
            lost: runs that could not be loaded, whose items nobody will look at.
        """
        self._items, self._first_row = items, first_row
        self._element, self._pad = element, 0 if pad is None else pad
        self._elements = dict(zip(items.runs.tolist(), items.elements.tolist(), strict=True))
        self._lost = lost
        self._lines: dict[int, _Line] = {}

    def open(self, where: InMemory) -> None:
        """From now on the items of these runs can be gathered.

        Raises:
            CorruptError: a run has other elements than its page entry or row table said.
        """
        for run, owners in zip(where.runs.tolist(), where.owners, strict=True):
            if run in self._lost:
                planned = self._elements[run]
                nothing = np.zeros(planned, self._element)
                self._lines[run] = _line(
                    nothing, np.array([planned]), np.array([0]), self._items.size
                )
            else:
                self._lines[run] = self._opened(run, owners[0])

    def close(self, runs: NDArray[np.int64]) -> None:
        """The items of these runs are not needed any more."""
        for run in runs.tolist():
            del self._lines[run]

    def gather(self, wanted: Wanted, pool: Pool) -> PackedValues:
        """These items, in that order."""
        size, count = self._items.size, wanted.row.size
        values = pool.array((count, size), self._element)
        lengths, rows = np.empty(count, np.int64), np.empty(count, np.int64)
        ends = []
        wishes = zip(wanted.run.tolist(), wanted.row.tolist(), strict=True)
        for at, (run, item) in enumerate(wishes):
            line = self._lines[run]
            elements = line.elements[item * size : (item + 1) * size]
            values[at, : len(elements)] = elements
            if len(elements) < size:
                values[at, len(elements) :] = self._pad
            first = line.first[item]
            ends.append(line.ends[first : line.last[item] + 1] - item * size)
            lengths[at], rows[at] = len(elements), self._first_row[run] + line.rows[first]
        segments = pool.array((count, size), np.dtype(np.int32))
        _number(ends, lengths, segments)
        return PackedValues(values, segments, lengths, rows)

    def _opened(self, run: int, values: ColumnValues) -> _Line:
        assert isinstance(values, RaggedValues), "packed columns are ragged"
        rows = np.arange(values.rows)
        first = int(self._first_row[run])
        if self._items.choice is not None:
            rows = np.repeat(rows, self._items.choice.counts(first, first + values.rows))
            values = values.take(rows)
        begin, end = int(values.offsets[0]), int(values.offsets[-1])
        if end - begin != self._elements[run]:
            raise CorruptError(
                f"rows {first} to {first + values.rows} have {end - begin} elements, planned were "
                f"{self._elements[run]}"
            )
        filled = np.diff(values.offsets) > 0
        ends = values.offsets[1:][filled] - begin
        return _line(values.elements[begin:end], ends, rows[filled], self._items.size)


def _line(
    elements: NDArray[Any], ends: NDArray[np.int64], rows: NDArray[np.int64], size: int
) -> _Line:
    """The line of these rows, cut into items."""
    start = np.arange(0, len(elements), size)
    stop = np.minimum(start + size, len(elements))
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, stop, side="left")
    return _Line(elements, ends, rows, first.tolist(), last.tolist())


def _number(
    ends: list[NDArray[np.int64]], lengths: NDArray[np.int64], out: NDArray[np.int32]
) -> None:
    """Number the rows of each item: `ends` says where they end in it, the last one where it may."""
    counts = np.array([len(each) for each in ends], np.int64)
    starts = offsets_of(counts)[:-1]
    number = np.arange(counts.sum()) - np.repeat(starts - 1, counts)
    stop = np.minimum(np.concatenate([_NO_OFFSET, *ends]), np.repeat(lengths, counts))
    elements = np.diff(stop, prepend=0)
    elements[starts] = stop[starts]
    flat = np.repeat(number.astype(np.int32), elements)
    if flat.size == out.size:
        out.reshape(-1)[:] = flat
        return
    out[...] = 0
    bounds = zip(offsets_of(lengths).tolist(), lengths.tolist(), strict=False)
    for at, (begin, used) in enumerate(bounds):
        out[at, :used] = flat[begin : begin + used]
