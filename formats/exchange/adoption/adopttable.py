"""How is a Parquet file adopted in place? A row group is a fragment, a column of it a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import ClassLabel, Column, Image, Layout, Schema
from tensorrepo.formats.dataset.elsewhere.foreign import TablePlace, foreign_entries, place_type
from tensorrepo.formats.dataset.elsewhere.foreigntable import read_group, read_metadata
from tensorrepo.formats.dataset.pages.page import DIRECTORY, padded
from tensorrepo.formats.exchange.adoption.adopting import AdoptedFragment, Scan, Source
from tensorrepo.formats.exchange.adoption.parquetfooter import ColumnChunk, RowGroup, read_footer
from tensorrepo.formats.exchange.tabular.tables import ARROW_ERRORS, adapt
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_ROWS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class _Table:
    """One file: its footer as pyarrow has it, for reading, and as it says itself."""

    source: Source
    metadata: Any
    groups: tuple[RowGroup, ...]


def scan_parquet(source: Source, columns: tuple[str, ...] | None) -> Scan:
    """One Parquet file.

    Raises:
        InvalidInputError: damaged.
        UnsupportedError: a column that no column type holds; choose others with `columns`.
    """
    try:
        metadata = read_metadata(source.file(), source.url)
        schema = metadata.schema.to_arrow_schema()
        adapted = adapt(schema, columns)
    except CorruptError as error:
        raise InvalidInputError(str(error)) from error
    except UnsupportedError as error:
        raise UnsupportedError(f"{source.url}: {error} Choose others: columns=a,b") from error
    except ARROW_ERRORS as error:
        raise damage(source.url, f"has a damaged schema: {error}") from error
    with source.open() as stream:
        groups = read_footer(stream, source.version.size, source.url)
    found = Schema(tuple(item.column for item in adapted))
    contents = {column.name: _content(column, schema) for column in found.columns}
    table = _Table(source, metadata, groups)
    return Scan(found, lambda known: _fragments(table, contents, known))


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
    if column.storage.layout is Layout.FIXED:
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
