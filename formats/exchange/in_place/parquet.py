"""Parquet files adopted in place: footer parser, row groups as fragments.

pyarrow shows this, too, but it ends the process when the footer is damaged in certain ways. So the
few fields that are needed are read here from the footer itself, Thrift's compact protocol.

Source:
    parquet-format: "File format" and parquet.thrift; Thrift: "Thrift Compact protocol encoding".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
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
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS
from tensorrepo.formats.exchange.in_place.scan import AdoptedFragment, AdoptedSource, FileScan
from tensorrepo.formats.exchange.tables.files import adapt
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

MAGIC = b"PAR1"
TAIL_BYTES = 8  # length of the footer, magic
MAX_FOOTER_BYTES = 1 << 30
_MAX_DEPTH = 32
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS = frozenset((_I16, _I32, _I64))

# The fields that are wanted, by their numbers in parquet.thrift; None: the value itself.
_STATISTICS = {3: None}  # null_count
_META = {3: None, 6: None, 7: None, 12: _STATISTICS}  # path, uncompressed and compressed size
_GROUP = {1: {3: _META}, 3: None}  # columns' meta data, rows
_FILE = {4: _GROUP}


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
    """The row groups of a Parquet file of `size` bytes.

    Raises:
        InvalidInputError: no Parquet file, cut short, or a damaged footer.
    """
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read(TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > min(size - TAIL_BYTES, MAX_FOOTER_BYTES):
        raise damage(where, "does not end as a Parquet file. Is it cut short, or encrypted?")
    file.seek(-TAIL_BYTES - length, os.SEEK_END)
    try:
        found = _Reader(file.read(length)).struct(_FILE, 0)
        return tuple(_row_group(group, size) for group in found.get(4, ()))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise damage(where, f"has a damaged Parquet footer: {error}") from error


def _row_group(form: dict[int, Any], size: int) -> RowGroup:
    columns = tuple(_column(chunk[3], size) for chunk in form[1])
    if form[3] < 0:
        raise ValueError(f"a row group of {form[3]} rows")
    return RowGroup(form[3], columns)


def _column(form: dict[int, Any], size: int) -> ColumnChunk:
    path = tuple(part.decode() for part in form[3])
    nulls = form.get(12, {}).get(3)
    if not 0 <= form[7] <= size or form[6] < 0 or (nulls is not None and nulls < 0):
        raise ValueError(f"column {'.'.join(path)!r:.80} of {form[7]} bytes")
    return ColumnChunk(path, form[7], form[6], nulls)


class _Reader:
    """Walks a struct in Thrift's compact protocol; what is not wanted is passed over."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, wanted: dict[int, Any] | None, depth: int) -> dict[int, Any]:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            known = wanted is not None and number in wanted
            inner = wanted[number] if wanted is not None and known else None
            value = self._value(head & 15, inner, depth, known=known)
            if known:
                found[number] = value
        return found

    def _value(self, kind: int, wanted: dict[int, Any] | None, depth: int, *, known: bool) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _INTEGERS:
            return self._signed()
        if kind == _STRUCT:
            return self.struct(wanted, depth + 1)
        if kind in (_LIST, _SET):
            return self._list(wanted, depth + 1, known=known)
        if kind == _MAP:
            return self._map(depth + 1)
        if kind not in (_BYTE, _DOUBLE, _BINARY):
            raise ValueError(f"a field of unknown kind {kind}")
        size = {_BYTE: 1, _DOUBLE: 8}.get(kind)
        return self._bytes(self._unsigned() if size is None else size)

    def _list(self, wanted: dict[int, Any] | None, depth: int, *, known: bool) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        kind = head & 15
        if depth > _MAX_DEPTH or count > len(self._data) - self._at:  # an element has a byte
            raise ValueError(f"a list of {count} elements")
        found = []
        for _ in range(count):
            value = self._element(kind, wanted, depth, known=known)
            if known:
                found.append(value)
        return found

    def _map(self, depth: int) -> None:
        count = self._unsigned()
        kinds = self._byte() if count else 0
        if depth > _MAX_DEPTH or count > len(self._data) - self._at:
            raise ValueError(f"a map of {count} entries")
        for _ in range(count):
            self._element(kinds >> 4, None, depth, known=False)
            self._element(kinds & 15, None, depth, known=False)

    def _element(self, kind: int, wanted: dict[int, Any] | None, depth: int, *, known: bool) -> Any:
        if kind in (_TRUE, _FALSE):  # in a list they have a byte of their own
            return self._byte() == _TRUE
        return self._value(kind, wanted, depth, known=known)

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError(f"a text of {size} bytes")
        self._at += size
        return self._data[self._at - size : self._at]


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
