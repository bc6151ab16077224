"""Gather of rows at many addresses into one array, checked by their sums.

`NATIVE` does it in C (rows.c beside this) where it was built, `NUMPY` everywhere, with identical
results; `BEST` is the first that there is. Addresses are taken on trust, sizes are checked.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.native.extensions import kernels

Numbers64: TypeAlias = NDArray[np.int64]

LEAST_SUMMED_BYTES = 241  # of a row that can be compared with its sum
_SUM_BYTES = 4
_FIRST_ADDRESS = 4096  # nothing lies before it
_ADDRESSES = 1 << 48  # times the longest gathered row it must stay below 2^63
_THREADS = 2  # what one memory channel can use
_COPIED_ALONE_ITEMS = 256  # longer rows are copied one by one


class RunTable(NamedTuple):
    """Where the rows of runs lie. Arrays are int64 ``(runs,)``.

    Attributes:
        live: number of rows that each run has.
        at: address of the first of them; of a run that is not open anything below the first
            address.
        sums_at: address of the sum of the first row, u32 a row; far below 0, so that no row's
            offset leads to an address, where a run has none. None: no run has sums.
        step_bytes: bytes from row to row.
    """

    live: NDArray[np.int64]
    at: NDArray[np.int64]
    sums_at: NDArray[np.int64] | None
    step_bytes: int


class RowCopier:
    """Copies rows from wherever they lie to the array where they belong.

    In numpy, by fancy indices into one array that stands for all of the memory: numpy takes many
    rows out of *one* array per call. So a row is named by its address, whatever page, map or buffer
    that belongs to: no Python per row, and no alignment is asked for.
    """

    name = "numpy"
    proves_rows = False  # whether comparing rows with their sums on the way costs next to nothing
    copied_alone_bytes = 32 << 10  # from here on one memcpy a row is faster
    # numpy gathers into an array of its own first. Portions of this size stay in cache on their
    # way. Smaller ones would even more, but let go of the interpreter lock once each, and getting
    # it back costs more.
    _at_once_bytes = 512 << 10

    def take_rows(
        self, table: RunTable, run: Numbers64, row: Numbers64, row_bytes: int, out: NDArray[Any]
    ) -> int:
        """Copy rows of equal length that are named by run and row.

        Args:
            table: addresses of runs.
            run: run of each row, int64 ``(rows,)``.
            row: number of each row in its run, int64 ``(rows,)``.
            row_bytes: as for `copy_rows`, as are `out` and what is returned.
            out: array for the rows.

        Raises:
            ValueError: sizes that contradict each other.
            IndexError: a run that is not open, or a row beyond its end. Nothing was read.
        """
        _check_table(table, run, row)
        addresses = table.at[run] + row * table.step_bytes
        sums_at = None if table.sums_at is None else table.sums_at[run] + row * _SUM_BYTES
        return self.copy_rows(addresses, row_bytes, out, sums_at)

    def copy_rows(
        self,
        addresses: Numbers64,
        row_bytes: int,
        out: NDArray[Any],
        sums_at: Numbers64 | None = None,
    ) -> int:
        """Copy rows of equal length.

        Args:
            addresses: address of each row, int64 ``(rows,)``.
            row_bytes: bytes of each; at least LEAST_SUMMED_BYTES when there are sums.
            out: ``rows * row_bytes`` bytes, contiguous; rows are written one after the other.
            sums_at: address of each row's sum, the low half of its xxh3 as u32; at most 0 where a
                row has none and is not compared with anything. None: no row has one.

        Returns:
            The first row whose bytes in `out` are not what its sum says, or -1. What `out` holds
            after it means nothing.

        Raises:
            ValueError: sizes that contradict each other, or an address before the first.
        """
        rows = addresses.size
        sums = rows if sums_at is None else sums_at.size
        if row_bytes < 0 or rows * row_bytes != out.nbytes or sums != rows:
            raise ValueError(f"{rows} rows of {row_bytes} bytes, {sums} sums, for {out.nbytes}")
        if sums_at is not None and row_bytes < LEAST_SUMMED_BYTES:
            raise ValueError(f"rows of {row_bytes} bytes have no sums")
        if not rows or not row_bytes:
            return -1
        _check_addresses(addresses)
        written = _bytes_of(out)
        if row_bytes < self.copied_alone_bytes:
            self._copy_small(addresses, row_bytes, written)
        else:
            _copy_one_by_one(addresses, np.full(rows, row_bytes), written)
        return -1 if sums_at is None else _first_wrong(written.reshape(rows, row_bytes), sums_at)

    def copy_spans(self, addresses: Numbers64, lengths: Numbers64, out: NDArray[Any]) -> None:
        """Copy rows of any length.

        Args:
            addresses: address of each row, int64 ``(rows,)``; that of an empty row means nothing.
            lengths: bytes of each row, int64 ``(rows,)``, multiples of the item of `out`.
            out: array for all of them together, contiguous, one after the other.

        Raises:
            ValueError: sizes that contradict each other, or an address before the first.
        """
        total = int(lengths.sum())
        within = ((lengths >= 0) & (lengths <= out.nbytes)).all()  # a sum may wrap around
        if lengths.size != addresses.size or total != out.nbytes or not within:
            raise ValueError(
                f"{addresses.size} addresses and {lengths.size} lengths do not make up "
                f"{out.nbytes} bytes"
            )
        if not total:
            return
        _check_addresses(addresses[lengths > 0])
        item_bytes = out.itemsize
        if total >= _COPIED_ALONE_ITEMS * item_bytes * lengths.size:
            _copy_one_by_one(addresses, lengths, _bytes_of(out))
            return
        # One address an item costs 8 bytes, but no Python per row.
        items = lengths // item_bytes
        first = addresses - item_bytes * (np.cumsum(items) - items)
        every = np.repeat(first, items) + np.arange(out.size) * item_bytes
        self._copy_small(every, item_bytes, _bytes_of(out))

    def check_spans(
        self, addresses: Numbers64, lengths: Numbers64, sums: NDArray[np.uint64]
    ) -> int:
        """Compare spans of memory with their sums where they lie.

        Args:
            addresses: address of each span, int64 ``(spans,)``.
            lengths: bytes of each, int64 ``(spans,)``, at least LEAST_SUMMED_BYTES.
            sums: their xxh3, uint64 ``(spans,)``.

        Returns:
            The first span that is not what its sum says, or -1.

        Raises:
            ValueError: sizes that contradict each other, or an address before the first.
        """
        if not addresses.size == lengths.size == sums.size or (lengths < LEAST_SUMMED_BYTES).any():
            raise ValueError(
                f"{addresses.size} addresses, {lengths.size} lengths, {sums.size} sums of spans"
            )
        _check_addresses(addresses)
        memory = _memory(1).view(np.uint8)
        starts = (addresses - _FIRST_ADDRESS).tolist()
        spans = zip(starts, lengths.tolist(), sums.tolist(), strict=True)
        for at, (start, length, expected) in enumerate(spans):
            if xxh3_64_intdigest(memory[start : start + length].data) != expected:
                return at
        return -1

    def _copy_small(self, addresses: Numbers64, row_bytes: int, out: NDArray[np.uint8]) -> None:
        rows = np.ndarray((addresses.size,), f"V{row_bytes}", out.data)
        memory = _memory(row_bytes)
        offsets = addresses - _FIRST_ADDRESS
        at_once = max(1, self._at_once_bytes // row_bytes)
        for start in range(0, len(rows), at_once):
            rows[start : start + at_once] = memory[offsets[start : start + at_once]]


class NativeRows(RowCopier):
    """In C, without the interpreter lock."""

    name = "native"
    proves_rows = True

    def __init__(self, threads: int) -> None:
        """Copy large jobs on so many threads."""
        self._threads = threads

    def take_rows(
        self, table: RunTable, run: Numbers64, row: Numbers64, row_bytes: int, out: NDArray[Any]
    ) -> int:
        live, at, sums_at, step_bytes = table
        written = _bytes_of(out)
        return kernels.take_rows(
            live, at, sums_at, run, row, step_bytes, row_bytes, written, self._threads
        )

    def copy_rows(
        self,
        addresses: Numbers64,
        row_bytes: int,
        out: NDArray[Any],
        sums_at: Numbers64 | None = None,
    ) -> int:
        return kernels.copy_rows(addresses, row_bytes, _bytes_of(out), sums_at, self._threads)

    def copy_spans(self, addresses: Numbers64, lengths: Numbers64, out: NDArray[Any]) -> None:
        kernels.copy_spans(addresses, lengths, _bytes_of(out), self._threads)

    def check_spans(
        self, addresses: Numbers64, lengths: Numbers64, sums: NDArray[np.uint64]
    ) -> int:
        return kernels.check_spans(addresses, lengths, sums, self._threads)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NUMPY = RowCopier()
NATIVE: RowCopier | None = None if kernels is None else NativeRows(min(_THREADS, _usable_cores()))
BEST: RowCopier = NATIVE or NUMPY


def _bytes_of(out: NDArray[Any]) -> NDArray[np.uint8]:
    """`out` as bytes; never a copy."""
    if not out.flags.c_contiguous:
        raise ValueError("rows are written to contiguous arrays only")
    return out.reshape(-1).view(np.uint8)


def _check_addresses(addresses: Numbers64) -> None:
    if addresses.min(initial=_FIRST_ADDRESS) < _FIRST_ADDRESS:
        raise ValueError("a row has no address")


def _check_table(table: RunTable, run: Numbers64, row: Numbers64) -> None:
    runs, known = table.live.size, table.at.size
    sums = known if table.sums_at is None else table.sums_at.size
    if runs != known or sums != known or run.size != row.size:
        raise ValueError(
            f"{runs} runs at {known} addresses, {row.size} rows of {run.size} runs, {sums} sums"
        )
    # As an unsigned number, a run below zero is too large.
    places = np.where(run.view(np.uint64) < np.uint64(runs), run, 0)
    live = table.live[places] if runs else np.zeros(run.size, np.int64)
    beyond = (places != run) | (row < 0) | (row >= live)
    closed = ~beyond
    closed[closed] = table.at[run[closed]] < _FIRST_ADDRESS
    wrong = np.flatnonzero(beyond | closed)
    if wrong.size:
        at = int(wrong[0])
        which = f"row {row[at]} of run {run[at]} is beyond its end"
        raise IndexError(which if beyond[at] else f"run {run[at]} is not open")


def _copy_one_by_one(addresses: Numbers64, lengths: Numbers64, out: NDArray[np.uint8]) -> None:
    memory = _memory(1).view(np.uint8)
    starts = (addresses - _FIRST_ADDRESS).tolist()
    at = 0
    for start, length in zip(starts, lengths.tolist(), strict=True):
        if length:
            out[at : at + length] = memory[start : start + length]
            at += length


def _first_wrong(rows: NDArray[np.uint8], sums_at: Numbers64) -> int:
    summed = np.flatnonzero(sums_at > 0)
    places = sums_at[summed]
    _check_addresses(places)
    found = np.fromiter(map(xxh3_64_intdigest, rows[summed]), np.uint64, summed.size)
    expected = _memory(4)[places - _FIRST_ADDRESS].view(np.uint32)
    wrong = np.flatnonzero(found.astype(np.uint32) != expected)
    return int(summed[wrong[0]]) if wrong.size else -1


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
