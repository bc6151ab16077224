"""How are the rows of a batch, which lie in hundreds of pages, brought together at once?

numpy takes many rows out of *one* array per call. So a row is named by its address in memory,
whatever page, map or buffer that belongs to, and one fancy index over the whole address space
copies them all: no Python per row, and no alignment is asked for.

That is safe because addresses are made in one place only, `InMemory`, which keeps alive what they
point into, and because every row asked for is checked to be one of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout, Storage
from tensorrepo.formats.dataset.columns.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
    valid_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.pages.pool import Pool

COPIED_ALONE_BYTES = 32 << 10  # from here on one memcpy a row is faster
_OFFSET_BYTES = 8
_CLOSED = -(1 << 62)  # address of the rows of runs that are not open: below zero with any offset
_FIRST_ADDRESS = 64  # numpy takes an address of 0 for "allocate"
_ADDRESSES = 1 << 48  # times the longest gathered row it must stay below 2^63
# Up to here numpy gathers into an array of its own: the allocator keeps memory of such sizes ready,
# and nothing is copied twice. Beyond, memory comes from the kernel page by page, and pools pay.
_OWN_ARRAY_BYTES = 16 << 20
# glibc returns large blocks to the kernel until it has seen a block of that size freed once; then
# it keeps up to twice as much. 32 MiB is the most that it learns.
_LESSON_BYTES = 31 << 20
# What goes to a pool is gathered in portions that stay in cache on their way. Smaller ones would
# even more, but let go of the interpreter lock once each, and getting it back costs more.
_AT_ONCE_BYTES = 512 << 10


def teach_allocator() -> None:
    """Let memory of batches that were dropped be used for the next ones. Touches no memory."""
    np.empty(_LESSON_BYTES, np.uint8)


class InMemory(NamedTuple):
    """Where the rows of some runs lie in memory, in one column. Arrays are int64 ``(runs,)``.

    Attributes:
        runs: their numbers.
        rows: how many rows each has.
        values_at: address of each first row's value (fixed) or offset (others).
        items_at: address of the items that offsets count.
        dims_at: address of the first row's dimensions, where they are stored.
        valid_at: address of the first row's validity, one byte a row, in nullable columns.
        owners: per run, what keeps all of that alive; its decoded values come first, unless they
            are fixed rows of fewer than COPIED_ALONE_BYTES.
    """

    runs: NDArray[np.int64]
    rows: NDArray[np.int64]
    values_at: NDArray[np.int64]
    items_at: NDArray[np.int64] | None
    dims_at: NDArray[np.int64] | None
    valid_at: NDArray[np.int64] | None
    owners: Sequence[Sequence[Any]]


def in_memory(run: int, values: ColumnValues, *, nullable: bool) -> InMemory:
    """Where the values of one run lie. Arrays that are not back to back are copied first."""
    owner: list[Any] = [values]
    items_at = dims_at = valid_at = None
    if isinstance(values, FixedValues):
        values_at = _address(values.values, owner)
    else:
        values_at = _address(values.offsets, owner)
        items_at = _address(_items_of(values), owner)
    if isinstance(values, RaggedValues) and values.dims is not None:
        dims_at = _address(values.dims, owner)
    if nullable:
        valid_at = _address(valid_rows(values), owner)
    runs, rows = np.array([run]), np.array([values.rows])
    return InMemory(runs, rows, values_at, items_at, dims_at, valid_at, [owner])


class Wanted(NamedTuple):
    """Rows to be gathered from one column: int64 ``(rows,)`` each.

    `offset` counts bytes from the run's first row in what is addressed by row.
    """

    run: NDArray[np.int64]
    row: NDArray[np.int64]
    offset: NDArray[np.int64]

    def part(self, start: int, stop: int) -> Wanted:
        return Wanted(self.run[start:stop], self.row[start:stop], self.offset[start:stop])


class RunValues:
    """The decoded values of one column for the open runs, found by run number.

    Not thread-safe: one thread opens, closes and gathers.
    """

    def __init__(self, live: NDArray[np.int64], storage: Storage, *, nullable: bool) -> None:
        """Prepare for runs of `live` rows each."""
        self._live = live
        self._storage = storage
        self._nullable = nullable
        self._row_bytes, self._row_shape = storage.row_bytes, storage.row_shape
        self._step_bytes = self._row_bytes if storage.layout is Layout.FIXED else _OFFSET_BYTES
        self._element = storage.element
        self._owners: dict[int, Sequence[Any]] = {}
        self._values_at = np.full(live.size, _CLOSED, dtype=np.int64)
        self._items_at = np.zeros(live.size, dtype=np.int64)
        self._dims_at = np.zeros(live.size, dtype=np.int64)
        self._valid_at = np.zeros(live.size, dtype=np.int64)

    def open(self, where: InMemory) -> None:
        """From now on the rows of these runs can be gathered."""
        runs = where.runs
        if not np.array_equal(where.rows, self._live[runs]):
            raise AssertionError("a run was loaded with other rows than planned")
        self._owners.update(zip(runs.tolist(), where.owners, strict=True))
        self._values_at[runs] = where.values_at
        if where.items_at is not None:
            self._items_at[runs] = where.items_at
        if where.dims_at is not None:
            self._dims_at[runs] = where.dims_at
        if where.valid_at is not None:
            self._valid_at[runs] = where.valid_at

    def close(self, runs: NDArray[np.int64]) -> None:
        """The rows of these runs are not needed any more."""
        self._values_at[runs] = _CLOSED
        for run in runs.tolist():
            del self._owners[run]

    def want(self, run: NDArray[np.int64], row: NDArray[np.int64]) -> Wanted:
        """Check that these are rows of these runs. Thousands at once cost least."""
        # As unsigned numbers, rows below zero are beyond every end.
        if not (row.view(np.uint64) < self._live[run].view(np.uint64)).all():
            raise AssertionError("a row was asked of a run beyond its end")
        return Wanted(run, row, row * self._step_bytes)

    def gather(self, wanted: Wanted, pool: Pool) -> ColumnValues:
        """These rows, in that order, copied into new arrays or some of `pool`."""
        # Few calls: each lets go of the interpreter lock and has to wait for it.
        addresses = self._values_at[wanted.run]
        addresses += wanted.offset
        if addresses.min(initial=0) < 0:
            raise AssertionError("a row was asked of a run that is not open")
        valid = None
        if self._nullable:
            valid = pool.array(wanted.row.shape, np.dtype(np.bool_))
            _copy(self._valid_at[wanted.run] + wanted.row, 1, valid)
        if self._storage.layout is Layout.FIXED:
            return FixedValues(self._fixed(wanted, addresses, pool), valid)
        starts, ends = self._bounds(addresses)
        offsets, items = self._items(wanted.run, starts, ends, pool)
        if self._storage.layout is Layout.BINARY:
            return BinaryValues(offsets, items, valid)
        return RaggedValues(offsets, items, self._storage.shape, self._dims(wanted), valid)

    def _fixed(self, wanted: Wanted, addresses: NDArray[np.int64], pool: Pool) -> NDArray[Any]:
        row_bytes, shape = self._row_bytes, (addresses.size, *self._row_shape)
        if 0 < row_bytes < COPIED_ALONE_BYTES:
            if addresses.size * row_bytes <= _OWN_ARRAY_BYTES:
                return _gathered(addresses, row_bytes).view(self._element).reshape(shape)
            _copy(addresses, row_bytes, out := pool.array(shape, self._element))
            return out
        out = pool.array(shape, self._element)
        places = zip(wanted.run.tolist(), wanted.row.tolist(), strict=True)
        for at, (run, row) in enumerate(places):
            values = self._owners[run][0]
            assert isinstance(values, FixedValues), "the storage says so"
            out[at] = values.values[row]
        return out

    def _bounds(self, addresses: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each row's items start and end in its run's items."""
        bounds = np.empty((addresses.size, 2), dtype=np.int64)
        _copy(addresses, 2 * _OFFSET_BYTES, bounds)  # two offsets that follow each other
        return bounds[:, 0], bounds[:, 1]

    def _items(
        self,
        run: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        pool: Pool,
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        item_bytes = self._element.itemsize
        lengths = ends - starts
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        out = pool.array((total,), self._element)
        if total < _COPIED_ALONE_ITEMS * len(lengths):
            # One address an item costs 8 bytes, but no Python per row.
            first = self._items_at[run] + (starts - offsets[:-1]) * item_bytes
            addresses = np.repeat(first, lengths) + np.arange(total) * item_bytes
            _copy(addresses, item_bytes, out)
            return offsets, out
        bounds = zip(starts.tolist(), ends.tolist(), offsets.tolist(), strict=False)
        for one, (start, end, at) in zip(run.tolist(), bounds, strict=True):
            out[at : at + end - start] = _items_of(self._owners[one][0])[start:end]
        return offsets, out

    def _dims(self, wanted: Wanted) -> NDArray[np.uint32] | None:
        if not self._storage.stores_dims:
            return None
        dims = np.empty((wanted.row.size, self._storage.unknown_dims), dtype=np.uint32)
        row_bytes = 4 * self._storage.unknown_dims
        _copy(self._dims_at[wanted.run] + wanted.row * row_bytes, row_bytes, dims)
        return dims


_COPIED_ALONE_ITEMS = 256  # longer ragged rows are copied one by one


def _items_of(values: ColumnValues) -> NDArray[Any]:
    assert not isinstance(values, FixedValues), "fixed rows have no items"
    return values.data if isinstance(values, BinaryValues) else values.elements


def address_of(array: NDArray[Any]) -> int:
    """Where the first item of `array` lies in memory."""
    address: int = array.__array_interface__["data"][0]
    return address


def _address(array: NDArray[Any], owner: list[Any]) -> NDArray[np.int64]:
    array = np.ascontiguousarray(array)
    owner.append(array)
    return np.array([address_of(array)])


def _gathered(addresses: NDArray[np.int64], row_bytes: int) -> NDArray[np.void]:
    """The `row_bytes` bytes at each address, in a new array."""
    return _memory(row_bytes)[addresses - _FIRST_ADDRESS]


def _copy(addresses: NDArray[np.int64], row_bytes: int, out: NDArray[Any]) -> None:
    """Copy `row_bytes` bytes from each address to the rows of `out`, which is contiguous."""
    if not row_bytes or not addresses.size:
        return
    rows = np.ndarray((len(addresses),), f"V{row_bytes}", out.reshape(-1).view(np.uint8).data)
    memory = _memory(row_bytes)
    places = addresses - _FIRST_ADDRESS
    at_once = max(1, _AT_ONCE_BYTES // row_bytes)
    for start in range(0, len(rows), at_once):
        rows[start : start + at_once] = memory[places[start : start + at_once]]


@lru_cache(maxsize=256)
def _memory(row_bytes: int) -> NDArray[np.void]:
    """This process's memory as overlapping rows, one beginning at every byte."""
    return np.asarray(_Memory(row_bytes))


class _Memory:
    """Tells numpy about an array without one; numpy reads nothing until it is indexed."""

    def __init__(self, row_bytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (_ADDRESSES,),
            "typestr": f"|V{row_bytes}",
            "strides": (1,),
            "data": (_FIRST_ADDRESS, True),
        }
