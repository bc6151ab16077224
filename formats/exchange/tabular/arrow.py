"""Read and write Arrow IPC files (also called Feather) and streams, one or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.exchange.base import Candidate
from tensorrepo.formats.exchange.child import TableFile
from tensorrepo.formats.exchange.tabular.tables import (
    ARROW_ERRORS,
    has_table_files,
    read_tables,
)

if TYPE_CHECKING:
    from tensorrepo.formats.exchange.base import Reading

MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
END_MARK = STREAM_MAGIC + bytes(4)
SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")


def read_arrow(path: Path, *, columns: tuple[str, ...] | None = None) -> Reading:
    """An Arrow file or stream, or all those of a folder with one schema.

    A record batch is read whole, as Arrow wrote it: memory is that of the largest one.
    """
    return read_tables(path, "arrow", SUFFIXES, None, columns)


def matches_arrow(candidate: Candidate) -> bool:
    return candidate.head.startswith((MAGIC, STREAM_MAGIC)) or has_table_files(candidate, SUFFIXES)


def open_arrow(path: Path) -> TableFile:
    """One Arrow file or stream, told apart by content."""
    with refusals(path, "Arrow file", *ARROW_ERRORS), pa.OSFile(str(path)) as file:
        if _is_stream(file):
            _check_end(path, file)
            return TableFile(pa.ipc.open_stream(file).schema, None, lambda: _stream(path))
        return TableFile(pa.ipc.open_file(file).schema, None, lambda: _batches(path))


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
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
