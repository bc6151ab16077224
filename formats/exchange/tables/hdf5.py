"""HDF5 files through h5py, in a child process: reader.

Datasets of equal first dimension become columns, those in groups called ``group.name``; fields of
compound types become columns of their own. Whatever would lead out of the file (external links,
external storage, virtual datasets) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.dtypes import NOT_A_DTYPE, dtype_name
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    ColumnBatch,
    ColumnType,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import (
    DEFLATE_LIMIT,
    Candidate,
    OpenedSource,
    file_bytes,
    origin_of,
    shorten_notes,
)
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_hdf5 import HDF5_FACTS_KEY, HDF5_NOTES_KEY
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column
from tensorrepo.repo.errors import UnsupportedError

MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf")
_ROOM_BYTES = 1 << 20  # small datasets may be larger than what is stored of them: fill values


def read_hdf5(
    path: Path, *, columns: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> OpenedSource:
    """The datasets of a file that have the same number of rows.

    Args:
        path: the file.
        columns: only these; needed when datasets have different numbers of rows.
        exclude: all but these.

    Raises:
        UnsupportedError: h5py is not installed, or a type that no column holds.
        NotFoundError: no such column.
        InvalidInputError: a damaged file, one that leads out of itself, or lengths that differ.
    """
    stored = file_bytes(path)
    most = DEFLATE_LIMIT * stored + _ROOM_BYTES
    table = open_files("hdf5", [path], columns=columns, most_bytes=most)[path]
    with refusals(path, "HDF5 file", ValueError, TypeError, KeyError):
        notes = [str(note) for note in json.loads(table.schema.metadata[HDF5_NOTES_KEY])]
        facts = {field.name: json.loads(field.metadata[HDF5_FACTS_KEY]) for field in table.schema}
        chosen = ColumnChoice(exclude=exclude).of(facts)
        types = each_column(chosen, lambda name: _column_type(path, name, facts[name]))
        schema = Schema(tuple(map(Column, chosen, types)))
    return OpenedSource(
        schema=schema,
        rows=table.rows,
        batches=_batches(path, table, schema, facts),
        origin=origin_of(path, "hdf5", [path]),
        notes=shorten_notes(notes),
    )


def matches_hdf5(candidate: Candidate) -> bool:
    return candidate.head.startswith(MAGIC)


def _column_type(path: Path, name: str, fact: Mapping[str, Any]) -> ColumnType:
    kind, dtype, shape = fact["kind"], fact["dtype"], tuple(fact["shape"])
    if kind == "text":
        return Text()
    if kind == "ragged":
        if not np.dtype(dtype).isnative:
            # h5py 3.16 gives their bytes unswapped, in arrays that say they are native.
            raise UnsupportedError(
                f"{path}, {name!r}: arrays of varying length in the other byte order are not read. "
                "Repack the file, or choose others: columns="
            )
        return Tensor(_element(path, name, dtype), (None,))
    if kind != "fixed":
        raise UnsupportedError(
            f"{path}, {name!r}: no column holds HDF5's {dtype}{shape or ''}. "
            "Choose others: columns="
        )
    by_number = {number: word for word, number in (fact["words"] or {}).items()}
    if by_number and sorted(by_number) == list(range(len(by_number))):
        return ClassLabel(tuple(by_number[number] for number in range(len(by_number))))
    element = _element(path, name, dtype)
    return Tensor(element, shape) if shape else Scalar(element)


def _element(path: Path, name: str, dtype: str) -> str:
    try:
        return dtype_name(np.dtype(dtype))
    except (*NOT_A_DTYPE, UnsupportedError) as problem:
        raise UnsupportedError(f"{path}, {name!r}: {problem} Choose others: columns=") from problem


def _batches(
    path: Path, table: TableFile, schema: Schema, facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[ColumnBatch]:
    start = 0
    with refusals(path, "HDF5 file"), path.open("rb", buffering=0) as file:
        for batch in table.batches():
            stop = start + batch.num_rows
            columns = {}
            for column in schema.columns:
                where = f"{path}, {column.name!r}, rows {start} to {stop}"
                with refusals(where, "HDF5 file", *ARROW_ERRORS):
                    array = batch.column(column.name)
                    array.validate(full=True)
                    fact = facts[column.name]
                    if fact.get("offset") is not None:
                        array = _stored(file, where, fact, start, stop)
                    columns[column.name] = _values(where, array, column, fact["dtype"])
            yield columns
            start = stop


def _stored(
    file: IO[bytes], where: str, fact: Mapping[str, Any], start: int, stop: int
) -> pa.Array:
    """Rows that lie in the file as they are, so that they need not pass through the child."""
    row_bytes = np.dtype(fact["dtype"]).itemsize * prod(fact["shape"])
    elements = np.empty((stop - start) * row_bytes, np.uint8)
    file.seek(fact["offset"] + start * row_bytes)
    if file.readinto(elements) < len(elements):  # type: ignore[attr-defined]  # typeshed's IO lacks it
        raise damage(where, "the file ends before them")
    return pa.Array.from_buffers(pa.binary(row_bytes), stop - start, [None, pa.py_buffer(elements)])


def _values(where: str, array: pa.Array, column: Column, dtype: str) -> Any:
    """The rows of an array of bytes, in no copy of them where none is needed."""
    kind = column.type
    if isinstance(kind, Text):
        return _texts(where, array)
    if pa.types.is_large_binary(array.type):
        return [np.frombuffer(row.as_buffer(), dtype) for row in array]
    shape = kind.shape if isinstance(kind, Tensor) else ()
    elements = np.frombuffer(array.buffers()[1], dtype).reshape(len(array), *shape)
    return elements.astype(column.storage.dtype, copy=False)


def _texts(where: str, array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.large_string())
    except pa.ArrowInvalid:
        try:
            for row in array.to_pylist():
                row.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise damage(where, f"a text is not UTF-8: {problem}") from problem
        raise
