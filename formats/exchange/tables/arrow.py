"""Parquet files, Arrow IPC files and streams: readers."""

from __future__ import annotations

from pathlib import Path

from tensorrepo.formats.exchange.base import Candidate, OpenedSource
from tensorrepo.formats.exchange.child_main import STREAM_MAGIC
from tensorrepo.formats.exchange.column_choice import ColumnChoice
from tensorrepo.formats.exchange.tables.files import has_table_files, read_tables

MAGIC = b"PAR1"
SUFFIXES = (".parquet", ".pq")
ARROW_MAGIC = b"ARROW1"
ARROW_SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")


def read_parquet(
    path: Path, *, columns: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> OpenedSource:
    """A Parquet file, or all those of a folder with one schema, in the order of their names.

    pyarrow may end the process that reads a damaged file, so a child process reads it.
    """
    return read_tables(path, "parquet", SUFFIXES, None, ColumnChoice(columns, exclude))


def matches_parquet(candidate: Candidate) -> bool:
    return candidate.head.startswith(MAGIC) or has_table_files(candidate, SUFFIXES)


def read_arrow(
    path: Path, *, columns: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> OpenedSource:
    """An Arrow file or stream, or all those of a folder with one schema.

    A record batch is read whole, as Arrow wrote it: memory is that of the largest one.
    """
    return read_tables(path, "arrow", ARROW_SUFFIXES, None, ColumnChoice(columns, exclude))


def matches_arrow(candidate: Candidate) -> bool:
    return candidate.head.startswith((ARROW_MAGIC, STREAM_MAGIC)) or has_table_files(
        candidate, ARROW_SUFFIXES
    )
