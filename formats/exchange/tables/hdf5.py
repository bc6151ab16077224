"""HDF5 files through h5py: reader.

Datasets of equal first dimension become columns, those in groups called ``group.name``; fields of
compound types become columns of their own. Whatever would lead out of the file (external links,
external storage, virtual datasets) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.dtypes import dtype_name
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
    BATCH_BYTES,
    DEFLATE_LIMIT,
    Candidate,
    ImportOrigin,
    OpenedSource,
    file_bytes,
    shorten_notes,
)
from tensorrepo.repo.errors import NotFoundError, UnsupportedError

MAGIC = b"\x89HDF\r\n\x1a\n"
SUFFIXES = (".h5", ".hdf5", ".he5", ".hdf")
MAX_CHUNK_BYTES = 512 << 20  # a chunk is decompressed whole
_CACHE_BYTES = 64 << 20
# How h5py says that bytes are wrong.
_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
)
_MAX_DEPTH = 32
_MAX_DATASETS = 65_535
_RAGGED_ROWS = 64  # of one read, since nothing tells how long they are
_ROOM_BYTES = 1 << 20  # small datasets may be larger than what is stored of them: fill values


@dataclass(frozen=True, slots=True)
class _Source:
    """A column and where its values lie: `field` of a compound type, or "" for all."""

    column: Column
    path: str
    field: str
    row_bytes: int


@dataclass(slots=True)
class _Walk:
    """What a walk over the groups of a file finds."""

    found: dict[str, Any]
    notes: list[str]
    seen: set[int]


def read_hdf5(path: Path, *, columns: tuple[str, ...] | None = None) -> OpenedSource:
    """The datasets of a file that have the same number of rows.

    Args:
        path: the file.
        columns: only these; needed when datasets have different numbers of rows.

    Raises:
        UnsupportedError: h5py is not installed, or a type that no column holds.
        NotFoundError: no such column.
        InvalidInputError: a damaged file, one that leads out of itself, or lengths that differ.
    """
    stored = file_bytes(path)
    with _opened(path) as file:
        walk = _Walk({}, [], set())
        _walk(path, file, "", 0, walk)
        sources = [
            source
            for name, dataset in walk.found.items()
            for source in _sources(path, name, dataset, stored, columns)
        ]
        rows = {source.column.name: int(file[source.path].shape[0]) for source in sources}
    sources = _chosen(path, sources, rows, columns)
    return OpenedSource(
        schema=Schema(tuple(source.column for source in sources)),
        rows=rows[sources[0].column.name],
        batches=_batches(path, sources, rows[sources[0].column.name]),
        origin=ImportOrigin(str(path), "hdf5", 1, stored),
        notes=shorten_notes(walk.notes),
    )


def matches_hdf5(candidate: Candidate) -> bool:
    return candidate.head.startswith(MAGIC)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file opened for reading, its errors in our words."""
    h5py = _library()
    with refusals(path, "HDF5 file", *_ERRORS):
        with path.open("rb"):  # a file that is missing, or that may not be read, says so itself
            pass
        with h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_BYTES) as file:
            yield file


def _library() -> Any:
    try:
        import h5py
    except ImportError as problem:
        raise UnsupportedError(
            "HDF5 files need h5py, which is not installed: `pip install tensorrepo[hdf5]`"
        ) from problem
    return h5py


def _walk(path: Path, group: Any, prefix: str, depth: int, walk: _Walk) -> None:
    """All datasets below a group. Links inside the file say again what is there already."""
    h5py = _library()
    if depth > _MAX_DEPTH or len(walk.found) > _MAX_DATASETS:
        raise damage(path, f"has groups more than {_MAX_DEPTH} deep, or too many datasets")
    address = h5py.h5o.get_info(group.id).addr
    if address in walk.seen:
        return
    walk.seen.add(address)
    for name in group:
        inner = f"{prefix}{name}"
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise damage(path, f"{inner!r} is a link to another file, {link.filename!r}")
        if isinstance(link, h5py.SoftLink):
            walk.notes.append(f"passed over: {inner} is a link to {link.path}")
            continue
        item = group[name]
        if isinstance(item, h5py.Group):
            _walk(path, item, f"{inner}/", depth + 1, walk)
        elif isinstance(item, h5py.Dataset) and item.shape:
            walk.found[inner] = item
        else:
            walk.notes.append(f"passed over: {inner} has no rows")


def _sources(
    path: Path, name: str, dataset: Any, stored: int, columns: tuple[str, ...] | None
) -> list[_Source]:
    """The columns that a dataset becomes: one, or one for each field of its compound type."""
    called = name.replace("/", ".")
    names = dataset.dtype.names
    fields = {called: ""} if not names else {f"{called}.{field}": field for field in names}
    wanted = {
        column: field for column, field in fields.items() if columns is None or column in columns
    }
    if not wanted:
        return []
    if dataset.is_virtual or dataset.external:
        raise damage(path, f"{name!r} lies in other files, which are not followed")
    _check_sizes(path, name, dataset, stored)
    found = []
    for column, field in wanted.items():
        kind = dataset.dtype[field] if field else dataset.dtype
        shape = (*dataset.shape[1:], *kind.shape)
        column_type = _column_type(path, column, kind.base, shape)
        row_bytes = max(8, kind.base.itemsize * prod(shape))
        found.append(_Source(Column(column, column_type), name, field, row_bytes))
    return found


def _check_sizes(path: Path, name: str, dataset: Any, stored: int) -> None:
    """Refuse a header that promises more than the file can hold."""
    promised = dataset.dtype.itemsize * prod(dataset.shape)
    if promised > DEFLATE_LIMIT * stored + _ROOM_BYTES:
        raise damage(path, f"{name!r} promises {promised} bytes, and the file has {stored}")
    chunk = dataset.dtype.itemsize * prod(dataset.chunks or (0,))
    if chunk > MAX_CHUNK_BYTES:
        raise damage(
            path, f"{name!r} has chunks of {chunk} bytes, more than {MAX_CHUNK_BYTES}. Repack it"
        )


def _column_type(path: Path, name: str, kind: Any, shape: tuple[int, ...]) -> ColumnType:
    h5py = _library()
    inner = h5py.check_vlen_dtype(kind)
    if h5py.check_string_dtype(kind) is not None and not shape:
        return Text()
    if inner is not None and not shape and np.dtype(inner).kind in "biuf":
        if np.dtype(inner).newbyteorder("S").isnative and np.dtype(inner).itemsize > 1:
            # h5py 3.16 gives their bytes unswapped, in arrays that say they are native.
            raise UnsupportedError(
                f"{path}, {name!r}: arrays of varying length in the other byte order are not read. "
                "Repack the file, or choose others: columns="
            )
        return Tensor(_name(path, name, np.dtype(inner)), (None,))
    if (words := h5py.check_enum_dtype(kind)) is not None and not shape:
        return _of_enum(words, kind)
    if kind.kind not in "biufc":
        raise UnsupportedError(
            f"{path}, {name!r}: no column holds HDF5's {kind}{shape or ''}. Choose others: columns="
        )
    dtype = _name(path, name, kind)
    return Tensor(dtype, shape) if shape else Scalar(dtype)


def _name(path: Path, name: str, kind: Any) -> str:
    try:
        return dtype_name(kind.newbyteorder("<") if kind.kind != "b" else kind)
    except (TypeError, ValueError, UnsupportedError) as problem:
        raise UnsupportedError(f"{path}, {name!r}: {problem} Choose others: columns=") from problem


def _of_enum(words: Mapping[str, int], kind: Any) -> ColumnType:
    """Class labels when the numbers are 0, 1, 2, ..., else plain numbers."""
    by_number = {int(number): word for word, number in words.items()}
    if kind.kind == "b" or sorted(by_number) != list(range(len(by_number))):
        return Scalar("bool" if kind.kind == "b" else dtype_name(kind.newbyteorder("<")))
    return ClassLabel(tuple(by_number[number] for number in range(len(by_number))))


def _chosen(
    path: Path,
    sources: Sequence[_Source],
    rows: Mapping[str, int],
    columns: tuple[str, ...] | None,
) -> list[_Source]:
    """The columns to read, in the order asked for."""
    by_name = {source.column.name: source for source in sources}
    if columns is not None:
        for name in columns:
            if name not in by_name:
                raise NotFoundError(f"{path} has no dataset {name!r}")
        by_name = {name: by_name[name] for name in columns}
    if not by_name:
        raise damage(path, "holds no datasets with rows")
    lengths = {name: rows[name] for name in by_name}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in list(lengths.items())[:8])
        raise damage(path, f"its datasets have different numbers of rows: {shown}. Say columns=")
    return list(by_name.values())


def _batches(path: Path, sources: Sequence[_Source], rows: int) -> Iterator[ColumnBatch]:
    """Rows in steps of bounded bytes."""
    step = max(1, BATCH_BYTES // sum(source.row_bytes for source in sources))
    if any(not _is_fixed(source.column) for source in sources):
        step = min(step, _RAGGED_ROWS)
    with _opened(path) as file:
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            yield {
                source.column.name: _values(path, file[source.path], source, start, stop)
                for source in sources
            }


def _is_fixed(column: Column) -> bool:
    return isinstance(column.type, Scalar | ClassLabel) or (
        isinstance(column.type, Tensor) and None not in column.type.shape
    )


def _values(path: Path, dataset: Any, source: _Source, start: int, stop: int) -> Any:
    where = f"{path}, {source.path!r}, rows {start} to {stop}"
    if len(dataset) < stop:
        raise damage(where, "the file became shorter while it was read")
    held = dataset.fields(source.field)[start:stop] if source.field else dataset[start:stop]
    kind = source.column.type
    if isinstance(kind, Text):
        return [_text(where, value) for value in held]
    if isinstance(kind, Tensor) and None in kind.shape:
        return [np.asarray(row).astype(kind.dtype, copy=False) for row in held]
    array = np.asarray(held)
    return array.astype(source.column.storage.dtype, copy=False)


def _text(where: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return bytes(value).rstrip(b"\0").decode("utf-8")
    except UnicodeDecodeError as problem:
        raise damage(where, f"a text is not UTF-8: {problem}") from problem
