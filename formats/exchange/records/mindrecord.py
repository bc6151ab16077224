"""MindRecord files of MindSpore: reader.

A sample is in two places: its plain fields in a page of messages, its blobs (bytes and arrays) in
another page; both keep the order of samples. The SQLite file beside it is an index for searching
and is not needed. Nothing in the file has a checksum; every length is held against its page.

Layout: length u64 | header as JSON | pages, of equal room. A row of a page: length u64 | content:
of plain fields MessagePack, of blobs the blob, or if there are several each with its length u64
before it, big-endian. Whole numbers of an array: count u32 big-endian | 2 bits each, how wide |
numbers.

Source:
    mindspore/ccsrc/minddata/mindrecord of MindSpore 2.10: shard_header.cc, shard_column.cc; the
    widths and orders of bytes were compared with files that its FileWriter wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import all_of, damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnType,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import Candidate, OpenedSource, file_bytes, origin_of
from tensorrepo.formats.exchange.column_choice import each_column
from tensorrepo.formats.exchange.records.samples import (
    SAMPLES,
    SampleRecord,
    batches_of,
    check_array,
    check_bytes,
    choose,
    image_type,
    read_exactly,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import UnsupportedError
from tensorrepo.repo.typed_decoding import from_json, from_msgpack

SUFFIXES = (".mindrecord",)
MAX_HEADER_BYTES = 64 << 20
_LENGTH = Struct("<Q")
_BLOB_LENGTH = Struct(">Q")
_COUNT = Struct(">I")
_NUMBERS = ("int32", "int64", "float32", "float64")
_BEGINS = b'{"'
_BITS = np.array([6, 4, 2, 0], np.uint8)


class _Page(msgspec.Struct, frozen=True):
    page_id: int
    page_type: str
    page_type_id: int
    page_size: int


class _Field(msgspec.Struct, frozen=True):
    type: str
    shape: tuple[int, ...] | None = None


class _Fields(msgspec.Struct, frozen=True):
    blob_fields: tuple[str, ...]
    schema: dict[str, _Field]


class _Header(msgspec.Struct, frozen=True):
    """What a file says before its pages; other fields serve searching."""

    header_size: int
    page_size: int
    page: tuple[_Page, ...]
    schema: tuple[_Fields, ...]
    shard_addresses: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    header: _Header

    @property
    def fields(self) -> _Fields:
        return self.header.schema[0]


def read_mindrecord(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
    samples: int = SAMPLES,
) -> OpenedSource:
    """The samples of a file and, in order, of the other files that were written with it.

    Args:
        path: one file; those that its header names lie beside it.
        columns: only these fields.
        exclude: all fields but these.
        samples: from how many samples it is told which bytes are images.

    Raises:
        InvalidInputError: not a MindRecord file, a damaged one, or one whose other files are gone.
        UnsupportedError: a field of a type that no column has.
    """
    shards = _shards(path)
    fields = shards[0].fields
    chosen = choose(path, list(fields.schema), columns, exclude=exclude)
    schema = _schema(shards, chosen, samples)
    rows = (record for shard in shards for record in _records(shard, schema))
    return OpenedSource(
        schema=schema,
        rows=None,
        batches=batches_of(rows, schema.names),
        origin=origin_of(path, "mindrecord", [shard.path for shard in shards]),
    )


def matches_mindrecord(candidate: Candidate) -> bool:
    """A file that begins with the length of a header and with such a header."""
    head = candidate.head
    if candidate.is_folder or head[8:10] != _BEGINS or b'"header_size"' not in head[:40]:
        return False
    size: int = _LENGTH.unpack_from(head)[0]
    return size <= candidate.bytes


# ------------------------------------------------------------------------------ the header


def _shards(path: Path) -> list[_Shard]:
    """The file, and those beside it that were written together, in their order."""
    first = _read_header(path)
    names = [Path(name).name for name in first.shard_addresses]
    if path.name not in names or len(set(names)) < len(names):  # it was renamed
        names = [path.name]

    def shard(name: str) -> _Shard:
        read = _Shard(path.with_name(name), _read_header(path.with_name(name)))
        if read.fields != first.schema[0]:
            raise damage(read.path, f"has other fields than {path.name}")
        return read

    return all_of(names, shard, "files cannot be read")


def _read_header(path: Path) -> _Header:
    stored = file_bytes(path)
    wrong = (msgspec.MsgspecError, UnicodeDecodeError)
    with refusals(path, "MindRecord file", *wrong), path.open("rb") as stream:
        (size,) = _LENGTH.unpack(read_exactly(stream, _LENGTH.size, str(path)))
        if size > min(stored, MAX_HEADER_BYTES):
            raise damage(path, f"is no MindRecord file: a header of {size} bytes")
        header = from_json(read_exactly(stream, size, str(path)), _Header)
    _check_header(path, header, stored)
    return header


def _check_header(path: Path, header: _Header, stored: int) -> None:
    if header.version != "3.0":
        raise damage(path, f"is MindRecord {header.version!r}; 3.0 is read")
    if len(header.schema) != 1 or not header.schema[0].schema:
        raise damage(path, f"has {len(header.schema)} schemas; one with fields is expected")
    fields = header.schema[0]
    if not set(fields.blob_fields) <= fields.schema.keys():
        raise damage(path, f"names blobs {fields.blob_fields}, which are no fields")
    if len({page.page_id for page in header.page}) < len(header.page):
        raise damage(path, "has two pages in one place")
    for page in header.page:
        end = _place(header, page) + page.page_size
        fits = page.page_id >= 0 and 0 <= page.page_size <= header.page_size
        if not fits or header.header_size < 0 or end > stored:
            raise damage(
                path,
                f"has {stored} bytes, page {page.page_id} ends at byte {end}. Is it cut short?",
            )


def _place(header: _Header, page: _Page) -> int:
    return header.header_size + page.page_id * header.page_size


# ------------------------------------------------------------------------------ columns


def _schema(shards: Sequence[_Shard], chosen: Sequence[str], samples: int) -> Schema:
    fields = shards[0].fields
    where = str(shards[0].path)
    rows = (row for shard in shards for row in _blobs(shard))
    bytes_fields = [name for name in chosen if fields.schema[name].type == "bytes"]
    first = list(islice(rows, samples)) if bytes_fields else []

    def column(name: str) -> Column:
        heads = [row[name][:32] for _, row in first if name in row]
        return Column(name, _type(fields, name, heads, f"{where}, field {name!r}"))

    return Schema(tuple(each_column(chosen, column, can_cast=False)))


def _type(fields: _Fields, name: str, heads: Sequence[bytes], where: str) -> ColumnType:
    field = fields.schema[name]
    blob = name in fields.blob_fields
    if field.type == "bytes" and blob:
        return image_type(heads) or Bytes()
    if field.type == "string" and not blob:
        return Text()
    if field.type not in _NUMBERS or blob is (field.shape is None):
        raise UnsupportedError(
            f"{where}: is {field.type!r} of shape {field.shape}, which is not read"
        )
    if field.shape is None:
        return Scalar(field.type)
    if not field.shape or any(dim == 0 or dim < -1 for dim in field.shape):
        raise damage(where, f"has shape {field.shape}")
    if field.shape.count(-1) > 1:
        raise damage(where, f"has shape {field.shape}, which leaves more than one size open")
    return Tensor(field.type, tuple(None if dim == -1 else dim for dim in field.shape))


# ------------------------------------------------------------------------------ samples


def _records(shard: _Shard, schema: Schema) -> Iterator[SampleRecord]:
    plain, blobs = _pages_rows(shard, "RAW_DATA"), _blobs(shard)
    for where, data in plain:
        found = next(blobs, None)
        if found is None:
            raise damage(where, "has no blobs: there are fewer of them than samples")
        values = _plain_values(data, where) | found[1]
        held = len(data) + sum(map(len, found[1].values()))
        columns = schema.columns
        row = {column.name: _value(column, shard.fields, values, where) for column in columns}
        arrays = sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        yield SampleRecord(row, held + arrays)
    if next(blobs, None) is not None:
        raise damage(shard.path, "has more blobs than samples")


def _pages_rows(shard: _Shard, kind: str) -> Iterator[tuple[str, bytes]]:
    """(where, content) of each row of the pages of this kind."""
    pages = sorted(
        (page for page in shard.header.page if page.page_type == kind),
        key=lambda page: page.page_type_id,
    )
    number = 0
    with refusals(shard.path, "MindRecord file"), shard.path.open("rb") as stream:
        for page in pages:
            at = _place(shard.header, page)
            end = at + page.page_size
            while at < end:
                where = f"{shard.path}, sample {number}"
                data = _row(stream, at, end, where)
                yield where, data
                at += _LENGTH.size + len(data)
                number += 1


def _row(stream: IO[bytes], at: int, end: int, where: str) -> bytes:
    stream.seek(at)
    (size,) = _LENGTH.unpack(read_exactly(stream, _LENGTH.size, where))
    if size > end - at - _LENGTH.size:
        raise damage(where, f"has {size} bytes, which reach past its page")
    return read_exactly(stream, size, where)


def _blobs(shard: _Shard) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(where, blobs by field) of each sample."""
    names = shard.fields.blob_fields
    for where, data in _pages_rows(shard, "BLOB_DATA"):
        if len(names) == 1:
            yield where, {names[0]: data}
            continue
        found = {}
        at = 0
        for name in names:
            stop = at + _BLOB_LENGTH.size
            size = int.from_bytes(data[at:stop], "big")
            if size > len(data) - stop:
                raise damage(where, f"blob {name!r} of {size} bytes reaches past the sample's")
            found[name] = data[stop : stop + size]
            at = stop + size
        if names and at != len(data):
            raise damage(where, f"has {len(data)} bytes of blobs, which take {at}")
        yield where, found


def _plain_values(data: bytes, where: str) -> dict[str, Any]:
    try:
        return from_msgpack(data, dict[str, int | float | str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise damage(where, f"is no MessagePack of fields: {problem}") from problem


def _value(column: Column, fields: _Fields, values: Mapping[str, Any], where: str) -> Any:
    spot = f"{where}, field {column.name!r}"
    if column.name not in values:
        raise damage(spot, "is missing")
    value = values[column.name]
    if column.name in fields.blob_fields:
        return _blob(column.type, value, spot)
    if isinstance(value, str) is not isinstance(column.type, Text):
        raise damage(spot, f"is {value!r:.40}, expected {fields.schema[column.name].type}")
    return value


def _blob(kind: ColumnType, data: bytes, where: str) -> Any:
    if not isinstance(kind, Tensor):
        return check_bytes(kind, data, where)
    dtype = np.dtype(kind.dtype)
    if dtype.kind == "i":
        flat = decode_integers(data, where).astype(dtype)
    elif len(data) % dtype.itemsize:
        raise damage(where, f"has {len(data)} bytes, no whole number of {dtype}")
    else:
        flat = np.frombuffer(data, dtype.newbyteorder("<"))
    shape = tuple(-1 if dim is None else dim for dim in kind.shape)
    try:
        array = flat.reshape(shape)
    except ValueError as problem:
        raise damage(where, f"has {len(flat)} numbers, not of shape {shape}") from problem
    return check_array(kind, array, where)


def decode_integers(data: bytes, where: str) -> NDArray[np.int64]:
    """Whole numbers as MindRecord packs them: 1, 2, 4 or 8 bytes each, as 2 bits say.

    Raises:
        InvalidInputError: their widths and the number of bytes disagree.
    """
    if len(data) < _COUNT.size:
        raise damage(where, "ends before the number of its numbers")
    (count,) = _COUNT.unpack_from(data)
    start = _COUNT.size + -(-count // 4)
    if start > len(data):
        raise damage(where, f"has {len(data)} bytes for {count} numbers")
    packed = np.frombuffer(data, np.uint8, offset=_COUNT.size)
    bitmap = packed[: start - _COUNT.size]
    powers = (bitmap[:, None] >> _BITS & 3).reshape(-1)[:count]
    widths = np.left_shift(1, powers.astype(np.int64))
    if start + int(widths.sum()) != len(data):
        raise damage(where, f"has {len(data)} bytes, its {count} numbers need others")
    places = np.cumsum(widths) - widths + (start - _COUNT.size)
    numbers = np.zeros(count, np.int64)
    for power in range(4):
        here = powers == power
        taken = packed[places[here][:, None] + np.arange(1 << power)]
        numbers[here] = np.ascontiguousarray(taken).view(f"<i{1 << power}").reshape(-1)
    return numbers
