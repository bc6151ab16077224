"""Parquet files, Arrow IPC files and streams: readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.exchange.base import BATCH_BYTES, Candidate, OpenedSource
from tensorrepo.formats.exchange.child import TableFile
from tensorrepo.formats.exchange.tables.files import ARROW_ERRORS, has_table_files, read_tables

MAGIC = b"PAR1"
SUFFIXES = (".parquet", ".pq")
_MAX_ROWS = 65_536
_POINTER_BYTES = 8  # what a row of any type costs in memory, however well it is encoded
_STREAM_BYTES = 1 << 20


def read_parquet(path: Path, *, columns: tuple[str, ...] | None = None) -> OpenedSource:
    """A Parquet file, or all those of a folder with one schema, in the order of their names."""
    return read_tables(path, "parquet", SUFFIXES, None, columns)


def matches_parquet(candidate: Candidate) -> bool:
    return candidate.head.startswith(MAGIC) or has_table_files(candidate, SUFFIXES)


def open_parquet(path: Path) -> TableFile:
    """One file; in a child process, since pyarrow may end the process that reads a damaged one."""
    with refusals(path, "Parquet file", *ARROW_ERRORS), _parquet_file(path) as file:
        return TableFile(file.schema_arrow, file.metadata.num_rows, lambda: _batches(path))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with _parquet_file(path) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            least = _POINTER_BYTES * len(file.schema_arrow)
            row_bytes = max(least, group.total_byte_size // max(1, group.num_rows))
            step = min(_MAX_ROWS, max(1, BATCH_BYTES // row_bytes))
            yield from file.iter_batches(step, row_groups=[number], use_threads=False)


def _parquet_file(path: Path) -> pq.ParquetFile:
    """Opened for streaming: pages are read as they are needed, not row groups whole."""
    return pq.ParquetFile(
        str(path),
        buffer_size=_STREAM_BYTES,
        pre_buffer=False,
        page_checksum_verification=True,
    )


ARROW_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
END_MARK = STREAM_MAGIC + bytes(4)
ARROW_SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")


def read_arrow(path: Path, *, columns: tuple[str, ...] | None = None) -> OpenedSource:
    """An Arrow file or stream, or all those of a folder with one schema.

    A record batch is read whole, as Arrow wrote it: memory is that of the largest one.
    """
    return read_tables(path, "arrow", ARROW_SUFFIXES, None, columns)


def matches_arrow(candidate: Candidate) -> bool:
    return candidate.head.startswith((ARROW_MAGIC, STREAM_MAGIC)) or has_table_files(
        candidate, ARROW_SUFFIXES
    )


def open_arrow(path: Path) -> TableFile:
    """One Arrow file or stream, told apart by content."""
    with refusals(path, "Arrow file", *ARROW_ERRORS), pa.OSFile(str(path)) as file:
        if _is_stream(file):
            _check_end(path, file)
            return TableFile(pa.ipc.open_stream(file).schema, None, lambda: _stream(path))
        return TableFile(pa.ipc.open_file(file).schema, None, lambda: _ipc_batches(path))


def _ipc_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _stream(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file:
        yield from pa.ipc.open_stream(file)


def _is_stream(file: pa.NativeFile) -> bool:
    start = file.read(len(STREAM_MAGIC))
    file.seek(0)
    return bool(start == STREAM_MAGIC)


def _check_end(path: Path, file: pa.NativeFile) -> None:
    """A stream may lack its end mark, but then nobody can tell whether rows are missing."""
    size = file.size()
    file.seek(max(0, size - len(END_MARK)))
    if file.read() != END_MARK:
        raise damage(path, "ends without the end mark of an Arrow stream. Is it cut short?")
    file.seek(0)
