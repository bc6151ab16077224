"""Gathering of the rows, or packed items, of a batch from hundreds of open runs.

A table says at which address in memory each open run begins, whatever page, map or buffer that
belongs to, and one call copies all rows (`native.rows`): no Python per row, and no alignment is
asked for. Where a page has sums of its rows, each row is compared with its sum as it is copied.

That is safe because addresses are made in one place only, `InMemory`, which keeps alive what they
point into, and because every row asked for is checked to be one of an open run.

Of a packed column, a run's chosen rows are one line of elements. An item is a slice of it, so it is
copied at once, and where rows end in it is a search in the run's row table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
    valid_rows,
)
from tensorrepo.formats.dataset.streaming.order.items import PackedItems
from tensorrepo.formats.native.rows import BEST, RowCopier, RunTable
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError

_OFFSET_BYTES = 8
_DIM_BYTES = 4
# Address of the rows, or sums, of runs that are not open or have none: below 0 with any offset.
_CLOSED = -(1 << 62)
# glibc returns large blocks to the kernel until it has seen a block of that size freed once; then
# it keeps up to twice as much. 32 MiB is the most that it learns.
_LESSON_BYTES = 31 << 20


def teach_allocator() -> None:
    """Let memory of batches that were dropped be used for the next ones. Touches no memory."""
    np.empty(_LESSON_BYTES, np.uint8)


class InMemory(NamedTuple):
    """Where the rows of some runs lie in memory, in one column. Arrays are int64 ``(runs,)``.

    Attributes:
        runs: numbers of the runs.
        rows: number of rows of each.
        values_at: address of each first row's value (fixed) or offset (others).
        items_at: address of the items that offsets count.
        dims_at: address of the first row's dimensions, where they are stored.
        valid_at: address of the first row's validity, one byte a row, in nullable columns.
        owners: per run, what keeps all of that alive; of ragged and binary rows the decoded values
            come first.
        sums_at: address of the sum of each first row, u32 a row; where they are to be compared.
        prove: callback for the place of a run in `runs` and a row of it that is not what its sum
            says; raises a CorruptError that names both.
        repeated: whether there is one value only, which stands for all rows: of columns that store
            no values, and need not be made as often as they have rows. One run, fixed rows.
    """

    runs: Ints
    rows: Ints
    values_at: Ints
    items_at: Ints | None
    dims_at: Ints | None
    valid_at: Ints | None
    owners: Sequence[Sequence[Any]]
    sums_at: Ints | None = None
    prove: Callable[[int, int], None] | None = None
    repeated: bool = False


def is_repeated(values: ColumnValues) -> bool:
    """Whether one value in memory stands for several rows."""
    return isinstance(values, FixedValues) and values.rows > 1 and not values.values.strides[0]


def in_memory(run: int, values: ColumnValues, *, nullable: bool) -> InMemory:
    """Where the values of one run lie. Arrays that are not back to back are copied first."""
    owner: list[Any] = [values]
    items_at = dims_at = valid_at = None
    repeated = is_repeated(values)
    if isinstance(values, FixedValues):
        values_at = _address(values.values[:1] if repeated else values.values, owner)
    else:
        items = values.data if isinstance(values, BinaryValues) else values.elements
        values_at, items_at = _address(values.offsets, owner), _address(items, owner)
    if isinstance(values, RaggedValues) and values.dims is not None:
        dims_at = _address(values.dims, owner)
    if nullable:
        valid_at = _address(valid_rows(values), owner)
    runs, rows = np.array([run]), np.array([values.rows])
    return InMemory(runs, rows, values_at, items_at, dims_at, valid_at, [owner], repeated=repeated)


class WantedRows(NamedTuple):
    """Rows to be gathered: int64 ``(rows,)`` each."""

    run: Ints
    row: Ints


class RunValues:
    """The decoded values of one column for the open runs, found by run number.

    Not thread-safe: one thread opens, closes and gathers.
    """

    def __init__(
        self,
        live: Ints,
        storage: Storage,
        *,
        nullable: bool,
        copier: RowCopier = BEST,
        most_rows: int = 0,
    ) -> None:
        """Prepare for runs of `live` rows each, of which up to `most_rows` are gathered at once."""
        self._live = live
        self._most_rows = most_rows
        self._copier = copier
        self._storage = storage
        self._nullable = nullable
        self._row_bytes, self._row_shape = storage.row_bytes, storage.row_shape
        self._element = storage.element
        self._where: dict[int, InMemory] = {}  # keeps the memory of each open run alive
        self._repeated: Bools | None = None  # by run, once there is one
        self._at = {"values_at": _closed(live)}  # fields of `InMemory`, by run
        if storage.layout is not ColumnLayout.FIXED:
            self._at["items_at"] = _closed(live)
        if storage.stores_dims:
            self._at["dims_at"] = _closed(live)
        if nullable:
            self._at["valid_at"] = _closed(live)

    def open(self, where: InMemory) -> None:
        """From now on the rows of these runs can be gathered."""
        runs = where.runs
        if not np.array_equal(where.rows, self._live[runs]):
            raise AssertionError("a run was loaded with other rows than planned")
        if self._nullable and where.valid_at is None:
            raise AssertionError("a run of a nullable column was loaded without its validity")
        self._where.update(dict.fromkeys(runs.tolist(), where))
        if where.sums_at is not None:
            self._at.setdefault("sums_at", _closed(self._live))
        if where.repeated and self._repeated is None:
            self._repeated = np.zeros(self._live.size, np.bool_)
        if self._repeated is not None:
            self._repeated[runs] = where.repeated
        for name, table in self._at.items():
            if (addresses := getattr(where, name)) is not None:
                table[runs] = addresses

    def close(self, runs: Ints) -> None:
        """The rows of these runs are not needed any more."""
        for table in self._at.values():
            table[runs] = _CLOSED
        for run in runs.tolist():
            del self._where[run]

    def gather(self, wanted: WantedRows, pool: Pool) -> ColumnValues:
        """These rows, in that order, copied into arrays of `pool`.

        Raises:
            CorruptError: a row is not what its sum says.
            IndexError: a row of a run that is not open, or beyond its end.
        """
        # Few calls: each lets go of the interpreter lock and has to wait for it.
        valid = None
        if self._nullable:
            valid = pool.array(wanted.row.shape, np.dtype(np.bool_))
            self._take("valid_at", 1, wanted, 1, valid)
        if self._storage.layout is ColumnLayout.FIXED:
            return FixedValues(self._fixed(wanted, pool), valid)
        starts, ends = self._bounds(wanted)
        offsets, items = self._items(wanted.run, starts, ends, pool)
        if self._storage.layout is ColumnLayout.BINARY:
            return BinaryValues(offsets, items, valid)
        return RaggedValues(offsets, items, self._storage.shape, self._dims(wanted), valid)

    def _take(
        self,
        name: str,
        step_bytes: int,
        wanted: WantedRows,
        row_bytes: int,
        out: NDArray[Any],
        sums_at: Ints | None = None,
    ) -> int:
        table = RunTable(self._live, self._at[name], sums_at, step_bytes)
        return self._copier.take_rows(table, wanted.run, wanted.row, row_bytes, out)

    def _fixed(self, wanted: WantedRows, pool: Pool) -> NDArray[Any]:
        row_bytes, sums_at = self._row_bytes, self._at.get("sums_at")
        shape, room_bytes = (wanted.row.size, *self._row_shape), self._most_rows * row_bytes
        out = pool.array(shape, self._element, room_bytes=room_bytes)
        if self._repeated is not None:
            wanted = wanted._replace(row=np.where(self._repeated[wanted.run], 0, wanted.row))
        wrong = self._take("values_at", row_bytes, wanted, row_bytes, out, sums_at)
        if wrong >= 0:
            self._blame(wanted.run.item(wrong), wanted.row.item(wrong))
        return out

    def _blame(self, run: int, row: int) -> NoReturn:
        where = self._where[run]
        assert where.prove is not None, "runs with sums can be proved"
        where.prove(where.runs.tolist().index(run), row)
        raise AssertionError("whoever proves a damaged row raises")

    def _bounds(self, wanted: WantedRows) -> tuple[Ints, Ints]:
        """Where each row's items start and end in its run's items."""
        bounds = np.empty((wanted.row.size, 2), dtype=np.int64)
        # Two offsets that follow each other.
        self._take("values_at", _OFFSET_BYTES, wanted, 2 * _OFFSET_BYTES, bounds)
        return bounds[:, 0], bounds[:, 1]

    def _items(self, run: Ints, starts: Ints, ends: Ints, pool: Pool) -> tuple[Ints, NDArray[Any]]:
        item_bytes = self._element.itemsize
        lengths = ends - starts
        offsets = offsets_of(lengths)
        out = pool.array((int(offsets[-1]),), self._element)
        addresses = self._at["items_at"][run] + starts * item_bytes
        self._copier.copy_spans(addresses, lengths * item_bytes, out)
        return offsets, out

    def _dims(self, wanted: WantedRows) -> NDArray[np.uint32] | None:
        if not self._storage.stores_dims:
            return None
        dims = np.empty((wanted.row.size, self._storage.unknown_dims), dtype=np.uint32)
        row_bytes = _DIM_BYTES * self._storage.unknown_dims
        self._take("dims_at", row_bytes, wanted, row_bytes, dims)
        return dims


def _closed(live: Ints) -> Ints:
    return np.full(live.size, _CLOSED, dtype=np.int64)


def address_of(array: NDArray[Any]) -> int:
    """Where the first item of `array` lies in memory."""
    address: int = array.__array_interface__["data"][0]
    return address


def _address(array: NDArray[Any], owner: list[Any]) -> Ints:
    array = np.ascontiguousarray(array)
    owner.append(array)
    return np.array([address_of(array)])


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
    lengths: Ints
    rows: Ints

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
    ends: Ints
    rows: Ints
    first: list[int]
    last: list[int]


class PackedRuns:
    """The open runs of a packed column. Not thread-safe."""

    def __init__(
        self,
        items: PackedItems,
        first_row: Ints,
        element: np.dtype[Any],
        pad: float | None,
        lost: Container[int] = (),
    ) -> None:
        """Prepare for the items of an epoch.

        `first_row` is the live row that each run of the plan begins with; `pad` (None: 0) fills up
        the last item of a run. Nobody will look at the items of `lost` runs, which could not be
        loaded.
        """
        self._items, self._first_row = items, first_row
        self._element, self._pad = element, 0 if pad is None else pad
        self._lost = lost
        self._lines: dict[int, _Line] = {}

    def open(self, where: InMemory) -> None:
        """From now on the items of these runs can be gathered.

        Raises:
            CorruptError: a run has other elements than its page entry or row table said.
        """
        for run, owners in zip(where.runs.tolist(), where.owners, strict=True):
            if run in self._lost:
                planned = self._items.elements.item(run)
                nothing = np.zeros(planned, self._element)
                self._lines[run] = _line(
                    nothing, np.array([planned]), np.array([0]), self._items.size
                )
            else:
                self._lines[run] = self._opened(run, owners[0])

    def close(self, runs: Ints) -> None:
        """The items of these runs are not needed any more."""
        for run in runs.tolist():
            del self._lines[run]

    def gather(self, wanted: WantedRows, pool: Pool) -> PackedValues:
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
        planned = self._items.elements.item(run)
        if end - begin != planned:
            raise CorruptError(
                f"rows {first} to {first + values.rows} have {end - begin} elements, planned were "
                f"{planned}"
            )
        filled = np.diff(values.offsets) > 0
        ends = values.offsets[1:][filled] - begin
        return _line(values.elements[begin:end], ends, rows[filled], self._items.size)


def _line(elements: NDArray[Any], ends: Ints, rows: Ints, size: int) -> _Line:
    """The line of these rows, cut into items."""
    start = np.arange(0, len(elements), size)
    stop = np.minimum(start + size, len(elements))
    first = np.searchsorted(ends, start, side="right")
    last = np.searchsorted(ends, stop, side="left")
    return _Line(elements, ends, rows, first.tolist(), last.tolist())


def _number(ends: list[Ints], lengths: Ints, out: NDArray[np.int32]) -> None:
    """Number the rows of each item: `ends` says where they end in it, the last one where it may."""
    counts = np.array([len(each) for each in ends], np.int64)
    starts = offsets_of(counts)[:-1]
    number = np.arange(counts.sum()) - np.repeat(starts - 1, counts)
    stop = np.minimum(np.concatenate([np.zeros(0, np.int64), *ends]), np.repeat(lengths, counts))
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
