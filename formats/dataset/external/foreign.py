"""Foreign files: records of files that were adopted in place.

An object of kind FOREIGN says where the file lies, which version of it is meant, and how rows of
columns are found in it. Its payload is msgpack.

Source:
    docs/spec/foreign.md, section "The object".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, PAGE_FOREIGN
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnType, type_from_json, type_to_json
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.ids import Buffer

VERSION = 1
HASH_BYTES = 32
FORMATS = ("parquet", "tar", "npy", "safetensors")
MAX_INT = (1 << 63) - 1


class _Place(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Where one column's rows are. `type` is its type's JSON form."""

    type: dict[str, Any]
    nullable: bool

    def column(self) -> Column:
        """The column as it was when the file was adopted; its name is of no importance."""
        try:
            return Column("foreign", type_from_json(self.type), self.nullable)
        except Error as error:
            raise CorruptError(f"foreign object: {error}") from error


class ArrayPlace(_Place, frozen=True, tag="array"):
    """Rows at equal distances: row i has ``shape`` elements from byte ``start + i * stride``."""

    start: int
    stride: int
    rows: int
    dtype: str
    shape: list[int]
    big_endian: bool = False


class MembersPlace(_Place, frozen=True, tag="members"):
    """Rows that are members of a tar file.

    `starts` and `lengths` are u64, one per row, of the members' bytes; a start of 0 is null.
    `content` is what a member holds: see `InlinePlace`.
    """

    content: str
    starts: bytes
    lengths: bytes

    def bounds(self) -> tuple[Ints, Ints]:
        """Where each member begins and ends."""
        starts = np.frombuffer(self.starts, "<i8")
        return starts, starts + np.frombuffer(self.lengths, "<i8")


class InlinePlace(_Place, frozen=True, tag="inline"):
    """Rows so small that they stand in the object itself, one after the other in `data`.

    `lengths` are u64, one per row, 2^64 - 1 for null. `content` is what the bytes of a row are:
    "bytes", "text", "json", "number" (digits) or "npy" (a file of that kind).
    """

    content: str
    lengths: bytes
    data: bytes

    def rows(self) -> list[bytes | None]:
        """The bytes of all rows, None for null."""
        lengths = np.frombuffer(self.lengths, "<i8")
        ends = np.cumsum(np.maximum(lengths, 0)).tolist()
        return [
            None if length < 0 else self.data[end - length : end]
            for length, end in zip(lengths.tolist(), ends, strict=True)
        ]


class TablePlace(_Place, frozen=True, tag="table"):
    """A field of a Parquet file.

    `content` is "plain", "labels" (numbers, those below 0 null) or "image" (a struct whose field
    "bytes" holds it).
    """

    field: str
    content: str = "plain"


ForeignPlace = ArrayPlace | MembersPlace | InlinePlace | TablePlace


class ForeignFile(msgspec.Struct, frozen=True, omit_defaults=False):
    """One version of one file, and columns in it by their ids.

    `hash` is the file's plain BLAKE3, empty if nobody computed it. A file is the same if it has
    `size` and `etag`, or `size` and `hash`.
    """

    version: int
    format: str
    url: str
    size: int
    etag: str | None
    hash: bytes
    columns: dict[str, ForeignPlace]


_DECODER = msgspec.msgpack.Decoder(ForeignFile)


def encode_foreign(file: ForeignFile) -> bytes:
    """The payload of a FOREIGN object."""
    return msgspec.msgpack.encode(file)


def decode_foreign(payload: Buffer, what: str) -> ForeignFile:
    """Parse the payload of a FOREIGN object. `what` names it in errors.

    Raises:
        CorruptError: not such a payload.
        UnsupportedError: a version or format that this version does not know.
    """
    try:
        version = msgspec.msgpack.decode(payload, type=_Version).version
        if version != VERSION:
            raise UnsupportedError(f"{what}: version {version}; this tensorrepo reads {VERSION}.")
        file = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{what} does not describe a file: {error}") from error
    if file.format not in FORMATS:
        raise UnsupportedError(f"{what}: format {file.format!r:.40} is unknown here. Update.")
    if not 0 <= file.size <= MAX_INT or len(file.hash) not in (0, HASH_BYTES):
        raise CorruptError(f"{what} does not describe a file: its size or its hash")
    for place in file.columns.values():
        _check(place, file.size, what)
    return file


class _Version(msgspec.Struct):
    version: int


def _check(place: ForeignPlace, size: int, what: str) -> None:
    """Refuse places that the file cannot hold: reading allocates what they say."""
    if isinstance(place, ArrayPlace):
        numbers = (place.start, place.stride, place.rows, *place.shape)
        if not all(0 <= number <= MAX_INT for number in numbers) or place.rows > size + 1:
            raise CorruptError(f"{what}: an array at an impossible place")
    elif isinstance(place, MembersPlace):
        if len(place.starts) != len(place.lengths) or len(place.starts) % 8:
            raise CorruptError(f"{what}: its members are not all described")
        starts, ends = place.bounds()
        # Larger numbers wrap around to negative ones.
        if (starts < 0).any() or (ends < starts).any() or int(ends.max(initial=0)) > size:
            raise CorruptError(f"{what}: a member lies outside the file's {size} bytes")
    elif isinstance(place, InlinePlace):
        lengths = np.frombuffer(place.lengths[: len(place.lengths) // 8 * 8], "<i8")
        if len(place.lengths) % 8 or (lengths < -1).any() or (lengths > len(place.data)).any():
            raise CorruptError(f"{what}: its rows are not all described")
        if int(np.maximum(lengths, 0).sum()) != len(place.data):
            raise CorruptError(f"{what}: its rows have other lengths than their bytes")


def place_type(column_type: ColumnType) -> dict[str, Any]:
    """The form in which places keep a type."""
    return type_to_json(column_type)


def foreign_entries(
    first_rows: Sequence[int] | NDArray[Any],
    rows: Sequence[int] | NDArray[Any],
    offset: Sequence[int] | NDArray[Any],
    stored_bytes: Sequence[int] | NDArray[Any],
    raw_bytes: Sequence[int] | NDArray[Any],
    nulls: Sequence[int] | NDArray[Any],
) -> NDArray[Any]:
    """PAGE_ENTRY records of pages that are rows of a foreign file, one column's in one fragment."""
    entries = np.zeros(len(rows), PAGE_ENTRY)
    entries["first_row"], entries["rows"], entries["offset"] = first_rows, rows, offset
    entries["stored_bytes"], entries["raw_bytes"] = stored_bytes, raw_bytes
    entries["nulls"], entries["codec"] = nulls, PAGE_FOREIGN
    return entries
