"""Read and write Parquet files, one or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tensorrepo.formats.damage import refusals
from tensorrepo.formats.exchange.base import BATCH_BYTES, Candidate
from tensorrepo.formats.exchange.child import TableFile
from tensorrepo.formats.exchange.tabular.tables import (
    ARROW_ERRORS,
    has_table_files,
    read_tables,
)

if TYPE_CHECKING:
    from tensorrepo.formats.exchange.base import Reading

MAGIC = b"PAR1"
SUFFIXES = (".parquet", ".pq")
_MAX_ROWS = 65_536
_POINTER_BYTES = 8  # what a row of any type costs in memory, however well it is encoded
_STREAM_BYTES = 1 << 20


def read_parquet(path: Path, *, columns: tuple[str, ...] | None = None) -> Reading:
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
