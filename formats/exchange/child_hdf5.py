"""HDF5 reader of the importers' child process: datasets that have the same number of rows.

Run as a script by `child_main`, which says why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import pyarrow as pa

from tensorrepo.formats.exchange.child_main import (
    BATCH_BYTES,
    POINTER_BYTES,
    Refusal,
    TableFile,
    library,
)

MAX_CHUNK_BYTES = 512 << 20  # of HDF5: a chunk is decompressed whole
_CHUNK_CACHE_BYTES = 64 << 20
_MAX_DEPTH = 32
_MAX_DATASETS = 65_535
_UNKNOWN_LENGTH_ROWS = 64  # of one read, when nothing tells how long they are
HDF5_FACTS_KEY = b"tensorrepo.hdf5"  # of a field's metadata: JSON of what it is
HDF5_NOTES_KEY = b"tensorrepo.hdf5_notes"  # of the schema's metadata: a JSON array of texts


@dataclass(frozen=True, slots=True)
class _Hdf5Column:
    """A column and where its values lie: `member` of a compound type, or "" for all.

    `in_place` ones lie in one piece, as they are wanted: the importing process reads them itself.
    """

    field: pa.Field
    in_place: bool
    path: str
    member: str
    rows: int
    row_bytes: int


def open_hdf5(path: str, most_bytes: int, columns: list[str] | None = None) -> TableFile:
    """The datasets of an HDF5 file that have the same number of rows, none above `most_bytes`.

    Values of fixed size come as their little-endian bytes, texts and arrays of varying length as
    bytes too; the metadata of a field say what they are. Nulls come for other types, and for
    values whose offset in the file they say: no library need parse these.
    """
    h5py = library("h5py", "HDF5 files", "hdf5")
    datasets: dict[str, Any] = {}
    notes: list[str] = []
    by_name: dict[str, _Hdf5Column] = {}
    with h5py.File(path, "r", locking=False) as file:
        _walk_groups(file, "", 0, datasets, notes, set())
        for name, dataset in datasets.items():
            for column in _hdf5_columns(name, dataset, columns):
                _check_sizes(name, dataset, os.stat(path).st_size, most_bytes)
                by_name[column.field.name] = column
    chosen = _chosen_columns(by_name, columns)
    metadata = {HDF5_NOTES_KEY: json.dumps(notes)}
    schema = pa.schema([column.field for column in chosen], metadata)
    return TableFile(schema, chosen[0].rows, lambda: _hdf5_batches(path, chosen, schema))


def _walk_groups(
    group: Any, prefix: str, depth: int, datasets: dict[str, Any], notes: list[str], seen: set[int]
) -> None:
    """All datasets below a group. Links inside the file say again what is there already."""
    import h5py

    if depth > _MAX_DEPTH or len(datasets) > _MAX_DATASETS:
        raise Refusal(f"has groups more than {_MAX_DEPTH} deep, or too many datasets")
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        return
    seen.add(address)
    for name in group:
        inner = f"{prefix}{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise Refusal(f"{inner!r} is a link to another file, {link.filename!r}")
        if isinstance(link, h5py.SoftLink):
            notes.append(f"passed over: {inner} is a link to {link.path}")
            continue
        item = group[name]
        if isinstance(item, h5py.Group):
            _walk_groups(item, f"{inner}/", depth + 1, datasets, notes, seen)
        elif isinstance(item, h5py.Dataset) and item.shape:
            datasets[inner] = item
        else:
            notes.append(f"passed over: {inner} has no rows")


def _hdf5_columns(name: str, dataset: Any, columns: list[str] | None) -> Iterator[_Hdf5Column]:
    """The columns that a dataset becomes: one, or one for each member of its compound type."""
    whole = name.replace("/", ".")
    dtype = dataset.dtype
    members = {f"{whole}.{member}": member for member in dtype.names or ()} or {whole: ""}
    wanted = {
        column: member for column, member in members.items() if columns is None or column in columns
    }
    if not wanted:
        return
    if dataset.is_virtual or dataset.external:
        raise Refusal(f"{name!r} lies in other files, which are not followed")
    for column, member in wanted.items():
        kind = dtype[member] if member else dtype
        shape = (*dataset.shape[1:], *kind.shape)
        row_bytes = max(POINTER_BYTES, kind.base.itemsize * prod(shape))
        offset = None if member else _plain_offset(dataset)
        field = _hdf5_field(column, kind.base, shape, offset)
        rows = int(dataset.shape[0])
        yield _Hdf5Column(field, offset is not None, name, member, rows, row_bytes)


def _plain_offset(dataset: Any) -> int | None:
    """Where the rows lie in the file, if they do in one piece and as little-endian numbers."""
    import h5py

    kind = dataset.dtype.base
    if dataset.chunks or kind.kind not in tuple("biufc") or kind.newbyteorder("<") != kind:
        return None
    if dataset.id.get_space_status() != h5py.h5d.SPACE_STATUS_ALLOCATED:
        return None  # whatever its offset says
    stored, plain = dataset.id.get_type(), h5py.h5t.py_create(dataset.dtype, logical=True)
    return dataset.id.get_offset() if stored.equal(plain) else None


def _check_sizes(name: str, dataset: Any, stored: int, most_bytes: int) -> None:
    """Refuse a header that promises more than the file can hold."""
    promised = dataset.dtype.itemsize * prod(dataset.shape)
    if promised > most_bytes:
        raise Refusal(f"{name!r} promises {promised} bytes, and the file has {stored}")
    chunk = dataset.dtype.itemsize * prod(dataset.chunks or (0,))
    if chunk > MAX_CHUNK_BYTES:
        raise Refusal(
            f"{name!r} has chunks of {chunk} bytes, more than {MAX_CHUNK_BYTES}. Repack it"
        )


def _hdf5_field(name: str, kind: Any, shape: tuple[int, ...], offset: int | None) -> pa.Field:
    """How the rows of a NumPy type travel, and in the field's metadata what they are."""
    import h5py

    facts: dict[str, Any] = {"dtype": kind.str, "shape": shape}
    element = h5py.check_vlen_dtype(kind)
    if h5py.check_string_dtype(kind) is not None and not shape:
        facts["kind"], arrow = "text", pa.large_binary()
    elif element is not None and not shape and getattr(element, "kind", "") in tuple("biuf"):
        facts |= {"kind": "ragged", "dtype": element.str}
        arrow = pa.large_binary()
    elif kind.kind in tuple("biufc"):
        words = None if shape else h5py.check_enum_dtype(kind)
        facts |= {"kind": "fixed", "dtype": kind.newbyteorder("<").str, "words": words}
        facts["offset"] = offset
        arrow = pa.binary(kind.itemsize * prod(shape)) if offset is None else pa.null()
    else:
        facts |= {"kind": "other", "dtype": str(kind)}
        arrow = pa.null()
    return pa.field(name, arrow, metadata={HDF5_FACTS_KEY: json.dumps(facts, default=int)})


def _chosen_columns(
    by_name: dict[str, _Hdf5Column], columns: list[str] | None
) -> list[_Hdf5Column]:
    """The columns to read, in the order asked for."""
    for name in columns or ():
        if name not in by_name:
            raise Refusal(f"has no dataset {name!r}", "NotFoundError")
    chosen = list(by_name.values()) if columns is None else [by_name[name] for name in columns]
    if not chosen:
        raise Refusal("holds no datasets with rows")
    if len({column.rows for column in chosen}) > 1:
        shown = ", ".join(f"{column.field.name} {column.rows}" for column in chosen[:8])
        raise Refusal(f"its datasets have different numbers of rows: {shown}. Say columns=")
    return chosen


def _hdf5_batches(
    path: str, columns: list[_Hdf5Column], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows in steps of bounded bytes."""
    row_bytes = sum(column.row_bytes for column in columns)
    step = max(1, BATCH_BYTES // row_bytes)
    if pa.large_binary() not in schema.types:
        yield from _hdf5_steps(path, columns, schema, step)
        return
    # Small batches go together, since each pays for a file in memory.
    waiting: list[pa.RecordBatch] = []
    rows = held = 0
    for batch in _hdf5_steps(path, columns, schema, min(step, _UNKNOWN_LENGTH_ROWS)):
        waiting.append(batch)
        rows, held = rows + batch.num_rows, held + batch.nbytes
        if held >= BATCH_BYTES or rows >= step:
            yield pa.concat_batches(waiting)
            waiting, rows, held = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _hdf5_steps(
    path: str, columns: list[_Hdf5Column], schema: pa.Schema, step: int
) -> Iterator[pa.RecordBatch]:
    import h5py

    rows = columns[0].rows
    cache_bytes = _CHUNK_CACHE_BYTES // len(columns)
    with h5py.File(path, "r", locking=False, rdcc_nbytes=cache_bytes) as file:
        sources = [(file[column.path], column) for column in columns]
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            arrays = [_hdf5_values(dataset, column, start, stop) for dataset, column in sources]
            yield pa.record_batch(arrays, schema=schema)


def _hdf5_values(dataset: Any, column: _Hdf5Column, start: int, stop: int) -> pa.Array:
    if len(dataset) < stop:
        raise Refusal(f"{column.path!r} became shorter while it was read")
    if column.in_place:
        return pa.nulls(stop - start)
    rows = dataset.fields(column.member)[start:stop] if column.member else dataset[start:stop]
    kind = column.field.type
    if pa.types.is_large_binary(kind):
        return pa.array(
            [
                row.rstrip(b"\0") if isinstance(row, bytes) else row.tobytes()
                for row in rows.tolist()
            ],
            kind,
        )
    elements = rows.astype(rows.dtype.newbyteorder("<"), order="C", copy=False)
    return pa.Array.from_buffers(kind, stop - start, [None, pa.py_buffer(elements)])
