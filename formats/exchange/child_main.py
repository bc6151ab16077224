"""Child processes of importers: the server that forks them, and the readers that they run.

Run as a script. It imports nothing of ours, and no numpy, so that it starts in a third of the
time; `child` is its counterpart in the importing process, and names files in what goes wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import prod
from struct import Struct
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

FRAME = Struct("<BQ")  # kind, bytes; those of a batch lie in a file in memory
DONE, SCHEMA, BATCH, FAILED, PLACED_BATCH = range(5)  # see `BatchSender`
NO_PROCESS = 0  # said by the server, where a child says its number
BATCHES_AHEAD = 2  # that are sent before the first of them is acknowledged
_BATCH_BYTES = 8 << 20  # of one record batch, unless a single row is larger
# How pyarrow says that bytes are wrong. A lying length fails as an allocation.
ARROW_ERRORS = (pa.ArrowException, ValueError, OverflowError, MemoryError)
_MAX_ROWS = 65_536
_POINTER_BYTES = 8  # what a row of any type costs in memory, however well it is encoded
_MARK_ROWS = 4096  # in which null elements are looked for, at a time
# In the metadata of a field of lists: that some of the numbers in them are null.
NULL_ELEMENTS_KEY = b"tensorrepo.null_elements"
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


class Refusal(Exception):
    """A file that a reader refuses in words of its own: what follows the file's name.

    Attributes:
        error: name of the error's class in the importing process.
    """

    def __init__(self, text: str, error: str = "InvalidInputError") -> None:
        super().__init__(text)
        self.error = error


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, opened: `rows` is None when only reading tells."""

    schema: pa.Schema
    rows: int | None
    batches: Callable[..., Iterator[pa.RecordBatch]]


def open_parquet(path: str) -> TableFile:
    """A Parquet file, read by row groups in steps of bounded bytes."""
    with _parquet_file(path) as file:
        names = [name for name in number_lists(file.schema_arrow) if not _has_no_nulls(file, name)]

        def batches() -> Iterator[pa.RecordBatch]:
            yield from file.iter_batches(_MARK_ROWS, columns=names, use_threads=False)

        schema = marked(file.schema_arrow, names, batches)
        return TableFile(schema, file.metadata.num_rows, lambda: _row_groups(path))


def _has_no_nulls(file: pq.ParquetFile, name: str) -> bool:
    """Whether the footer says so of a column: it counts null and empty lists as well."""
    leaves = [leaf for field in file.schema_arrow for leaf in _leaves(field)]
    at = next(at for at, leaf in enumerate(leaves) if leaf[0] == name)
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    known = [group.column(at).statistics for group in groups if group.num_columns == len(leaves)]
    told = [each is not None and each.has_null_count and not each.null_count for each in known]
    return len(told) == len(groups) and all(told)


def number_lists(schema: pa.Schema) -> list[str]:
    """Columns of lists of numbers, or of such of fixed size, one in the other."""
    types, found = pa.types, []
    with suppress(UnicodeDecodeError):  # which the importing process refuses in its own words
        for field in schema if len(set(schema.names)) == len(schema) else ():
            kind = field.type.value_type if isinstance(field.type, _LISTS) else field.type
            while types.is_fixed_size_list(kind):
                kind = kind.value_type
            number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if kind != field.type and number:
                found.append(field.name)
    return found


_LISTS = (pa.ListType, pa.LargeListType)


def marked(
    schema: pa.Schema, names: list[str], batches: Callable[[], Iterator[pa.RecordBatch]]
) -> pa.Schema:
    """`schema`, with a mark on those of the columns in whose lists a number is null."""
    left = list(names)
    for batch in batches() if left else ():
        for name in [name for name in left if holds_null(batch.column(name))]:
            left.remove(name)
            at = schema.get_field_index(name)
            noted = {**(schema.field(at).metadata or {}), NULL_ELEMENTS_KEY: b"1"}
            schema = schema.set(at, schema.field(at).with_metadata(noted))
        if not left:
            break
    return schema


def holds_null(array: pa.Array) -> bool:
    """Whether a number is null inside of lists, or of such of fixed size, one in the other."""
    while isinstance(array.type, (*_LISTS, pa.FixedSizeListType)):
        array = array.flatten()
        if array.null_count:
            return True
    return False


def _row_groups(path: str) -> Iterator[pa.RecordBatch]:
    read = _script("child_parquet")["read_row_groups"]
    yield from read(path, batch_bytes=_BATCH_BYTES, least_bytes=_POINTER_BYTES, most_rows=_MAX_ROWS)


def _parquet_file(path: str) -> pq.ParquetFile:
    return _script("child_parquet")["open_file"](path)


def _library(module: str, what: str, extra: str, package: str = "") -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise Refusal(
            f"{what} need {package or module}, which is not installed: "
            f"`pip install tensorrepo[{extra}]`",
            "UnsupportedError",
        ) from problem


_FOOTER_SCHEMA = pa.schema(
    [
        ("rows", pa.int64()),  # of the row group
        ("path", pa.list_(pa.string())),
        ("compressed_bytes", pa.int64()),
        ("uncompressed_bytes", pa.int64()),
        ("nulls", pa.int64()),  # null where the file does not say
    ]
)


def open_footer(path: str) -> TableFile:
    """What the footer of a Parquet file says of columns' chunks, a batch for each row group."""
    metadata = pq.read_metadata(path)
    leaves = [leaf for field in metadata.schema.to_arrow_schema() for leaf in _leaves(field)]
    if len(leaves) != metadata.num_columns:
        raise Refusal(f"{metadata.num_columns} columns, its schema has {len(leaves)}")
    return TableFile(_FOOTER_SCHEMA, None, lambda: _footer_groups(metadata, leaves))


def _leaves(field: pa.Field, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the columns that a field is stored as."""
    kind, path = getattr(field.type, "storage_type", field.type), (*above, field.name)
    inner: list[pa.Field] = []
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    elif pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif getattr(kind, "value_field", None) is not None:
        inner = [kind.value_field]
    if not inner:
        yield path
    for each in inner:
        yield from _leaves(each, path)


def _footer_groups(
    metadata: pq.FileMetaData, leaves: list[tuple[str, ...]]
) -> Iterator[pa.RecordBatch]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        told = [chunk.statistics for chunk in chunks]
        nulls = [each.null_count if each and each.has_null_count else None for each in told]
        columns = [
            [group.num_rows] * len(chunks),
            leaves,
            [chunk.total_compressed_size for chunk in chunks],
            [chunk.total_uncompressed_size for chunk in chunks],
            nulls,
        ]
        arrays = [pa.array(c, kind) for c, kind in zip(columns, _FOOTER_SCHEMA.types, strict=True)]
        yield pa.record_batch(arrays, schema=_FOOTER_SCHEMA)


STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_MARK = STREAM_MAGIC + bytes(4)


def open_arrow(path: str) -> TableFile:
    """An Arrow file or stream, told apart by content."""
    with pa.OSFile(path) as file:
        if file.read(len(STREAM_MAGIC)) != STREAM_MAGIC:
            schema, read = pa.ipc.open_file(file).schema, _file_batches
            schema = marked(schema, number_lists(schema), lambda: read(path))
            return TableFile(schema, None, lambda: read(path))
        # A stream may lack its end mark, but then nobody can tell whether rows are missing.
        file.seek(max(0, file.size() - len(_END_MARK)))
        if file.read() != _END_MARK:
            raise Refusal("ends without the end mark of an Arrow stream. Is it cut short?")
        file.seek(0)
        schema = pa.ipc.open_stream(file).schema
        schema = marked(schema, number_lists(schema), lambda: _stream_batches(path))
        return TableFile(schema, None, lambda: _stream_batches(path))


def _file_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _stream_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        yield from pa.ipc.open_stream(file)


LMDB_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
LMDB_MAGIC = 0xBEEFC0DE
LMDB_MAGIC_AT = 16
_DATABASE_BYTES = 48  # of the record that a named database has in the unnamed one
_ENTRY_BYTES = 10  # that an entry takes at least
_MAX_DATABASES = 128


def open_lmdb(path: str, database: str | None = None) -> TableFile:
    """The entries of one database of an LMDB file in the order of keys, read without locking it."""
    lmdb = _library("lmdb", "LMDB files", "lmdb")
    with open(path, "rb") as file:
        if file.read(LMDB_MAGIC_AT + 4)[LMDB_MAGIC_AT:] != LMDB_MAGIC.to_bytes(4, "little"):
            raise Refusal("is no LMDB file: its first page does not say so. Is it cut short?")
    try:
        environment = lmdb.open(
            path, subdir=False, readonly=True, create=False, lock=False, max_dbs=_MAX_DATABASES
        )
        transaction = environment.begin(buffers=True)
        chosen = _find_database(lmdb, environment, transaction, database)
        entries = transaction.stat(chosen)["entries"]
        stored = os.stat(path).st_size
        pages = environment.info()["last_pgno"] + 1
    except lmdb.Error as problem:
        raise Refusal(f"is no readable LMDB file: {_said(problem)}") from problem
    if pages * environment.stat()["psize"] > stored or entries > stored // _ENTRY_BYTES:
        raise Refusal(f"says that it has {pages} pages and {entries} entries. Is it cut short?")

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            entries = iter(transaction.cursor(chosen))
            if database is None:  # then named ones may stand between the entries
                entries = (
                    (key, value)
                    for key, value in entries
                    if _named(lmdb, environment, transaction, bytes(key), value) is None
                )
            yield from _lmdb_batches(entries, stored)
        except lmdb.Error as problem:
            raise Refusal(f"is damaged: {_said(problem)}") from problem

    return TableFile(LMDB_SCHEMA, entries, batches)


def _said(problem: Exception) -> str:
    """What LMDB says, without the path that it says first."""
    return str(problem).rpartition(": ")[2]


def _find_database(lmdb: Any, environment: Any, transaction: Any, name: str | None) -> Any:
    """The database of this name, by default the unnamed one."""
    main = environment.open_db(None, transaction, create=False)
    names: list[Any] = []
    for key, value in transaction.cursor(main):
        inner = _named(lmdb, environment, transaction, bytes(key), value)
        if inner is None and name is None:
            names = []
            break
        if inner is not None and bytes(key) == (name or "").encode():
            return _single_valued(inner, transaction)
        if inner is not None:
            names.append(bytes(key).decode("utf-8", "replace"))
    there = ", ".join(map(repr, sorted(names))) or "only the one without a name"
    if name is not None:
        raise Refusal(f"holds no database {name!r}; there are {there}", "NotFoundError")
    if names:
        raise Refusal(f"holds several databases: {there}. Choose one: database=...")
    return _single_valued(main, transaction)


def _single_valued(database: Any, transaction: Any) -> Any:
    if database.flags(transaction)["dupsort"]:
        raise Refusal("its keys may have several values, which is not read", "UnsupportedError")
    return database


def _named(lmdb: Any, environment: Any, transaction: Any, key: bytes, value: Any) -> Any:
    """The database that an entry of the unnamed one stands for; None for a plain entry."""
    if len(value) != _DATABASE_BYTES:
        return None
    with suppress(lmdb.IncompatibleError, lmdb.NotFoundError):
        return environment.open_db(key, transaction, create=False)
    return None


def _lmdb_batches(entries: Iterable[tuple[Any, Any]], stored: int) -> Iterator[pa.RecordBatch]:
    """The entries of a database, which together cannot be more than the file."""
    keys: list[bytes] = []
    values: list[bytes] = []
    held = total = 0
    for key, value in entries:
        keys.append(bytes(key))
        values.append(bytes(value))
        held += len(key) + len(value)
        total += len(key) + len(value) + _ENTRY_BYTES
        if total > stored:
            raise Refusal("is damaged: its tree has a loop")
        if held >= _BATCH_BYTES:
            yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)
            keys, values, held = [], [], 0
    if keys:
        yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)


LANCE_VERSION_KEY = b"tensorrepo.lance_version"  # of the schema's metadata
_BLOB_KEYS = (b"lance-encoding:blob", b"ARROW:extension:name")
_LANCE_BUFFER_BYTES = 64 << 20


def open_lance(
    path: str, columns: list[str] | None = None, version: int | str | None = None
) -> TableFile:
    """A Lance dataset as it is now, or as it was. Its core may abort on damaged files."""
    opened = _lance_dataset(path, version)
    _refuse_references(opened)
    names = opened.schema.names
    for name in columns or ():
        if name not in names:
            raise Refusal(f"has no column {name!r}; there are {', '.join(names)}", "NotFoundError")

    def scanner() -> Any:
        return opened.scanner(
            columns=names if columns is None else columns,
            batch_size_bytes=_BATCH_BYTES,
            io_buffer_size=_LANCE_BUFFER_BYTES,
            batch_readahead=2,
            scan_in_order=True,
            blob_handling="all_binary",
        )

    schema = scanner().projected_schema
    noted = {**(schema.metadata or {}), LANCE_VERSION_KEY: str(opened.version).encode()}
    rows = int(opened.count_rows())
    return TableFile(schema.with_metadata(noted), rows, lambda: scanner().to_batches())


def _lance_dataset(path: str, version: int | str | None) -> Any:
    lance = _library("lance", "Lance datasets", "lance", package="pylance")
    wanted = int(version) if isinstance(version, str) and version.isdigit() else version
    try:
        return lance.dataset(path, version=wanted)
    except ValueError as problem:
        if version is not None and "not found" in str(problem).lower():
            raise Refusal(f"has no version {version!r}", "NotFoundError") from problem
        raise


def _refuse_references(opened: Any) -> None:
    """Refuse data that a reader would fetch from elsewhere.

    A blob may be a place in any file that this process may read.
    """
    for fragment in opened.get_fragments():
        for file in fragment.data_files():
            leads_out = os.path.isabs(file.path) or ".." in file.path.split("/")
            if leads_out or getattr(file, "base_id", None) is not None:
                raise Refusal(f"refers to data outside of it: {file.path}")
    blobs = [
        field.name
        for field in opened.schema
        if any(key in (field.metadata or {}) for key in _BLOB_KEYS)
        or pa.types.is_struct(getattr(field.type, "storage_type", field.type))
    ]
    if not blobs:
        return
    for batch in opened.to_batches(columns=blobs, blob_handling="all_descriptions"):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _refers(column):
                raise Refusal(f"column {name!r} refers to data outside of the dataset")


def _refers(column: pa.Array) -> bool:
    held = column.storage if isinstance(column, pa.ExtensionArray) else column
    if not pa.types.is_struct(held.type) or held.type.get_field_index("blob_uri") < 0:
        return False
    return any(uri for uri in held.field("blob_uri").to_pylist())


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
    h5py = _library("h5py", "HDF5 files", "hdf5")
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
        row_bytes = max(_POINTER_BYTES, kind.base.itemsize * prod(shape))
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
    step = max(1, _BATCH_BYTES // row_bytes)
    if pa.large_binary() not in schema.types:
        yield from _hdf5_steps(path, columns, schema, step)
        return
    # Small batches go together, since each pays for a file in memory.
    waiting: list[pa.RecordBatch] = []
    rows = held = 0
    for batch in _hdf5_steps(path, columns, schema, min(step, _UNKNOWN_LENGTH_ROWS)):
        waiting.append(batch)
        rows, held = rows + batch.num_rows, held + batch.nbytes
        if held >= _BATCH_BYTES or rows >= step:
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


def open_search_index(path: str, **options: Any) -> TableFile:
    """A search index of Lance, which answers questions."""
    return TableFile(*_script("child_search")["open_index"](path, Refusal, **options))


@cache
def _script(name: str) -> dict[str, Any]:
    """What a script beside this one defines; nothing of ours can be imported here."""
    return runpy.run_path(os.path.join(os.path.dirname(__file__), f"{name}.py"))


_READERS: dict[str, Callable[..., TableFile]] = {
    "parquet": open_parquet,
    "arrow": open_arrow,
    "lmdb": open_lmdb,
    "lance": open_lance,
    "hdf5": open_hdf5,
    "footer": open_footer,
    "search": open_search_index,
}
READERS = tuple(_READERS)
# What the server loads once, for all later children: it starts no threads. Lance's core does.
_PRELOADED = {"hdf5": "h5py"}
_LOADED = {"lance": "lance", "search": "lance"}  # by the child


def serve(control: int) -> None:
    """Fork a child for each socket that comes, until the importing process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: sockets tell their end
    server = socket.socket(fileno=control)
    process = os.getpid()
    for name in ("child_batches", "child_parquet"):  # to compile them takes a child milliseconds
        _script(name)
    while True:
        reader, passed, _, _ = socket.recv_fds(server, 1, 1)
        if not reader:
            return
        _load(_PRELOADED.get(READERS[reader[0]]))
        with socket.socket(fileno=passed[0]) as connection:
            try:
                child = os.fork()
            except OSError:  # the machine has no more of them now
                with suppress(OSError):
                    connection.send(NO_PROCESS.to_bytes(8, "little"))
                continue
            if not child:
                server.close()
                _die_with(process)
                _answer(connection)


def _die_with(server: int) -> None:
    """Have this child killed when the server ends: a reader that spins looks at no socket.

    The server waits on its socket alone, so it ends with the importing process.
    """
    with suppress(OSError, AttributeError):  # no Linux: then it ends at its next answer
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)


def _answer(connection: socket.socket) -> None:
    """All of one child; does not return."""
    try:
        with connection.makefile("rb") as questions:
            _read(json.loads(questions.readline()), questions, connection)
    except ConnectionError:
        pass  # the importing process wants no more
    except BaseException:  # noqa: BLE001 - a child never goes on as a second server
        traceback.print_exc()
    finally:
        os._exit(0)


def _load(library: str | None) -> None:
    if library is not None:
        if sys.modules.get("numpy", "") is None:  # it needs it, whatever pyarrow does without
            del sys.modules["numpy"]
        with suppress(ImportError):  # said by its reader
            import_module(library)


def _read(request: dict[str, Any], questions: IO[bytes], answers: socket.socket) -> None:
    _load(_LOADED.get(request["reader"]))  # before the time that a file may take begins to run
    answers.sendall(os.getpid().to_bytes(8, "little"))
    os.chdir(request["folder"])
    _bound(request["memory_bytes"])
    open_file = _READERS[request["reader"]]
    opened = []
    for name in request["files"]:
        with _Telling(answers):
            opened.append(open_file(name, **request["options"]))
            _send(answers, SCHEMA, json.dumps(opened[-1].rows).encode())
            _send(answers, SCHEMA, opened[-1].schema.serialize())
    sender = _script("child_batches")["BatchSender"](FRAME, BATCH, PLACED_BATCH)
    while question := questions.readline():
        number, _, asked = question.partition(b" ")
        waiting = 0
        with _Telling(answers):
            for batch in opened[int(number)].batches(**json.loads(asked or b"{}")):
                sender.send(answers, batch)
                waiting += 1
                if waiting > BATCHES_AHEAD:
                    questions.readline()
                    waiting -= 1
            _send(answers, DONE, b"")
        for _ in range(waiting):
            questions.readline()


def _send(answers: socket.socket, kind: int, body: bytes | pa.Buffer) -> None:
    answers.sendall(FRAME.pack(kind, len(body)))
    answers.sendall(body)


class _Telling:
    """Sends the error that ends a block, as the name of its class and its text."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: object, _: object) -> bool:
        # A panic of Rust's is no `Exception` in Python.
        ours = kind is not None and (
            issubclass(kind, Exception) or kind.__name__ == "PanicException"
        )
        if kind is None or not ours or issubclass(kind, ConnectionError):
            return False
        error = problem.error if isinstance(problem, Refusal) else None
        text = str(problem) or kind.__name__
        _send(self._answers, FAILED, json.dumps({"error": error, "text": text}).encode())
        return True


def _bound(memory_bytes: int) -> None:
    """No core, and no more memory than is taken and `memory_bytes`. It cannot be undone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, StopIteration):  # no Linux: then without this limit
        with open("/proc/self/status", encoding="ascii") as status:
            taken = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory_bytes,) * 2)
