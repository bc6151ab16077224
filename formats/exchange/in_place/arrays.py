"""npy and safetensors files adopted in place.

Rows lie at equal distances, so where a row is needs no table. The tensors of a safetensors file
become columns; all need equally many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.dtypes import dtype_name
from tensorrepo.formats.dataset.external.foreign import (
    ArrayPlace,
    ForeignPlace,
    foreign_entries,
    place_type,
)
from tensorrepo.formats.dataset.pages.page import DIRECTORY, padded
from tensorrepo.formats.dataset.schema.schema import Column, ColumnType, Scalar, Schema, Tensor
from tensorrepo.formats.exchange.arrays.columns import check_rows
from tensorrepo.formats.exchange.arrays.npy import read_header
from tensorrepo.formats.exchange.checkpoints.safetensors import MAX_HEADER_BYTES, parse_header
from tensorrepo.formats.exchange.in_place.scan import (
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    PAGE_BYTES,
    AdoptedFragment,
    AdoptedSource,
    FileScan,
)
from tensorrepo.formats.exchange.records.samples import choose
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

# What safetensors calls the element types that columns have.
_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32",
    "F64": "float64", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Array:
    """One column of a file, at bytes `start`, `start + stride`, ..."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    start: int
    stride: int
    big_endian: bool = False

    @property
    def type(self) -> ColumnType:
        return Tensor(self.dtype, self.shape) if self.shape else Scalar(self.dtype)

    def place(self) -> ArrayPlace:
        shape = list(self.shape)
        return ArrayPlace(
            place_type(self.type), False, self.start, self.stride, self.rows, self.dtype, shape,
            self.big_endian,
        )  # fmt: skip


def scan_npy(source: AdoptedSource, columns: tuple[str, ...] | None) -> FileScan:
    """One npy file: a column named after the file, or one for each field of a record array.

    Raises:
        InvalidInputError: damaged, or no rows in it.
        UnsupportedError: its elements or their order can't be read in place.
    """
    with source.open() as stream:
        header = read_header(stream, source.url)
    header.check_bytes(source.url, source.version.size, "the file has {}. Is it cut short?")
    check_rows(source.url, header.dtype, header.shape)
    if header.transposed:
        raise UnsupportedError(f"{source.url}: is in Fortran's order. {_IMPORT}")
    stem = PurePosixPath(source.url).stem
    arrays = [
        _array(source.url, name, dtype, shape, header.shape[0], header.bytes + at, stride)
        for name, dtype, shape, at, stride in _fields(stem, header.dtype, header.shape)
    ]
    return _scan(source, "npy", arrays, columns)


def scan_safetensors(source: AdoptedSource, columns: tuple[str, ...] | None) -> FileScan:
    """The tensors of one safetensors file, all with equally many rows.

    Raises:
        InvalidInputError: damaged, or tensors of several lengths; choose some by `columns`.
        UnsupportedError: elements of a type that no column has.
    """
    size = source.version.size
    with source.open() as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise damage(source.url, f"no safetensors header of {length} bytes in {size} bytes")
        try:
            parts = parse_header(stream.read(length), size - 8 - length)
        except InvalidInputError as error:
            raise damage(source.url, str(error)) from error
    choose(source.url, [part.name for part in parts], columns)
    arrays = []
    for part in parts:
        if columns is not None and part.name not in columns:
            continue
        if part.type.name not in _TYPES:
            raise UnsupportedError(
                f"{source.url}: tensor {part.name!r} has elements of type {part.type.name}, which "
                "no column holds. Choose others: columns=a,b"
            )
        dtype = np.dtype((np.void, part.type.block_bytes))
        check_rows(f"{source.url}, tensor {part.name!r}", dtype, part.shape)
        stride = prod(part.shape[1:]) * part.type.block_bytes
        start = 8 + length + part.start
        arrays.append(
            _Array(part.name, _TYPES[part.type.name], part.shape[1:], part.shape[0], start, stride)
        )
    return _scan(source, "safetensors", arrays, columns)


_IMPORT = "Import it instead: tensorrepo add"


def _fields(
    stem: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...], int, int]]:
    """Name, element type, row shape, place in the record and stride of each column."""
    if dtype.fields is None:
        yield stem, dtype, shape[1:], 0, prod(shape[1:]) * dtype.itemsize
    elif len(shape) > 1:
        raise UnsupportedError(f"records of shape {shape} are not read in place. {_IMPORT}")
    else:
        for name, field in dtype.fields.items():
            yield name, field[0].base, field[0].shape, field[1], dtype.itemsize


def _array(
    where: str,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    rows: int,
    start: int,
    stride: int,
) -> _Array:
    if dtype.kind not in "biufc":
        raise UnsupportedError(
            f"{where}: elements of type {dtype} are not read in place. {_IMPORT}"
        )
    try:
        element = dtype_name(dtype.newbyteorder("<"))
    except InvalidInputError as error:
        raise UnsupportedError(f"{where}: {error}. {_IMPORT}") from error
    big_endian = dtype.itemsize > 1 and dtype.newbyteorder(">") == dtype
    return _Array(name, element, tuple(shape), rows, start, stride, big_endian)


def _scan(
    source: AdoptedSource, format_name: str, arrays: list[_Array], columns: tuple[str, ...] | None
) -> FileScan:
    by_name = {array.name: array for array in arrays}
    chosen = [by_name[name] for name in choose(source.url, list(by_name), columns)]
    counts = {array.name: array.rows for array in chosen}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r}: {rows}" for name, rows in counts.items())
        raise damage(
            source.url, f"columns need equally many rows, found {listed}. Choose: columns=a,b"
        )
    if not chosen:
        raise damage(source.url, "holds no arrays")
    schema = Schema(tuple(Column(array.name, array.type) for array in chosen))
    return FileScan(schema, lambda known: _fragments(source, format_name, chosen, known))


def _fragments(
    source: AdoptedSource, format_name: str, arrays: list[_Array], schema: Schema
) -> Iterator[AdoptedFragment]:
    ids = {array.name: schema.column(array.name).id for array in arrays}
    places: dict[str, ForeignPlace] = {ids[array.name]: array.place() for array in arrays}
    file = source.describe(format_name, places)
    sizes = [schema.column(array.name).storage.row_bytes for array in arrays]
    fragment_rows = max(1, min(FRAGMENT_ROWS, FRAGMENT_BYTES // sum(sizes)))
    page_rows = max(1, PAGE_BYTES // max(sizes))
    for start in range(0, arrays[0].rows, fragment_rows):
        rows = min(fragment_rows, arrays[0].rows - start)
        first = np.arange(0, rows, page_rows)
        counts = np.minimum(page_rows, rows - first)
        entries = {
            ids[array.name]: _entries(first, counts, start, row_bytes)
            for array, row_bytes in zip(arrays, sizes, strict=True)
        }
        yield AdoptedFragment(rows, file, entries)


def _entries(
    first: NDArray[np.int64], counts: NDArray[np.int64], start: int, row_bytes: int
) -> NDArray[Any]:
    stored = counts * row_bytes
    raw = [DIRECTORY.size + padded(size) for size in stored.tolist()]
    return foreign_entries(first, counts, first + start, stored, raw, np.zeros(len(first)))
