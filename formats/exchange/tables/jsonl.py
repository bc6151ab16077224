"""JSON lines, and JSON documents that are a list of objects: reader.

Types are inferred from the first lines (1 MiB) and then enforced, with line and column in the
error. Lists and objects are lists and structs where the first lines agree: all objects have the
same keys, all values of a key one type. Else they become a column of JSON. A key that only later
lines have is an error; one that a line lacks is null. Folders called ``name=value`` are columns.

A document is walked record by record, never read whole. It may be an object as well, one key of
which leads to the list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnBatch,
    Json,
    Schema,
    Tensor,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.exchange.base import (
    BytesRead,
    Candidate,
    Damage,
    OpenedSource,
    grouped,
    origin_of,
)
from tensorrepo.formats.exchange.json_records import read_record, scan
from tensorrepo.formats.exchange.tables.csv import matches_text, open_text
from tensorrepo.formats.exchange.tables.files import table_files
from tensorrepo.formats.exchange.tables.nested_values import nested_type
from tensorrepo.formats.exchange.tables.partitions import partition_values
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
DOCUMENT_SUFFIXES = (".json",)
_BLANK = b" \t\r\n\xef\xbb\xbf"  # and the mark that some programs begin UTF-8 with
_MAX_BETWEEN_BYTES = 1 << 16


class JsonRow(NamedTuple):
    """An object and where it stands: the `number`, from 1, of a line or record of a file."""

    file: Path
    number: int
    value: dict[str, Any]
    unit: str = "line"

    @property
    def where(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


Walk = Callable[[Path, Damage, BytesRead], Iterator[tuple[JsonRow, int]]]


def read_jsonl(
    path: Path, *, json_columns: tuple[str, ...] = (), damaged: bool = False
) -> OpenedSource:
    """A file of JSON lines, or all those of a folder.

    Args:
        path: file or folder.
        json_columns: columns that are JSON, whatever the first lines have; ``*``: all that are
            neither one value nor a list of numbers.
        damaged: pass over files and lines that cannot be read, or do not fit the first ones.
    """
    files = table_files(path, SUFFIXES)
    return _read(path, "jsonl", files, _lines, json_columns=json_columns, damaged=damaged)


def read_json(
    path: Path, *, json_columns: tuple[str, ...] = (), damaged: bool = False
) -> OpenedSource:
    """A JSON document that is a list of objects, or all those of a folder.

    Args:
        path: file or folder.
        json_columns: as for `read_jsonl`.
        damaged: pass over files that may not be read, and records that do not fit the first ones.

    Raises:
        InvalidInputError: no list of objects, or several of them.
    """
    files = table_files(path, DOCUMENT_SUFFIXES)
    return _read(path, "json", files, _records, json_columns=json_columns, damaged=damaged)


def matches_json(candidate: Candidate) -> bool:
    """A file called so that begins a list, or a folder of nothing but files called so."""
    if not candidate.is_folder:
        called = candidate.path.name.lower().endswith(DOCUMENT_SUFFIXES)
        return called and candidate.head.lstrip(_BLANK)[:1] == b"["
    return all(name.suffix.lower() in DOCUMENT_SUFFIXES for name in candidate.names)


def _read(
    path: Path,
    name: str,
    files: Sequence[Path],
    walk: Walk,
    *,
    json_columns: tuple[str, ...],
    damaged: bool,
) -> OpenedSource:
    begun = Damage(skip=damaged, collect=True)
    for file in files:
        first = next(grouped(walk(file, begun, BytesRead()), BLOCK_BYTES), [])
        if first or not begun.count:
            break
    begun.settle()
    if not first:
        raise damage(files[0], "holds no JSON objects")
    schema = infer_schema(path, [row.value for row in first], json_columns)
    told = partition_values(path, files, schema.names)
    beside: list[dict[str, Any]] = [{}] * len(files) if told is None else told.to_pylist()
    if told is not None:
        schema = Schema((*schema.columns, *Schema.from_arrow(told.schema).columns))
    met, read = Damage(skip=damaged, collect=True), BytesRead()
    rows = (
        (row._replace(value={**row.value, **more}), size)
        for file, more in zip(files, beside, strict=True)
        for row, size in walk(file, met, read)
    )
    return OpenedSource(
        schema=schema,
        rows=None,
        batches=_batches(schema, rows, met),
        origin=origin_of(path, name, files),
        damage=met,
        bytes_read=read,
    )


def matches_jsonl(candidate: Candidate) -> bool:
    return matches_text(candidate, SUFFIXES)


def _batches(
    schema: Schema, rows: Iterator[tuple[JsonRow, int]], met: Damage
) -> Iterator[ColumnBatch]:
    for block in grouped(rows, BLOCK_BYTES):
        batch = _batch(schema, block)
        if batch is None:
            misfits = _misfits(schema, block)
            for at in sorted(misfits):
                met.meet(block[at].file, block[at].number - 1, misfits[at])
            fitting = [line for at, line in enumerate(block) if at not in misfits]
            batch = _batch(schema, fitting)
        if batch is None:
            raise damage(block[0].file, "a column mixes types that do not go together")
        if not met.problems and any(map(len, batch.values())):
            yield batch
    met.settle()


def _lines(file: Path, met: Damage, read: BytesRead) -> Iterator[tuple[JsonRow, int]]:
    """Each line that is an object, and its bytes."""
    with met.opening(file, "file of JSON lines"), open_text(file, read) as stream:
        for number, text in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 1):
            if text.strip():
                try:
                    where, fault = f"{file}, line {number}", "is not a JSON object"
                    row = decode_json(where, text, dict[str, Any], fault)
                    yield JsonRow(file, number, row), len(text)
                except InvalidInputError as problem:
                    met.meet(file, number - 1, problem)


def _records(file: Path, met: Damage, read: BytesRead) -> Iterator[tuple[JsonRow, int]]:
    """Each object of the list that a document is, and its bytes."""
    with met.opening(file, "JSON file"), file.open("rb") as stream, read.of(stream):
        end, key = 0, None
        for number, span in enumerate(scan(file), 1):
            if key is not None and span.key != key:
                raise damage(file, f"has records under {key!r} and {span.key!r}; expected one list")
            between = _part(stream, end, span.start)
            if not (between.strip(_BLANK) in (b",", b"[") or (span.key and key is None)):
                where = f"{file}, before record {number}"
                raise damage(where, f"expected a list of objects, found {between[:40]!r}")
            end, key = span.stop, span.key
            row = read_record(file, stream, span, dict[str, Any])
            yield JsonRow(file, number, row, "record"), span.stop - span.start
        rest = _part(stream, end, file.stat().st_size).strip(_BLANK)
        if end and not rest.startswith(b"]"):
            raise damage(file, f"expected a list of objects, found {rest[:40]!r} behind the last")


def _part(stream: IO[bytes], start: int, stop: int) -> bytes:
    """Bytes ``[start, stop)`` of a file, at most those that stand between two records."""
    return os.pread(stream.fileno(), min(stop - start, _MAX_BETWEEN_BYTES), start)


def infer_schema(
    path: Path, rows: Sequence[dict[str, Any]], json_columns: Collection[str] = ()
) -> Schema:
    """The columns of JSON objects, from the first of them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise damage(path, "its objects have no keys, so there are no columns")
    columns = (
        Column(name, Json(), nullable=True)
        if name in json_columns
        else _column(name, [row.get(name) for row in rows], nested="*" not in json_columns)
        for name in names
    )
    return Schema(tuple(columns))


def _column(name: str, values: list[Any], *, nested: bool) -> Column:
    """The type of a column from its first values; all null: text.

    Unless `nested`, what is neither one value nor a list of numbers is JSON.
    """
    with suppress(UnsupportedError, pa.ArrowException, OverflowError):
        inferred = pa.infer_type(values)
        if pa.types.is_null(inferred):
            inferred = pa.string()
        if not pa.types.is_nested(inferred):
            (column,) = Schema.from_arrow(pa.schema([pa.field(name, inferred)])).columns
            return replace(column, arrow=None)
    found = nested_type(values, name)
    if found is None or not (nested or isinstance(found, Tensor)):
        found = Json()
    return Column(name, found, nullable=True)


def _batch(schema: Schema, block: Sequence[JsonRow]) -> ColumnBatch | None:
    """The lines as columns; None when one of them does not fit."""
    names = set(schema.names)
    if any(row.value.keys() - names for row in block):
        return None
    batch: dict[str, Any] = {}
    for column in schema.columns:
        cells = [row.value.get(column.name) for row in block]
        as_json = isinstance(column.type, Json)
        values = cells if as_json else _fitting(cells, _arrow_type(column))
        if values is None:
            return None
        batch[column.name] = values
    return batch


def _arrow_type(column: Column) -> pa.DataType:
    return Schema((column,)).to_arrow().field(0).type


def _misfits(schema: Schema, block: Sequence[JsonRow]) -> dict[int, InvalidInputError]:
    """What is wrong with each line that does not fit, by its place in the block."""
    names = set(schema.names)
    misfits = {}
    for at, row in enumerate(block):
        for name in row.value.keys() - names:
            misfits[at] = damage(row.where, f"has a new key {name!r}")
    for column in schema.columns:
        if isinstance(column.type, Json):
            continue
        wanted = _arrow_type(column)
        kinds: dict[type, list[int]] = {}
        values = [row.value.get(column.name) for row in block]
        for at, value in enumerate(values):
            kinds.setdefault(type(value), []).append(at)
        for at in chain.from_iterable(_unfit(values, kind, wanted) for kind in kinds.values()):
            where = f"{block[at].where}, column {column.name!r}"
            what = f"{values[at]!r:.80} is no {wanted}, the type of the first {block[at].unit}s"
            if isinstance(column.type, Nested):
                what += f". Option json_columns={column.name} keeps what each of them says"
            misfits.setdefault(at, damage(where, what))
    return misfits


def _unfit(values: list[Any], places: list[int], wanted: pa.DataType) -> list[int]:
    """Those of `places` whose values, all of one Python type, do not fit: by halving."""
    chosen = [values[at] for at in places]
    if _fitting(chosen, wanted) is not None:
        return []
    if len(places) == 1 or _is_another_kind(chosen, wanted):
        return places
    half = len(places) // 2
    return _unfit(values, places[:half], wanted) + _unfit(values, places[half:], wanted)


def _is_another_kind(values: list[Any], wanted: pa.DataType) -> bool:
    """Whether each of these would be refused for its type alone."""
    try:
        inferred = pa.array(values).type
    except (pa.ArrowException, OverflowError):
        return False
    return not pa.types.is_nested(inferred) and not _suits(inferred, wanted)


def _fitting(values: list[Any], wanted: pa.DataType) -> pa.Array | None:
    """`values` as an array of this type, None when one of them is of another kind.

    Asked for integers outright, Arrow would cut 2.5 to 2.
    """
    try:
        array = pa.array(values)
        if not _suits(array.type, wanted):
            return None
        return pa.array(values, wanted) if _holds_fields(wanted) else array.cast(wanted)
    except (pa.ArrowException, OverflowError):
        return None


def _suits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    types = pa.types
    if types.is_null(found):
        return True
    if types.is_large_list(wanted):
        return bool(types.is_list(found)) and _suits(found.value_type, wanted.value_type)
    if types.is_struct(wanted):
        known = {each.name: each.type for each in wanted.fields}
        return bool(types.is_struct(found)) and all(
            each.name in known and _suits(each.type, known[each.name]) for each in found.fields
        )
    if types.is_floating(wanted):
        return bool(types.is_integer(found) or types.is_floating(found))
    if types.is_large_string(wanted):
        return bool(types.is_string(found))
    return bool(found == wanted)


def _holds_fields(kind: pa.DataType) -> bool:
    """Whether a type is a struct, or lists of them, of which Arrow's cast wants all fields."""
    while pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_struct(kind))
