"""beton files of FFCV: reader.

Numbers lie in the metadata; everything else says there where its bytes are. Every place is checked
to be inside of the file's pages before it is read.

Layout: header | a description of 1041 bytes of each field | metadata, as a C compiler aligns it |
pages | allocations: sample u64, place u64, bytes u64, to the end of the file.

Source:
    ffcv/types.py, writer.py and fields/ of FFCV 1.0.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import all_of, damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnType,
    Image,
    Json,
    Scalar,
    Schema,
)
from tensorrepo.formats.exchange.base import Candidate, OpenedSource, file_bytes, origin_of
from tensorrepo.formats.exchange.column_choice import each_column
from tensorrepo.formats.exchange.records.samples import (
    SampleRecord,
    array_type,
    batches_of,
    check_image,
    check_json,
    check_text,
    choose,
    plain_array,
    read_exactly,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import UnsupportedError

SUFFIXES = (".beton",)
_VERSION = 2
_HEADER = Struct("<HHIQQ")  # version, fields, bytes of a page, samples, where allocations begin
_FIELD = Struct("<B16s1024s")  # kind, name, arguments
_ARRAY = Struct("<32QQ")  # shape, ended by zeros, and the length of the element type in JSON
_ALLOCATION = np.dtype([("sample", "<u8"), ("at", "<u8"), ("bytes", "<u8")])
assert (_HEADER.size, _FIELD.size, _ALLOCATION.itemsize) == (24, 1041, 24)
_FLOAT, _INT, _IMAGE, _BYTES, _ARRAY_KIND, _JSON, _TORCH = range(7)
_JPEG, _RAW = 0, 1
_CHANNELS = 3
_PLACED = np.dtype([("at", "<u8"), ("bytes", "<u8")])
_PICTURE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("at", "<u8")])
_METADATA: dict[int, Any] = {
    _FLOAT: "<f8",
    _INT: "<i8",
    _IMAGE: _PICTURE,
    _BYTES: _PLACED,
    _JSON: _PLACED,
    _ARRAY_KIND: "<u8",
    _TORCH: "<u8",
}
_ELEMENT = re.compile(r"[<>|]?[biufc][0-9]{1,2}")
_STEP = 4096  # samples whose metadata are looked at together


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: its kind and, of arrays, their element type and shape."""

    name: str
    kind: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """What a file says before its first sample; `pages` is the range of bytes that data lies in."""

    fields: tuple[_Field, ...]
    samples: int
    metadata: np.dtype[Any]
    metadata_at: int
    pages: range


def read_beton(
    path: Path, *, columns: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> OpenedSource:
    """The samples of one file, or only the fields in `columns`, or all but those in `exclude`.

    Raises:
        InvalidInputError: not a beton file, a damaged one, or places outside of it.
        UnsupportedError: a field of the writer's own, or images of which some are raw.
    """
    stored = file_bytes(path)
    with refusals(path, "beton file"), path.open("rb") as stream:
        head = _read_head(stream, str(path), stored)
        by_name = {field.name: field for field in head.fields}
        chosen = choose(path, list(by_name), columns, exclude=exclude)
        fields = [by_name[name] for name in chosen]
        schema = Schema(
            tuple(
                each_column(
                    chosen,
                    lambda name: _column(stream, head, by_name[name], str(path)),
                    can_cast=False,
                )
            )
        )
    return OpenedSource(
        schema=schema,
        rows=head.samples,
        batches=batches_of(_records(path, head, schema, fields), schema.names),
        origin=origin_of(path, "beton", [path]),
    )


def matches_beton(candidate: Candidate) -> bool:
    """A file whose header makes sense for its size."""
    if candidate.is_folder or len(candidate.head) < _HEADER.size:
        return False
    version, fields, page, samples, at = _HEADER.unpack_from(candidate.head)
    likely: bool = version == _VERSION and fields > 0 and page >= 1 << 21 and page & (page - 1) == 0
    return likely and max(samples, at) <= candidate.bytes


# ------------------------------------------------------------------------------ the head


def _read_head(stream: IO[bytes], where: str, stored: int) -> _Head:
    version, count, _, samples, table = _HEADER.unpack(read_exactly(stream, _HEADER.size, where))
    if version != _VERSION:
        raise damage(where, f"is no beton file of version {_VERSION}: it says {version}")
    described = read_exactly(stream, count * _FIELD.size, where)
    fields = tuple(
        all_of(
            _FIELD.iter_unpack(described),
            lambda field: _parse_field(field[0], field[1], field[2], where),
            "fields cannot be read, so no sample can be found",
        )
    )
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise damage(where, f"has fields {names}; it needs at least one, of different names")
    metadata = np.dtype([("", _METADATA[field.kind]) for field in fields], align=True)
    first = _HEADER.size + len(described)
    start = first + samples * metadata.itemsize
    if not start <= table <= stored or (stored - table) % _ALLOCATION.itemsize:
        raise damage(
            where,
            f"has {stored} bytes, but {samples} samples and its allocations at byte {table} need "
            "others. Is it cut short?",
        )
    return _Head(fields, samples, metadata, first, range(start, table))


def _parse_field(kind: int, raw: bytes, arguments: bytes, where: str) -> _Field:
    name = check_text(raw.partition(b"\0")[0], f"{where}, name of a field")
    spot = f"{where}, field {name!r}"
    if kind not in _METADATA:
        raise UnsupportedError(
            f"{spot}: is of kind {kind}, a writer's own, whose samples nobody else can find"
        )
    if kind not in (_ARRAY_KIND, _TORCH):
        return _Field(name, kind, np.dtype("u1"), ())
    *sizes, length = _ARRAY.unpack_from(arguments)
    shape = tuple(sizes[: sizes.index(0)] if 0 in sizes else sizes)
    if any(sizes[len(shape) :]):
        raise damage(spot, f"has shape {tuple(sizes)}")
    return _Field(name, kind, _element(arguments[_ARRAY.size :][:length], spot), shape)


def _element(text: bytes, where: str) -> np.dtype[Any]:
    """The element type that numpy's description of it, as JSON, names."""
    try:
        ((_, code),) = json.loads(text)
    except (ValueError, TypeError, RecursionError) as problem:
        raise damage(where, f"has a damaged element type {text[:40]!r}") from problem
    if not isinstance(code, str) or not _ELEMENT.fullmatch(code):
        raise damage(where, f"has elements of type {code!r:.40}, which no column holds")
    try:
        return np.dtype(code)
    except TypeError as problem:
        raise damage(where, f"has elements of type {code!r}, which there is not") from problem


def _column(stream: IO[bytes], head: _Head, field: _Field, where: str) -> Column:
    """The column of a field; of images all metadata are looked at."""
    spot = f"{where}, field {field.name!r}"
    simple: dict[int, ColumnType] = {
        _FLOAT: Scalar("float64"),
        _INT: Scalar("int64"),
        _BYTES: Bytes(),
        _JSON: Json(),
    }
    if field.kind in simple:
        return Column(field.name, simple[field.kind], nullable=field.kind == _JSON)
    if field.kind != _IMAGE:
        return Column(field.name, array_type([(field.dtype, field.shape)], spot))
    modes: set[int] = set()
    shapes: set[tuple[int, ...]] = set()
    for _, rows in _metadata(stream, head, where):
        pictures = rows[f"f{head.fields.index(field)}"]
        modes.update(np.unique(pictures["mode"]).tolist())
        sizes = np.unique(np.stack([pictures["height"], pictures["width"]], axis=1), axis=0)
        shapes.update((int(height), int(width), _CHANNELS) for height, width in sizes[:2])
    if modes <= {_JPEG}:
        return Column(field.name, Image("jpeg"))
    if modes != {_RAW}:
        raise UnsupportedError(
            f"{spot}: some images are raw and some are jpeg, which no column holds. Write it with "
            "write_mode raw or jpg"
        )
    return Column(field.name, array_type([(np.dtype("u1"), shape) for shape in shapes], spot))


# ------------------------------------------------------------------------------ samples


def _metadata(stream: IO[bytes], head: _Head, where: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """(first sample, their metadata) in steps."""
    size = head.metadata.itemsize
    for first in range(0, head.samples, _STEP):
        stream.seek(head.metadata_at + first * size)
        data = read_exactly(stream, min(_STEP, head.samples - first) * size, where)
        yield first, np.frombuffer(data, head.metadata)


def _records(
    path: Path, head: _Head, schema: Schema, fields: Sequence[_Field]
) -> Iterator[SampleRecord]:
    with refusals(path, "beton file"), path.open("rb") as stream:
        pages = _Pages(stream, head, _sizes(stream, head, schema, str(path)))
        for first, rows in _metadata(stream, head, str(path)):
            for at, row in enumerate(rows):
                where = f"{path}, sample {first + at}"
                values: dict[str, Any] = {}
                for column, field in zip(schema.columns, fields, strict=True):
                    entry = row[f"f{head.fields.index(field)}"]
                    spot = f"{where}, field {field.name!r}"
                    values[field.name] = _value(pages, column.type, field, entry, spot)
                yield SampleRecord(values, _held(values))


def _sizes(stream: IO[bytes], head: _Head, schema: Schema, where: str) -> NDArray[Any] | None:
    """All allocations in the order of their places; only jpeg images need them."""
    if not any(isinstance(column.type, Image) for column in schema.columns):
        return None
    stream.seek(head.pages.stop)
    table = np.frombuffer(stream.read(), _ALLOCATION)
    if len(table) == 0:
        raise damage(where, "has images, but no table of allocations")
    return np.sort(table, order=["at", "bytes"])


@dataclass(frozen=True, slots=True)
class _Pages:
    """The data of a file."""

    stream: IO[bytes]
    head: _Head
    table: NDArray[Any] | None

    def read(self, at: int, size: int, where: str) -> bytes:
        if size and not (self.head.pages.start <= at and at + size <= self.head.pages.stop):
            raise damage(where, f"lies at bytes {at} to {at + size}, outside of the file's pages")
        self.stream.seek(at if size else 0)
        return read_exactly(self.stream, size, where)

    def allocated(self, at: int, where: str) -> int:
        """How many bytes were written at this place."""
        assert self.table is not None, where
        place = int(np.searchsorted(self.table["at"], at, side="right")) - 1
        if place < 0 or self.table["at"][place] != at:
            raise damage(where, f"lies at byte {at}, where nothing was written")
        return int(self.table["bytes"][place])


def _held(values: Mapping[str, Any]) -> int:
    return sum(
        value.nbytes if isinstance(value, np.ndarray) else len(value)
        for value in values.values()
        if isinstance(value, np.ndarray | bytes)
    )


def _value(pages: _Pages, kind: ColumnType, field: _Field, entry: Any, where: str) -> Any:
    """What a sample's metadata, or the bytes that they lead to, say."""
    if field.kind in (_INT, _FLOAT):
        return entry
    if field.kind == _IMAGE:
        return _image(pages, kind, entry, where)
    if field.kind in (_ARRAY_KIND, _TORCH):
        size = prod(field.shape) * field.dtype.itemsize
        elements = np.frombuffer(pages.read(int(entry), size, where), field.dtype)
        return plain_array(elements.reshape(field.shape))
    data = pages.read(int(entry["at"]), int(entry["bytes"]), where)
    return data if field.kind == _BYTES else check_json(data.partition(b"\0")[0], where)


def _image(pages: _Pages, kind: ColumnType, entry: Any, where: str) -> bytes | NDArray[Any]:
    at, height, width = int(entry["at"]), int(entry["height"]), int(entry["width"])
    if isinstance(kind, Image):
        return check_image(kind, pages.read(at, pages.allocated(at, where), where), where)
    pixels = pages.read(at, height * width * _CHANNELS, where)
    return np.frombuffer(pixels, np.uint8).reshape(height, width, _CHANNELS)
