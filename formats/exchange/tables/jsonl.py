"""JSON lines: reader.

Types are inferred from the first lines (1 MiB) and then enforced, with line and column in the
error. What no column type holds (objects, lists of text or of lists) becomes a column of JSON. A
key that only later lines have is an error; one that a line lacks is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.dataset.schema.schema import Column, ColumnBatch, Json, Schema
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.exchange.base import Candidate, Damage, OpenedSource, grouped, origin_of
from tensorrepo.formats.exchange.tables.csv import matches_text, open_text
from tensorrepo.formats.exchange.tables.files import table_files
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
Line = tuple[Path, int, dict[str, Any]]


def read_jsonl(path: Path, *, damaged: bool = False) -> OpenedSource:
    """A file of JSON lines, or all those of a folder.

    Args:
        path: file or folder.
        damaged: pass over lines that cannot be read, or that do not fit the first ones.
    """
    files = table_files(path, SUFFIXES)
    first = next(grouped(_lines(files[:1], Damage(skip=damaged)), BLOCK_BYTES), [])
    if not first:
        raise damage(files[0], "holds no JSON objects")
    schema = infer_schema(path, [row for _, _, row in first])
    met = Damage(skip=damaged)
    return OpenedSource(
        schema=schema,
        rows=None,
        batches=_batches(schema, files, met),
        origin=origin_of(path, "jsonl", files),
        damage=met,
    )


def matches_jsonl(candidate: Candidate) -> bool:
    return matches_text(candidate, SUFFIXES)


def _batches(schema: Schema, files: Sequence[Path], met: Damage) -> Iterator[ColumnBatch]:
    for block in grouped(_lines(files, met), BLOCK_BYTES):
        batch = _batch(schema, block)
        if batch is None:
            misfits = _misfits(schema, block)
            for at in sorted(misfits):
                met.meet(block[at][0], block[at][1] - 1, misfits[at])
            fitting = [line for at, line in enumerate(block) if at not in misfits]
            batch = _batch(schema, fitting)
        if batch is None:
            raise damage(block[0][0], "a column mixes types that do not go together")
        if any(map(len, batch.values())):
            yield batch


def _lines(files: Sequence[Path], met: Damage) -> Iterator[tuple[Line, int]]:
    """Each line that is an object, and its bytes."""
    for file in files:
        with refusals(file, "file of JSON lines"), open_text(file) as stream:
            for number, text in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 1):
                if text.strip():
                    try:
                        where, fault = f"{file}, line {number}", "is not a JSON object"
                        row = decode_json(where, text, dict[str, Any], fault)
                        yield (file, number, row), len(text)
                    except InvalidInputError as problem:
                        met.meet(file, number - 1, problem)


def infer_schema(path: Path, rows: Sequence[dict[str, Any]]) -> Schema:
    """The columns of JSON objects, from the first of them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise damage(path, "its objects have no keys, so there are no columns")
    return Schema(tuple(_column(name, [row.get(name) for row in rows]) for name in names))


def _column(name: str, values: list[Any]) -> Column:
    """The type of a column from its first values; all null: text."""
    with suppress(UnsupportedError, pa.ArrowException, OverflowError):
        inferred = pa.array(values).type
        if pa.types.is_null(inferred):
            inferred = pa.string()
        (column,) = Schema.from_arrow(pa.schema([pa.field(name, inferred)])).columns
        if not isinstance(column.type, Nested):  # which JSON says as it is
            return replace(column, arrow=None)
    return Column(name, Json(), nullable=True)


def _batch(schema: Schema, block: Sequence[Line]) -> ColumnBatch | None:
    """The lines as columns; None when one of them does not fit."""
    names = set(schema.names)
    if any(row.keys() - names for _, _, row in block):
        return None
    batch: dict[str, Any] = {}
    for column in schema.columns:
        cells = [row.get(column.name) for _, _, row in block]
        as_json = isinstance(column.type, Json)
        values = cells if as_json else _fitting(cells, _arrow_type(column))
        if values is None:
            return None
        batch[column.name] = values
    return batch


def _arrow_type(column: Column) -> pa.DataType:
    return Schema((column,)).to_arrow().field(0).type


def _misfits(schema: Schema, block: Sequence[Line]) -> dict[int, InvalidInputError]:
    """What is wrong with each line that does not fit, by its place in the block."""
    names = set(schema.names)
    misfits = {}
    for at, (file, number, row) in enumerate(block):
        for name in row.keys() - names:
            misfits[at] = damage(f"{file}, line {number}", f"has a new key {name!r}")
    for column in schema.columns:
        if isinstance(column.type, Json):
            continue
        wanted = _arrow_type(column)
        kinds: dict[type, list[int]] = {}
        for at, (_, _, row) in enumerate(block):
            kinds.setdefault(type(row.get(column.name)), []).append(at)
        values = [row.get(column.name) for _, _, row in block]
        for at in chain.from_iterable(_unfit(values, kind, wanted) for kind in kinds.values()):
            where = f"{block[at][0]}, line {block[at][1]}, column {column.name!r}"
            what = f"{values[at]!r:.80} is no {wanted}, the type of the first lines"
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
        return array.cast(wanted) if _suits(array.type, wanted) else None
    except (pa.ArrowException, OverflowError):
        return None


def _suits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is one of the other."""
    types = pa.types
    if types.is_null(found):
        return True
    if types.is_large_list(wanted):
        return bool(types.is_list(found)) and _suits(found.value_type, wanted.value_type)
    if types.is_floating(wanted):
        return bool(types.is_integer(found) or types.is_floating(found))
    if types.is_large_string(wanted):
        return bool(types.is_string(found))
    return bool(found == wanted)
