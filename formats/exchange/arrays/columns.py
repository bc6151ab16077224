"""Numeric arrays of foreign files as columns.

IDX, npy and npz all say: an element type, a shape, then the elements in C order. The first
dimension counts rows. A header is believed only as far as the file's size can justify it, so a
lying one costs no memory; elements are then read in batches of bounded bytes, never mapped, because
a mapped file that somebody truncates kills the process.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.dtypes import dtype_name
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnBatch,
    ColumnType,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.tables.samples import moments_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

# Up to here a buffer is made at once; a larger one grows with the bytes that really come.
_TRUSTED_BYTES = 64 << 20
# What the streams behind `ArraySource.open` raise when their bytes are wrong.
_DAMAGED = (zipfile.BadZipFile, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class ArraySource:
    """One array in a foreign file, its promised size already compared with the file's.

    `open` gives a stream at the first element; of a `transposed` array (Fortran's order, the rows
    next to each other in no place) one that can seek. `where` names the array in messages.
    """

    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    open: Callable[[], IO[bytes]]
    transposed: bool = False

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def check_rows(where: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises InvalidInputError for no rows: no dimension at all, or rows without elements."""
    if not shape:
        raise damage(where, "is a single number; rows need at least one dimension")
    if shape[0] and not prod(shape[1:]) * dtype.itemsize:
        raise damage(where, f"has {shape[0]} rows without elements (shape {shape})")


def array_columns(name: str, source: ArraySource) -> tuple[Column, ...]:
    """The columns that an array becomes: one, or one for each field of a record array."""
    if source.dtype.names is None:
        return (_column(name, source.where, source.dtype, source.shape[1:]),)
    fields = ((field, source.dtype[field]) for field in source.dtype.names)
    return tuple(
        _column(field, f"{source.where}, field {field!r}", dtype.base, dtype.shape)
        for field, dtype in fields
    )


def array_batches(sources: Mapping[str, ArraySource]) -> Iterator[ColumnBatch]:
    """Arrays of equal length side by side. Raises InvalidInputError: too short, long or damaged."""
    rows = max(source.rows for source in sources.values())
    step = max(1, BATCH_BYTES // max(1, sum(source.row_bytes for source in sources.values())))
    with ExitStack() as stack:
        streams = {name: stack.enter_context(source.open()) for name, source in sources.items()}
        origins = {name: _tell(streams[name], source) for name, source in sources.items()}
        for start in range(0, rows, step):
            count = min(step, rows - start)
            batch: dict[str, Any] = {}
            for name, source in sources.items():
                elements = _take(streams[name], source, origins[name], start, count)
                batch |= _columns_of(name, source, elements, start)
            yield batch
        for name, source in sources.items():
            _expect_end(streams[name], source)


def read_array(source: ArraySource) -> NDArray[Any]:
    """The whole array, little-endian, in C order."""
    with source.open() as stream:
        elements = _take(stream, source, _tell(stream, source), 0, source.rows)
        _expect_end(stream, source)
    return np.ascontiguousarray(_native(elements)).reshape(source.shape)


def check_equal_rows(where: object, sources: Mapping[str, ArraySource]) -> int:
    """The number of rows that all arrays share. Raises InvalidInputError: they differ."""
    counts = {name: source.rows for name, source in sources.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r}: {rows}" for name, rows in counts.items())
        raise damage(
            where, f"arrays of one dataset need equally many rows, found {listed}. Choose columns."
        )
    return next(iter(counts.values()))


def _column(name: str, where: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> Column:
    """NaT is null, as it is of arrays in memory."""
    return Column(name, _column_type(where, dtype, row_shape), nullable=dtype.kind in "mM")


def _column_type(where: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> ColumnType:
    if dtype.kind in "US" and not row_shape:
        return Text() if dtype.kind == "U" else Bytes()
    try:
        if dtype.kind in "mM":
            empty = np.empty((0, *row_shape), dtype)
            return infer_type(moments_of(empty).type, "")
        name = dtype_name(dtype)
        return Tensor(name, row_shape) if row_shape else Scalar(name)
    except InvalidInputError as problem:
        raise damage(where, f"has elements of type {dtype}: {problem}") from problem


def _columns_of(
    name: str, source: ArraySource, elements: NDArray[Any], first: int
) -> dict[str, Any]:
    fields = elements.dtype.names
    arrays = {name: elements} if fields is None else {field: elements[field] for field in fields}
    return {
        column: _values(f"{source.where}, column {column!r}", array, first)
        for column, array in arrays.items()
    }


def _values(where: str, array: NDArray[Any], first: int) -> NDArray[Any] | Sequence[Any] | pa.Array:
    kind = array.dtype.kind
    if kind == "S":
        return list(array.tolist())
    if kind in "mM":
        return moments_of(array)
    if kind != "U" or not array.dtype.itemsize:
        return list(array.tolist()) if kind == "U" else _native(array)
    points = np.ascontiguousarray(_native(array)).view("<u4").reshape(len(array), -1)
    bad = (points > 0x10FFFF) | ((points >= 0xD800) & (points <= 0xDFFF))
    _refuse_first(where, bad.max(axis=1), first, "holds code points that are no Unicode text")
    return list(array.tolist())


def _refuse_first(where: str, bad: NDArray[Any], first: int, what: str) -> None:
    if bad.any():
        raise damage(f"{where}, row {first + int(np.argmax(bad))}", what)


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """`array` little-endian, bools exactly 0 or 1."""
    if array.dtype.kind == "b":
        return np.not_equal(np.ascontiguousarray(array).view(np.uint8), 0)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _tell(stream: IO[bytes], source: ArraySource) -> int:
    """Where the elements begin, for those that are not read in the order of the file."""
    return stream.tell() if source.transposed else 0


def _take(
    stream: IO[bytes], source: ArraySource, origin: int, start: int, rows: int
) -> NDArray[Any]:
    """Rows ``[start, start + rows)``; of a plain array `stream` stands there already."""
    with refusals(source.where, "file", *_DAMAGED):
        if source.transposed:
            return _take_transposed(stream, source, origin, start, rows)
        buffer = _read(stream, source, rows * source.row_bytes)
    return np.frombuffer(buffer, source.dtype).reshape(rows, *source.shape[1:])


def _take_transposed(
    stream: IO[bytes], source: ArraySource, origin: int, start: int, rows: int
) -> NDArray[Any]:
    """In Fortran's order the same element of all rows is contiguous: one read for each element."""
    size = source.dtype.itemsize
    elements = prod(source.shape[1:])
    buffer = bytearray()
    for element in range(elements):
        stream.seek(origin + (element * source.rows + start) * size)
        buffer += _read(stream, source, rows * size)
    flipped = np.frombuffer(buffer, source.dtype).reshape(*source.shape[:0:-1], rows)
    return flipped.transpose()


def _read(stream: IO[bytes], source: ArraySource, wanted: int) -> bytearray:
    buffer = bytearray(min(wanted, _TRUSTED_BYTES))
    filled = 0
    while filled < wanted:
        if filled == len(buffer):
            buffer += bytes(min(wanted - filled, _TRUSTED_BYTES))
        got = stream.readinto(memoryview(buffer)[filled:])  # type: ignore[attr-defined]  # typeshed's IO lacks it
        if not got:
            break
        filled += got
    del buffer[filled:]
    if len(buffer) < wanted:
        raise damage(
            source.where,
            f"ends {wanted - len(buffer)} bytes before the {source.bytes} that its header promises",
        )
    return buffer


def _expect_end(stream: IO[bytes], source: ArraySource) -> None:
    """Nothing may follow; for compressed streams this also checks their own checksum."""
    if source.transposed:
        return
    with refusals(source.where, "file", *_DAMAGED):
        if stream.read(1):
            raise damage(
                source.where, f"goes on after the {source.bytes} bytes that its header promises"
            )
