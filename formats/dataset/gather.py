"""How are the rows of a batch, which lie in hundreds of pages, brought together at once?

numpy takes many rows out of *one* array per call. So a row is named by its address in memory,
whatever page, map or buffer that belongs to, and one fancy index over the whole address space
copies them all: no Python per row, and no alignment is asked for.

That is safe because addresses are made in one place only: from an array that `RunValues` keeps
alive while its run is open, and a row that was checked to be one of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.types import Layout, Storage
from tensorrepo.formats.dataset.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
    valid_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.pool import Pool

_FIRST_ADDRESS = 64  # numpy takes an address of 0 for "allocate"
_ADDRESSES = 1 << 48  # times the longest gathered row it must stay below 2^63
_COPIED_ALONE_BYTES = 32 << 10  # from here on one memcpy a row is faster
_AT_ONCE_BYTES = 128 << 10  # numpy gathers into a buffer of its own, which should stay in cache


class RunValues:
    """The decoded values of one column for the open runs, found by run number.

    Not thread-safe: one thread puts, drops and gathers.
    """

    def __init__(self, runs: int, storage: Storage, *, nullable: bool) -> None:
        self._storage = storage
        self._nullable = nullable
        self._held: dict[int, tuple[ColumnValues, list[NDArray[Any]]]] = {}
        self._rows = np.zeros(runs, dtype=np.int64)
        # Addresses: of the first row's value (fixed) or offset (others), of the items that the
        # offsets count, of the first row's dimensions, and of its validity, one byte a row.
        self._values_at = np.zeros(runs, dtype=np.int64)
        self._items_at = np.zeros(runs, dtype=np.int64)
        self._dims_at = np.zeros(runs, dtype=np.int64)
        self._valid_at = np.zeros(runs, dtype=np.int64)

    def put(self, run: int, values: ColumnValues) -> None:
        """Open a run: its rows can be gathered until it is dropped."""
        kept: list[NDArray[Any]] = []
        if isinstance(values, FixedValues):
            self._values_at[run] = _address(values.values, kept)
        else:
            self._values_at[run] = _address(values.offsets, kept)
            items = values.data if isinstance(values, BinaryValues) else values.elements
            self._items_at[run] = _address(items, kept)
        if isinstance(values, RaggedValues) and values.dims is not None:
            self._dims_at[run] = _address(values.dims, kept)
        if self._nullable:
            self._valid_at[run] = _address(valid_rows(values), kept)
        self._rows[run] = values.rows
        self._held[run] = values, kept

    def drop(self, run: int) -> None:
        """Close a run."""
        self._rows[run] = 0
        del self._held[run]

    def gather(self, run: NDArray[np.int64], row: NDArray[np.int64], pool: Pool) -> ColumnValues:
        """The rows `row` of the runs `run`, in that order, copied into arrays of `pool`."""
        if not ((row >= 0) & (row < self._rows[run])).all():
            raise AssertionError("a row was asked of a run that is not open, or beyond its end")
        valid = None
        if self._nullable:
            valid = pool.array(row.shape, np.dtype(np.bool_))
            _copy(self._valid_at[run] + row, 1, valid)
        if self._storage.layout is Layout.FIXED:
            return FixedValues(self._fixed(run, row, pool), valid)
        starts, ends = self._bounds(run, row)
        offsets, items = self._items(run, starts, ends, pool)
        if self._storage.layout is Layout.BINARY:
            return BinaryValues(offsets, items, valid)
        return RaggedValues(offsets, items, self._storage.shape, self._dims(run, row), valid)

    def _fixed(self, run: NDArray[np.int64], row: NDArray[np.int64], pool: Pool) -> NDArray[Any]:
        row_bytes = self._storage.row_bytes
        out = pool.array((row.size, *self._storage.row_shape), self._storage.element)
        if row_bytes < _COPIED_ALONE_BYTES:
            _copy(self._values_at[run] + row * row_bytes, row_bytes, out)
            return out
        for at, (one, place) in enumerate(zip(run.tolist(), row.tolist(), strict=True)):
            values = self._held[one][0]
            assert isinstance(values, FixedValues), "the storage says so"
            out[at] = values.values[place]
        return out

    def _bounds(
        self, run: NDArray[np.int64], row: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each row's items start and end in its run's items."""
        bounds = np.empty((row.size, 2), dtype=np.int64)
        _copy(self._values_at[run] + row * 8, 16, bounds)  # two offsets that follow each other
        return bounds[:, 0], bounds[:, 1]

    def _items(
        self,
        run: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        pool: Pool,
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        element = self._storage.element
        lengths = ends - starts
        offsets = offsets_of(lengths)
        total = int(offsets[-1])
        out = pool.array((total,), element)
        if total * element.itemsize < _COPIED_ALONE_BYTES * 4 and total < 256 * len(lengths):
            first = self._items_at[run] + (starts - offsets[:-1]) * element.itemsize
            addresses = np.repeat(first, lengths) + np.arange(total) * element.itemsize
            _copy(addresses, element.itemsize, out)
            return offsets, out
        bounds = zip(starts.tolist(), ends.tolist(), offsets.tolist(), strict=False)
        for one, (start, end, at) in zip(run.tolist(), bounds, strict=True):
            out[at : at + end - start] = _items_of(self._held[one][0])[start:end]
        return offsets, out

    def _dims(self, run: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.uint32] | None:
        if not self._storage.stores_dims:
            return None
        dims = np.empty((row.size, self._storage.unknown_dims), dtype=np.uint32)
        row_bytes = 4 * self._storage.unknown_dims
        _copy(self._dims_at[run] + row * row_bytes, row_bytes, dims)
        return dims


def _items_of(values: ColumnValues) -> NDArray[Any]:
    assert not isinstance(values, FixedValues), "fixed rows have no items"
    return values.data if isinstance(values, BinaryValues) else values.elements


def _address(array: NDArray[Any], kept: list[NDArray[Any]]) -> int:
    """Where `array` begins, with its items back to back; what must stay alive goes to `kept`."""
    array = np.ascontiguousarray(array)
    kept.append(array)
    address: int = array.__array_interface__["data"][0]
    return address


def _copy(addresses: NDArray[np.int64], row_bytes: int, out: NDArray[Any]) -> None:
    """Copy `row_bytes` bytes from each address to the rows of `out`, which is contiguous."""
    if not row_bytes or not addresses.size:
        return
    rows = np.ndarray((len(addresses),), f"V{row_bytes}", out.data)
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
