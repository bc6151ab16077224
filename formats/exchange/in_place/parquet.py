"""Parquet files adopted in place: row groups as fragments.

pyarrow ends the process when the footer is damaged in certain ways, so a child process walks it
first. The child gets the footer alone, since the file may lie in a store.

Source:
    parquet-format: "File format".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.dataset.external.foreign import (
    TablePlace,
    foreign_entries,
    place_type,
    read_group,
    read_metadata,
)
from tensorrepo.formats.dataset.pages.page import DIRECTORY, padded
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, ColumnLayout, Image, Schema
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS
from tensorrepo.formats.exchange.column_choice import ColumnChoice
from tensorrepo.formats.exchange.in_place.scan import AdoptedFragment, AdoptedSource, FileScan
from tensorrepo.formats.exchange.tables.files import adapt
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

MAGIC = b"PAR1"
TAIL_BYTES = 8  # length of the footer, magic
MAX_FOOTER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One leaf of one field in one row group. `nulls` is None where the file does not say."""

    path: tuple[str, ...]
    compressed_bytes: int
    uncompressed_bytes: int
    nulls: int | None


@dataclass(frozen=True, slots=True)
class RowGroup:
    rows: int
    columns: tuple[ColumnChunk, ...]


def read_footer(file: IO[bytes], size: int, where: str) -> tuple[RowGroup, ...]:
    """Row groups of a file of `size` bytes. Raises InvalidInputError: no Parquet, or damaged."""
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > min(size - TAIL_BYTES, MAX_FOOTER_BYTES):
        raise damage(where, "does not end as a Parquet file. Is it cut short, or encrypted?")
    file.seek(-TAIL_BYTES - length, os.SEEK_END)
    with NamedTemporaryFile() as copy:
        copy.write(MAGIC + file.read(length) + tail)
        copy.flush()
        footer = Path(copy.name)
        try:
            table = open_files("footer", [footer])[footer]
            return tuple(_row_group(batch, size) for batch in table.batches())
        except ARROW_ERRORS as error:  # InvalidInputError is a ValueError
            said = str(error).removeprefix(f"{footer}: ")
            raise damage(where, f"has a damaged Parquet footer: {said}") from error


def _row_group(batch: pa.RecordBatch, size: int) -> RowGroup:
    batch.validate(full=True)
    rows, *columns = (column.to_pylist() for column in batch.columns)
    chunks = tuple(ColumnChunk(tuple(path), *sizes) for path, *sizes in zip(*columns, strict=True))
    for chunk in chunks:
        lies = not 0 <= chunk.compressed_bytes <= size or chunk.uncompressed_bytes < 0
        if lies or (chunk.nulls or 0) < 0:
            name = ".".join(chunk.path)
            raise ValueError(f"column {name!r:.80} of {chunk.compressed_bytes} bytes")
    if rows and rows[0] < 0:
        raise ValueError(f"a row group of {rows[0]} rows")
    return RowGroup(rows[0] if rows else 0, chunks)


_MAX_ROWS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Table:
    """One file: its footer as pyarrow has it, for reading, and as it says itself."""

    source: AdoptedSource
    metadata: Any
    groups: tuple[RowGroup, ...]


def scan_parquet(source: AdoptedSource, columns: tuple[str, ...] | None) -> FileScan:
    """One Parquet file.

    Raises:
        InvalidInputError: damaged.
        UnsupportedError: a column that no column type holds; choose others with `columns`.
    """
    with source.open() as stream:
        groups = read_footer(stream, source.version.size, source.url)
    try:
        metadata = read_metadata(source.file(), source.url)
        schema = metadata.schema.to_arrow_schema()
        adapted = adapt(schema, ColumnChoice(columns))
    except CorruptError as error:
        raise InvalidInputError(str(error)) from error
    except UnsupportedError as error:
        said = str(error).partition(" Cast them, or")[0]
        raise UnsupportedError(f"{source.url}: {said} Choose others: columns=a,b") from error
    except ARROW_ERRORS as error:
        raise damage(source.url, f"has a damaged schema: {error}") from error
    found = Schema(tuple(item.column for item in adapted))
    contents = {column.name: _content(column, schema) for column in found.columns}
    table = _Table(source, metadata, groups)
    return FileScan(found, lambda known: _fragments(table, contents, known))


def _content(column: Column, schema: pa.Schema) -> str:
    kind = schema.field(column.name).type
    if isinstance(column.type, ClassLabel) and pa.types.is_integer(kind):
        return "labels"
    if isinstance(column.type, Image) and pa.types.is_struct(kind):
        return "image"
    return "plain"


def _fragments(
    table: _Table, contents: dict[str, str], schema: Schema
) -> Iterator[AdoptedFragment]:
    columns = {name: schema.column(name) for name in contents}
    places = {
        name: TablePlace(place_type(column.type), column.nullable, name, contents[name])
        for name, column in columns.items()
    }
    file = table.source.describe("parquet", {columns[name].id: places[name] for name in places})
    for number, group in enumerate(table.groups):
        if group.rows > _MAX_ROWS:
            raise UnsupportedError(f"{table.source.url}: row group {number} has {group.rows} rows")
        if group.rows:
            entries = {
                column.id: _entry(table, number, column, places[name])
                for name, column in columns.items()
            }
            yield AdoptedFragment(group.rows, file, entries)


def _entry(table: _Table, number: int, column: Column, place: TablePlace) -> NDArray[Any]:
    group = table.groups[number]
    leaves = [chunk for chunk in group.columns if chunk.path[0] == place.field]
    stored = sum(leaf.compressed_bytes for leaf in leaves)
    raw = sum(leaf.uncompressed_bytes for leaf in leaves) + 8 * group.rows
    if column.storage.layout is ColumnLayout.FIXED:
        raw = column.storage.row_bytes * group.rows
    told = _nulls_told(place, leaves, group.rows) if column.nullable else 0
    nulls = _nulls_read(table, number, place) if told is None else told
    raw_bytes = min(DIRECTORY.size + padded(raw), 2**63)
    return foreign_entries([0], [group.rows], [number], [stored], [raw_bytes], [nulls])


def _nulls_told(place: TablePlace, leaves: list[ColumnChunk], rows: int) -> int | None:
    """How many rows are null, if the file says."""
    image = place.content == "image"
    if image:  # its bytes are what the rows are
        leaves = [leaf for leaf in leaves if leaf.path == (place.field, "bytes")]
    if place.content == "labels" or len(leaves) != 1:
        return None
    (leaf,) = leaves
    # Within lists and structs empty rows and null elements are counted, too.
    exact = image or len(leaf.path) == 1 or leaf.nulls == 0
    return leaf.nulls if exact and leaf.nulls is not None and leaf.nulls <= rows else None


def _nulls_read(table: _Table, number: int, place: TablePlace) -> int:
    rows, source = table.groups[number].rows, table.source
    try:
        values = read_group(source.file(), table.metadata, number, rows, place, source.url)
    except CorruptError as error:
        raise InvalidInputError(str(error)) from error
    return 0 if values.valid is None else rows - int(np.count_nonzero(values.valid))
