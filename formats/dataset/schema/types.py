"""Column types and their stored layouts.

A column type is a small frozen value with a JSON form (`{"type": "tensor", ...}`). Whatever the
type, its rows are stored in one of four layouts: fixed (rows back to back), ragged (a row table
and elements), binary (end offsets and bytes) or tiled (each row cut into blocks of its own). A
type of values inside of values (lists, structs, maps) is binary: `nested` says how a row lies.

One value of a `Link` column is a `LinkValue`: a URL, perhaps a byte range of it, and what proves
that it is still the same. Nothing is opened here.

Source:
    docs/spec/dataset.md, section "Column types".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import prod
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec
import numpy as np

from tensorrepo.formats.common.dtypes import DTypeLike, dtype_name, element_dtype
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.typed_decoding import from_json, from_plain

_OFFSET = re.compile(r"[+-]([01]\d|2[0-3]):?[0-5]\d")  # as Arrow takes it
MAX_DIMS = 32
MAX_DIM = (1 << 32) - 1
MAX_DEPTH = 32  # of types one in the other
MAX_FIXED_BYTES = (1 << 31) - 1
MAX_DIGITS = 76  # of Arrow's longest decimal
INT64_DIGITS = 18  # a decimal of so many is an int64 for sure
_ARROW_NUMBERS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64"}
)


class ColumnLayout(IntEnum):
    """How the rows of a column lie in its pages."""

    FIXED = 0
    RAGGED = 1
    BINARY = 2
    TILED = 3


@dataclass(frozen=True, slots=True)
class Storage:
    """The stored form of a column: what a page is encoded and decoded with.

    `dtype` is the element type's name ("uint8" for binary), `shape` that of one row, None where
    rows differ; `tile` is the shape of a whole tile, empty unless the layout is tiled.
    """

    layout: ColumnLayout
    dtype: str
    shape: tuple[int | None, ...]
    tile: tuple[int, ...] = ()

    @property
    def element(self) -> np.dtype[Any]:
        return element_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of a fixed row; of the other layouts 0."""
        if self.layout is not ColumnLayout.FIXED:
            return 0
        return self.element.itemsize * prod(self.row_shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a fixed row."""
        return tuple([dim for dim in self.shape if dim is not None])

    @property
    def unknown_dims(self) -> int:
        return sum(dim is None for dim in self.shape)

    @property
    def known_elements(self) -> int:
        """Product of the known dimensions: elements of a ragged row are a multiple of it."""
        return prod(self.row_shape)

    @property
    def stores_dims(self) -> bool:
        """Whether the dimensions of a ragged or tiled row need more than its number of elements."""
        rows_differ = self.layout in (ColumnLayout.RAGGED, ColumnLayout.TILED)
        return rows_differ and (self.unknown_dims > 1 or not self.known_elements)


class _Type(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all column types, for `isinstance`."""


class Scalar(_Type, frozen=True, tag="scalar"):
    """One number or bool per row."""

    dtype: str

    def __post_init__(self) -> None:
        _set(self, "dtype", dtype_name(self.dtype))


class Tensor(_Type, frozen=True, tag="tensor"):
    """One array per row. A dimension of None differs from row to row.

    `dtype` may be given as numpy's dtype or class; `shape` as any sequence. With `tile`, the shape
    of a block with as many dimensions, each row is cut into blocks that can be read one by one.
    """

    dtype: str
    shape: tuple[int | None, ...]
    tile: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _set(self, "dtype", dtype_name(self.dtype))
        _set(self, "shape", _check_shape(self.shape))
        if self.tile is not None:
            _set(self, "tile", _check_tile(self.tile, self.shape))


class Embedding(_Type, frozen=True, tag="embedding"):
    """One vector of `dim` numbers per row."""

    dtype: str
    dim: int

    def __post_init__(self) -> None:
        _set(self, "dtype", dtype_name(self.dtype))
        _check_shape((self.dim,))
        if not self.dim:
            raise InvalidInputError("an embedding has at least 1 dimension")


class Image(_Type, frozen=True, tag="image"):
    """The encoded bytes of a picture, as they came. `codec` is "png", "jpeg", ...; None: mixed.

    With `progressive`, JPEGs that are written are stored as scans from coarse to fine, so that
    small pictures are decoded from a part of their bytes; they are read as the files that came.
    With "beside", files are stored as they came and the coarse scans once more beside them: reading
    whole files costs nothing, storing them a third more.
    """

    codec: str | None = None
    progressive: bool | Literal["beside"] = False


class Bytes(_Type, frozen=True, tag="bytes", omit_defaults=True):
    """Any bytes; with a `size`, exactly so many in each row."""

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not 1 <= self.size <= MAX_FIXED_BYTES:
            raise InvalidInputError(f"bytes of fixed size have 1 to 2^31 - 1, got {self.size}")


class Text(_Type, frozen=True, tag="text"):
    """Unicode text, stored as UTF-8."""


class Json(_Type, frozen=True, tag="json"):
    """Any JSON value, stored as compact UTF-8 text."""


class Link(_Type, frozen=True, tag="link"):
    """Data that stays where it is: a `LinkValue` per row, stored as compact JSON."""


class ClassLabel(_Type, frozen=True, tag="class_label"):
    """The number of a class, int64 in ``[0, len(names))``. Names are accepted when writing."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        _set(self, "names", tuple(self.names))
        if not all(isinstance(name, str) for name in self.names):
            raise InvalidInputError(f"class names are text, got {self.names!r:.80}")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InvalidInputError(f"class {twice!r} is named twice")


TimeUnit = Literal["s", "ms", "us", "ns"]


class Timestamp(_Type, frozen=True, tag="timestamp"):
    """A moment, int64 counts of `unit` since 1970. With a `zone` it is UTC, shown in that zone."""

    unit: TimeUnit = "us"
    zone: str | None = None

    def __post_init__(self) -> None:
        _check_unit("timestamp", self.unit)


class Date(_Type, frozen=True, tag="date"):
    """A day of the calendar, int32 days since 1970-01-01."""


class Time(_Type, frozen=True, tag="time"):
    """A time of day, counts of `unit` since midnight: int32 of s and ms, int64 of us and ns."""

    unit: TimeUnit = "us"

    def __post_init__(self) -> None:
        _check_unit("time", self.unit)


class Duration(_Type, frozen=True, tag="duration"):
    """A span of time, int64 counts of `unit`."""

    unit: TimeUnit = "us"

    def __post_init__(self) -> None:
        _check_unit("duration", self.unit)


class Decimal(_Type, frozen=True, tag="decimal"):
    """An exact number of at most `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= MAX_DIGITS and 0 <= self.scale <= self.precision):
            raise InvalidInputError(
                f"a decimal has 1 to {MAX_DIGITS} digits, and 0 to as many behind the point; got "
                f"precision {self.precision}, scale {self.scale}"
            )


class Null(_Type, frozen=True, tag="null"):
    """Nothing but nulls: the column of a source that had no value to tell a type by."""


class List(_Type, frozen=True, tag="list", omit_defaults=True):
    """A list of values of one type per row, any of them null; with a `size`, exactly so many.

    For numbers without nulls `Tensor(dtype, (None,))` reads faster, as arrays.
    """

    value: ColumnType
    size: int | None = None

    def __post_init__(self) -> None:
        _set(self, "value", _inner("a list", self.value))
        if self.size is not None and not 1 <= self.size <= MAX_FIXED_BYTES:
            raise InvalidInputError(f"a list of fixed size has 1 to 2^31 - 1 values: {self.size}")


class Struct(_Type, frozen=True, tag="struct"):
    """A value for each of several names per row, any of them null.

    `fields` may be given as a mapping: ``Struct({"x": "float64", "tags": List(Text())})``.
    """

    fields: tuple[tuple[str, ColumnType], ...]

    def __post_init__(self) -> None:
        given = self.fields.items() if isinstance(self.fields, Mapping) else self.fields
        fields = tuple((name, _inner(f"field {name!r}", kind)) for name, kind in given)
        _set(self, "fields", fields)
        names = [name for name, _ in fields]
        if not names or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
            raise InvalidInputError(f"a struct has fields of different names, got {names!r:.120}")


class Map(_Type, frozen=True, tag="map"):
    """Any number of pairs of a key, which is never null, and a value per row."""

    key: ColumnType
    value: ColumnType

    def __post_init__(self) -> None:
        _set(self, "key", _inner("a map's key", self.key))
        _set(self, "value", _inner("a map's value", self.value))


ColumnType = (
    Scalar | Tensor | Embedding | Image | Bytes | Text | Json | Link | ClassLabel | Timestamp
    | Date | Time | Duration | Decimal | Null | List | Struct | Map
)  # fmt: skip
Nested = List | Struct | Map
# What values inside of a nested value may be.
Inner = Scalar | Bytes | Text | Timestamp | Date | Time | Duration | Decimal | Null | Nested
# What people may write where a column type is asked for: "int64", np.float32, Tensor(...).
TypeLike = ColumnType | DTypeLike


def as_type(given: TypeLike) -> ColumnType:
    """`given` as a column type; the name of an element type stands for a scalar."""
    if isinstance(given, _Type):
        return given
    return Scalar(dtype_name(given))


def is_type(given: object) -> bool:
    """Whether `as_type` takes it for a type; a column of values is none."""
    if isinstance(given, _Type):
        return True
    try:
        return isinstance(given, str | type | np.dtype) and bool(dtype_name(given))
    except InvalidInputError:
        return False


def storage_of(column_type: ColumnType) -> Storage:
    """How rows of this type are stored."""
    match column_type:
        case Scalar(dtype=dtype):
            return Storage(ColumnLayout.FIXED, dtype, ())
        case Tensor(dtype=dtype, shape=shape, tile=tuple(tile)):
            return Storage(ColumnLayout.TILED, dtype, shape, tile)
        case Tensor(dtype=dtype, shape=shape):
            return Storage(
                ColumnLayout.RAGGED if None in shape else ColumnLayout.FIXED, dtype, shape
            )
        case Embedding(dtype=dtype, dim=dim):
            return Storage(ColumnLayout.FIXED, dtype, (dim,))
        case ClassLabel() | Timestamp() | Duration() | Date() | Time() | Decimal():
            return _number_storage(column_type)
        case Null():
            return Storage(ColumnLayout.FIXED, "bool", ())
        case _:
            return Storage(ColumnLayout.BINARY, "uint8", ())


def _number_storage(column_type: ColumnType) -> Storage:
    """How types that are a number of another meaning are stored."""
    match column_type:
        case Date() | Time(unit="s") | Time(unit="ms"):
            return Storage(ColumnLayout.FIXED, "int32", ())
        case Decimal(precision=precision) if precision > INT64_DIGITS:
            return Storage(ColumnLayout.FIXED, "uint64", (2 if precision <= 38 else 4,))
    return Storage(ColumnLayout.FIXED, "int64", ())


def type_to_json(column_type: ColumnType) -> dict[str, Any]:
    """The JSON form: ``{"type": "tensor", "dtype": "float32", "shape": [28, None]}``."""
    form: dict[str, Any] = msgspec.to_builtins(column_type)
    if form.get("tile", ...) is None:
        del form["tile"]
    if form.get("progressive") is False:
        del form["progressive"]
    return form


def type_from_json(form: object) -> ColumnType:
    """The column type that `type_to_json` wrote.

    Raises:
        UnsupportedError: a type that this version does not know.
        InvalidInputError: not the form of a type.
    """
    _check_tags(form, 0)
    try:
        found: ColumnType = from_plain(form, ColumnType)  # type: ignore[arg-type]  # a union
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not a column type: {error}") from error
    return found


def _check_tags(form: object, depth: int) -> None:
    """That all types inside of a JSON form are known ones, and that they are not too deep."""
    if depth > 2 * MAX_DEPTH:  # the fields of a struct are a level of their own
        raise InvalidInputError(f"a column type has at most {MAX_DEPTH} types one in the other")
    if isinstance(form, list):
        for each in form:
            _check_tags(each, depth + 1)
    elif isinstance(form, dict):
        tag = form.get("type")
        if isinstance(tag, str) and tag not in _TAGS:
            raise UnsupportedError(f"column type {tag!r} is unknown here. Update tensorrepo.")
        for name in ("value", "key", "fields"):
            _check_tags(form.get(name), depth + 1)


def _inner(where: str, given: Any) -> ColumnType:
    """`given` as the type of values inside of others."""
    kind = as_type(given)
    if not isinstance(kind, Inner):
        tag = kind.__struct_config__.tag
        raise InvalidInputError(
            f"{where} cannot be {tag}: inside of others are numbers, text, bytes, dates, times, "
            "durations, decimals, lists, structs and maps"
        )
    if isinstance(kind, Scalar) and kind.dtype not in _ARROW_NUMBERS:
        raise InvalidInputError(f"{where} cannot be {kind.dtype}: Arrow has no such number")
    if nesting(kind) >= MAX_DEPTH:
        raise InvalidInputError(f"a column type has at most {MAX_DEPTH} types one in the other")
    return kind


def nesting(kind: ColumnType) -> int:
    """How many types stand one in the other: 1 of a number, 2 of a list of numbers."""
    return 1 + max(map(nesting, _inside(kind)), default=0)


def _inside(kind: ColumnType) -> tuple[ColumnType, ...]:
    match kind:
        case List(value=value):
            return (value,)
        case Struct(fields=fields):
            return tuple(each for _, each in fields)
        case Map(key=key, value=value):
            return key, value
    return ()


def check_zones(kind: ColumnType, name: str) -> None:
    """See that this machine knows the zones of moments that a new column holds.

    Stored columns are not asked: their counts are read without the zone.

    Raises:
        InvalidInputError: names the column and the zone.
    """
    for each in _inside(kind):
        check_zones(each, name)
    zone = kind.zone if isinstance(kind, Timestamp) else None
    if zone is not None and not _is_zone(zone):
        raise InvalidInputError(
            f"column {name!r}: no time zone {zone!r} is known; expected a name of the tz database, "
            "such as Europe/Berlin or UTC, or an offset such as +02:00"
        )


def _is_zone(zone: str) -> bool:
    if _OFFSET.fullmatch(zone):
        return True
    try:
        ZoneInfo(zone)
    except (LookupError, ValueError, OSError):
        return not available_timezones()  # no database here: nobody knows
    return True


def _check_unit(what: str, unit: str) -> None:
    if unit not in ("s", "ms", "us", "ns"):
        raise InvalidInputError(f"a {what}'s unit is s, ms, us or ns, got {unit!r}")


def _check_shape(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    dims = tuple(dim if dim is None else int(dim) for dim in shape)
    if len(dims) > MAX_DIMS:
        raise InvalidInputError(f"a shape has at most {MAX_DIMS} dimensions, got {len(dims)}")
    for dim in dims:
        if dim is not None and not 0 <= dim <= MAX_DIM:
            raise InvalidInputError(f"dimensions are in [0, {MAX_DIM}], got {dims}")
    return dims


def _check_tile(tile: Sequence[int], shape: tuple[int | None, ...]) -> tuple[int, ...]:
    dims = tuple(int(dim) for dim in tile)
    if not dims or len(dims) != len(shape) or not all(1 <= dim <= MAX_DIM for dim in dims):
        raise InvalidInputError(f"a tile has a size of 1 or more per dimension of {shape}: {tile}")
    return dims


def _set(struct: _Type, name: str, value: object) -> None:
    msgspec.structs.force_setattr(struct, name, value)


_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ColumnType))


MAX_URL_BYTES = 1 << 16
_MAX_INT = (1 << 63) - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class LinkValue(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes ``[start, stop)`` of what lies at `url`; `stop` None: to its end.

    Attributes:
        size: bytes of the whole object at `url`, not of the range.
        etag: what its server called that version, as it came, quotes included.
        hash: hash of the bytes in the range, ``<algorithm>:<hex>``.
    """

    url: str
    start: int = 0
    stop: int | None = None
    size: int | None = None
    etag: str | None = None
    hash: str | None = None

    def __post_init__(self) -> None:
        for name in ("url", "etag", "hash"):
            _check_text(name, getattr(self, name), optional=name != "url")
        for name in ("start", "stop", "size"):
            _check_count(name, getattr(self, name), optional=name != "start")
        if self.stop is not None and self.stop < self.start:
            raise InvalidInputError(f"a link needs start <= stop, got [{self.start}, {self.stop})")


def as_link(given: Any) -> LinkValue:
    """A link given as such, as a mapping of its fields, as its JSON, or as a bare URL.

    Raises:
        InvalidInputError: none of these.
    """
    if isinstance(given, LinkValue):
        return given
    try:
        if isinstance(given, str) and not given.startswith("{"):
            return LinkValue(given)
        if isinstance(given, str):
            return decode_link(given.encode())
        return from_plain(given, LinkValue)
    except (ValueError, InvalidInputError) as error:
        raise InvalidInputError(f"not a link: {error}") from error


def encode_link(link: LinkValue) -> bytes:
    """Compact JSON, fields in the order of the class, those that have their default left out."""
    return msgspec.json.encode(link)


def decode_link(encoded: bytes | memoryview) -> LinkValue:
    """The link that `encode_link` wrote.

    Raises:
        ValueError: not the JSON of a link.
    """
    return from_json(encoded, LinkValue)


def _check_text(name: str, text: object, *, optional: bool) -> None:
    if text is None and optional:
        return
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"a link's {name} is text, got {text!r:.80}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"a link's {name} is not valid unicode: {text!r:.80}") from error
    if size > MAX_URL_BYTES or _CONTROL.search(text):
        raise InvalidInputError(
            f"a link's {name} has at most {MAX_URL_BYTES} bytes and no control characters, "
            f"got {text!r:.80}"
        )


def _check_count(name: str, count: object, *, optional: bool) -> None:
    if count is None and optional:
        return
    if type(count) is not int or not 0 <= count <= _MAX_INT:
        raise InvalidInputError(f"a link's {name} is in [0, 2^63), got {count!r:.80}")
