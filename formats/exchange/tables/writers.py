"""Writers of Parquet, Arrow, CSV and JSON lines.

Parquet and Arrow hold every column and, in their metadata, its exact type. CSV and JSON lines hold
values: class labels are written as their names, times as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import SMALL_FLOATS
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array, to_arrow_array
from tensorrepo.formats.dataset.schema.python_values import (
    json_form,
    python_values,
    with_objects,
)
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Image,
    Json,
    Link,
    List,
    Map,
    Null,
    Scalar,
    Schema,
    Struct,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, RaggedValues
from tensorrepo.formats.dataset.schema.widen import convert_values
from tensorrepo.formats.exchange.base import BATCH_BYTES, grouped
from tensorrepo.formats.exchange.output import ExportTable, column_refused, compressed, new_file
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.typed_decoding import from_json

ROW_GROUP_BYTES = 64 << 20


def write_parquet(
    table: ExportTable, path: Path, *, overwrite: bool = False, compression: str = "zstd"
) -> None:
    """One Parquet file, row groups of about 64 MiB."""
    schema = table.schema.without_ids().to_arrow()
    # Dictionaries and statistics pay for small values only; images would be copied for them.
    small = Scalar | ClassLabel | Text | Timestamp | Date | Time | Duration | Decimal
    light = [column.name for column in table.schema.columns if isinstance(column.type, small)]
    with (
        new_file(path, overwrite=overwrite) as temporary,
        _arrow_failures("Parquet"),
        pq.ParquetWriter(
            str(temporary),
            schema,
            compression=compression,
            use_dictionary=light,
            write_statistics=light,
            write_page_checksum=True,
            # Pages are cut between such batches only, and a reader must hold a page.
            write_batch_size=1024 if len(light) == len(schema) else 64,
        ) as writer,
    ):
        sized = ((batch, batch.nbytes) for batch in _renamed(table, schema))
        for batches in grouped(sized, ROW_GROUP_BYTES):
            writer.write_table(pa.Table.from_batches(batches, schema))


def write_arrow(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """One Arrow IPC file."""
    schema = table.schema.without_ids().to_arrow()
    with (
        new_file(path, overwrite=overwrite) as temporary,
        _arrow_failures("Arrow"),
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        dictionaries = _dictionaries(table, schema)
        for batch in _renamed(table, schema):
            arrays = [
                _recoded(array, dictionaries[name]) if name in dictionaries else array
                for name, array in zip(schema.names, batch.columns, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _dictionaries(table: ExportTable, schema: pa.Schema) -> dict[str, pa.Array]:
    """All values of each column that is a dictionary: an Arrow file has one for all batches."""
    names = [each.name for each in schema if pa.types.is_dictionary(each.type)]
    found: dict[str, pa.Array] = {}
    for batch in table.to_batches(names, max_bytes=BATCH_BYTES) if names else ():
        for name in names:
            values = batch.column(name).dictionary
            known = [found[name], values] if name in found else [values]
            found[name] = pc.unique(pa.chunked_array(known))
    return found


def _recoded(array: pa.Array, dictionary: pa.Array) -> pa.Array:
    places = pc.index_in(array.dictionary, dictionary).cast(pa.int32())
    return pa.DictionaryArray.from_arrays(places.take(array.indices), dictionary)


def write_csv(
    table: ExportTable, path: Path, *, overwrite: bool = False, delimiter: str | None = None
) -> None:
    """One CSV file; tabs between cells when `path` ends in ``.tsv``, gzip when in ``.gz``.

    Raises:
        InvalidInputError: a column of tensors, bytes or complex numbers.
    """
    fields = [_csv_field(column) for column in table.schema.columns]
    schema = pa.schema(fields)
    tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
    mark = delimiter or ("\t" if tabs else ",")
    with (
        new_file(path, overwrite=overwrite) as temporary,
        temporary.open("xb") as raw,
        compressed(raw, gzipped=path.suffix == ".gz") as file,
        _arrow_failures("CSV"),
        pa.csv.CSVWriter(file, schema, write_options=pa.csv.WriteOptions(delimiter=mark)) as writer,
    ):
        for batch in table.to_batches(max_bytes=BATCH_BYTES):
            arrays = [
                _plain(column, array).cast(field.type)
                for column, array, field in zip(
                    table.schema.columns, batch.columns, fields, strict=True
                )
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def csv_keeps(schema: Schema) -> bool:
    """Whether a CSV file keeps every value of such columns: they are what one is read as."""
    columns = schema.visible.columns
    # A row whose only cell is empty is no line.
    return len(columns) > 1 and all(_csv_keeps(column) for column in columns)


def _csv_keeps(column: Column) -> bool:
    match column.type:
        case Scalar(dtype=dtype):
            return dtype in ("int64", "float64", "bool")
        case Timestamp(zone=zone):
            return zone is None
        case Text() | Date():
            return True
    return False


def write_jsonl(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """One JSON object a line, tensors as nested lists; gzip when `path` ends in ``.gz``.

    Raises:
        InvalidInputError: a column of bytes, images or complex numbers, or a NaN.
    """
    converters = [_json_converter(column) for column in table.schema.columns]
    names = table.schema.names
    first = 0
    with (
        new_file(path, overwrite=overwrite) as temporary,
        temporary.open("xb") as raw,
        compressed(raw, gzipped=path.suffix == ".gz") as file,
    ):
        for batch in table.to_batches(max_bytes=BATCH_BYTES):
            lists = [
                convert(array, first)
                for convert, array in zip(converters, batch.columns, strict=True)
            ]
            for values in zip(*lists, strict=True):
                file.write(msgspec.json.encode(dict(zip(names, values, strict=True))) + b"\n")
            first += batch.num_rows


def _renamed(table: ExportTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches whose fields say nothing of the dataset that they come from."""
    for batch in table.to_batches(max_bytes=BATCH_BYTES):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


@contextmanager
def _arrow_failures(what: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as problem:
        raise InvalidInputError(f"these rows cannot be written as {what}: {problem}") from problem


def _csv_field(column: Column) -> pa.Field:
    """The type whose text stands in the cells of a column."""
    match column.type:
        case ClassLabel() | Text() | Json() | Link():
            return pa.field(column.name, pa.large_string())
        case Scalar(dtype=dtype) if dtype == "float16" or dtype in SMALL_FLOATS:
            return pa.field(column.name, pa.float32())
        case Scalar(dtype=dtype) if np.dtype(dtype).kind != "c":
            return pa.field(column.name, pa.from_numpy_dtype(dtype))
        case Timestamp(unit=unit, zone=zone):
            return pa.field(column.name, pa.timestamp(unit, zone))
    if isinstance(column.type, _AS_TEXT):
        return pa.field(column.name, pa.large_string())
    raise column_refused(column, "a cell of a CSV file holds one number or text")


def _plain(column: Column, array: pa.Array) -> pa.Array:
    """The values of a column: class labels as their names, links as JSON, small floats wider."""
    if isinstance(column.type, ClassLabel):
        return pa.array(column.type.names, pa.large_string()).take(array)
    if isinstance(column.type, Link):
        return array.storage
    if isinstance(column.type, Duration | Nested):
        return pa.array(_texts(column, array), pa.large_string())
    if isinstance(column.type, Scalar) and column.type.dtype in SMALL_FLOATS:
        return to_arrow_array(Scalar("float32"), _widened(column, array))
    return array


# Types whose values are text in cells, and in JSON as well if they are not nested.
_AS_TEXT = (Date, Time, Duration, Decimal, Null, *get_args(Nested))


def _texts(column: Column, array: pa.Array) -> list[str | None]:
    """Durations in ISO 8601, nested values as JSON."""
    if isinstance(column.type, Duration):
        return _said(column, array)
    said = _said(column, array)
    return [None if row is None else msgspec.json.encode(row).decode() for row in said]


def _said(column: Column, array: pa.Array) -> list[Any]:
    """Values as JSON says them."""

    def refused(what: str) -> NoReturn:
        raise column_refused(column, f"JSON has no {what}")

    rows = (with_objects(row, array.type) for row in python_values(array))
    return [json_form(row, refused) for row in rows]


def _widened(column: Column, array: pa.Array) -> ColumnValues:
    """The values of a column, those of bfloat16 and float8 as float32."""
    values = from_arrow_array(column.type, array)
    if values is None:
        raise column_refused(column, "its values are not what its type says")
    stored = column.storage
    wanted = replace(stored, dtype="float32") if stored.dtype in SMALL_FLOATS else stored
    return convert_values(values, stored, wanted)


def _parsed(column: Column, text: str) -> Any:
    try:
        return from_json(text, Any)
    except msgspec.DecodeError as error:
        raise column_refused(column, f"{text!r:.60} is no JSON: {error}") from error


def _json_converter(column: Column) -> Callable[[pa.Array, int], Sequence[Any]]:
    """A function of (array, number of its first row) that gives values JSON can say."""
    match column.type:
        case ClassLabel() | Text():
            return lambda array, _: _plain(column, array).to_pylist()
        case Timestamp() | Date() | Time() | Decimal() | Null():
            return lambda array, _: array.cast(pa.large_string()).to_pylist()
        case Duration() | List() | Struct() | Map():
            return lambda array, _: _said(column, array)
        case Json() | Link():
            return lambda array, _: [
                None if text is None else _parsed(column, text)
                for text in _plain(column, array).to_pylist()
            ]
        case Bytes() | Image():
            raise column_refused(column, "JSON has no bytes")
    if column.storage.element.kind == "c":
        raise column_refused(column, "JSON has no complex numbers")
    if column.storage.layout is ColumnLayout.BINARY:
        raise column_refused(column, "JSON cannot say it")
    return partial(_json_numbers, column)


def _json_numbers(column: Column, array: pa.Array, first_row: int) -> list[Any]:
    """Numbers and tensors as Python's numbers and nested lists."""
    values = _widened(column, array)
    if isinstance(values, RaggedValues):
        rows = [values.row(at) for at in range(values.rows)]
    elif isinstance(values, FixedValues):
        rows = list(values.values)
    else:
        raise column_refused(column, "JSON cannot say it")
    for at, row in enumerate(rows):
        if row.dtype.kind == "f" and not np.isfinite(row).all():
            raise column_refused(column, f"row {first_row + at}: JSON has no NaN, no inf")
    valid = values.valid
    return [
        None if valid is not None and not valid[at] else row.tolist() for at, row in enumerate(rows)
    ]
