"""Read-ahead of Parquet files in the importers' child process: the kernel fetches what comes next.

Whoever reads Parquet asks for a page, decodes it, and asks for the next. Kernels read ahead of one
place in a file, but columns are read side by side, at as many places. So the kernel is told what
follows of each column, up to a number of bytes in all.

Run as a script by `child_main`, which says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

AHEAD_BYTES = 32 << 20  # of the file, behind what was decoded
STEP_BYTES = 8 << 20
_STREAM_BYTES = 1 << 20
MOST_COLUMNS = 1024  # each is a call for each step: a file of more is read as it comes


def open_file(path: str) -> pq.ParquetFile:
    """A file opened for streaming: pages are read as they are needed, not row groups whole."""
    return pq.ParquetFile(
        path, buffer_size=_STREAM_BYTES, pre_buffer=False, page_checksum_verification=True
    )


def read_row_groups(
    path: str, *, batch_bytes: int, least_bytes: int, most_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, row group after row group, in steps of bounded bytes.

    Args:
        path: the file.
        batch_bytes: bytes of a batch, unless a single row is larger.
        least_bytes: what a value of any type costs in memory, however well it is encoded.
        most_rows: number of rows of a batch at most.
    """
    with open_file(path) as file, open(path, "rb", buffering=0) as again:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        ahead = ReadAhead(map(column_ranges, groups), STEP_BYTES)
        before = 0  # bytes of the row groups that were read
        for number, group in enumerate(groups):
            row_bytes = max(
                least_bytes * len(file.schema_arrow),
                group.total_byte_size // max(1, group.num_rows),
            )
            step = min(most_rows, max(1, batch_bytes // row_bytes))
            group_bytes = sum(size for _, size in column_ranges(group))
            rows = 0
            _ask(again.fileno(), ahead.ranges(before + AHEAD_BYTES))
            for batch in file.iter_batches(step, row_groups=[number], use_threads=False):
                yield batch
                rows += batch.num_rows
                done = before + group_bytes * rows // max(1, group.num_rows)
                _ask(again.fileno(), ahead.ranges(done + AHEAD_BYTES))
            before += group_bytes


def column_ranges(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """First byte and number of bytes of each column of a row group, as the footer says them."""
    found = []
    for at in range(group.num_columns if group.num_columns <= MOST_COLUMNS else 0):
        chunk = group.column(at)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page:
            start = min(start, chunk.dictionary_page_offset)
        found.append((start, max(0, chunk.total_compressed_size)))
    return found


class ReadAhead:
    """Which bytes to ask for, where row groups come one after the other and columns side by side.

    Args:
        groups: first byte and number of bytes of the columns, by row group. They need not be true:
            nothing depends on them but how soon bytes are there.
        step_bytes: how much is asked for at once, at least.
    """

    def __init__(self, groups: Iterator[Sequence[tuple[int, int]]], step_bytes: int) -> None:
        self._groups, self._step_bytes = groups, step_bytes
        self._columns: Sequence[tuple[int, int]] = ()  # of the row group that is asked for
        self._bytes = 0  # of that row group
        self._before = 0  # bytes of those before it
        self._share = 1.0  # of each of its columns that was asked for

    def ranges(self, stop: int) -> list[tuple[int, int]]:
        """What is among the first `stop` bytes of all columns and was in no answer before.

        Nothing, where that is less than a step.
        """
        found: list[tuple[int, int]] = []
        if stop < self._before + int(self._bytes * self._share) + self._step_bytes:
            return found
        while self._share < 1.0 or self._begin_next():
            share = min(1.0, (stop - self._before) / max(1, self._bytes))
            for start, size in self._columns:
                found.append((start + int(size * self._share), start + int(size * share)))
            self._share = share
            if share < 1.0:
                break
        return _joined(found)

    def _begin_next(self) -> bool:
        columns = next(self._groups, None)
        if columns is None:
            return False
        self._before += self._bytes
        self._columns, self._bytes, self._share = columns, sum(size for _, size in columns), 0.0
        return True


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges without empty ones, those that touch each other as one."""
    found: list[tuple[int, int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif stop > start:
            found.append((start, stop))
    return found


def _ask(file: int, ranges: Sequence[tuple[int, int]]) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    for start, stop in ranges:
        with suppress(OSError, OverflowError):  # places that are none
            os.posix_fadvise(file, start, stop - start, os.POSIX_FADV_WILLNEED)
