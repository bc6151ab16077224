"""Foreign files: records of files that were adopted in place, and rows read from them.

An object of kind FOREIGN says where the file lies, which version of it is meant, and how rows of
columns are found in it: as byte ranges, or row groups of Parquet. Its payload is msgpack.

Such rows have no checksums: they are as good as the proof that the file is still the one that was
adopted. That proof is its size and its etag, or its hash. It is made once per file and reader;
every later read must be of the same version.

Source:
    docs/spec/foreign.md, section "The object".
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import LITERALS
from tensorrepo.formats.common.dtypes import Ints, element_dtype
from tensorrepo.formats.dataset.external.outside import Outside, Stat, hide_secrets
from tensorrepo.formats.dataset.external.outside_read import OutsideFile
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, PAGE_FOREIGN
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ColumnLayout,
    ColumnType,
    Storage,
    type_from_json,
    type_to_json,
)
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, binary_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.hashing.digests import plain_hasher
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSource
from tensorrepo.repo.ranges import join_ranges
from tensorrepo.repo.threads import ordered_map
from tensorrepo.repo.typed_decoding import from_msgpack

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
        version = from_msgpack(payload, _Version).version
        if version != VERSION:
            raise UnsupportedError(
                f"{what}: version {version}, this tensorrepo reads {VERSION}. Update it."
            )
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


def array_range(place: ArrayPlace, first: int, rows: int, size: int) -> tuple[int, int]:
    """Which bytes of a file of `size` bytes hold rows ``[first, first + rows)``.

    Raises:
        CorruptError: the array has no such rows, or the file no such bytes.
    """
    item = _element(place).itemsize * prod(place.shape)
    start = place.start + first * place.stride
    stop = place.start + (first + rows - 1) * place.stride + item
    if not 1 <= item <= place.stride or first + rows > place.rows or stop > size:
        raise CorruptError(
            f"rows [{first}, {first + rows}) of {place.rows} lie at bytes [{start}, {stop}), "
            f"the file has {size}"
        )
    return start, stop


def array_values(place: ArrayPlace, data: memoryview, rows: int) -> FixedValues:
    """The rows in the bytes of `array_range`: a view where they are stored as we store them."""
    element = _element(place)
    stored = element.newbyteorder(">") if place.big_endian else element
    inner = [stored.itemsize * prod(place.shape[at + 1 :]) for at in range(len(place.shape))]
    array: NDArray[Any] = np.ndarray(
        (rows, *place.shape), stored, data, strides=(place.stride, *inner)
    )
    if element.kind == "b":
        return FixedValues(np.not_equal(array.view(np.uint8), 0))
    return FixedValues(np.ascontiguousarray(array.astype(element, copy=False)))


def _element(place: ArrayPlace) -> np.dtype[Any]:
    try:
        return element_dtype(place.dtype)
    except InvalidInputError as error:
        raise CorruptError(f"foreign object: {error}") from error


def member_values(
    place: MembersPlace | InlinePlace, members: list[bytes | None], first: int
) -> ColumnValues:
    """Rows that are small files of their own.

    None is null; `first` is the number of the first row, for errors.

    Raises:
        CorruptError: a member holds something else.
    """
    column = place.column()
    if place.content == "bytes" and column.storage.layout is ColumnLayout.BINARY:
        return binary_of(members)
    values = [
        None if member is None else _understood(place.content, member, first + at)
        for at, member in enumerate(members)
    ]
    try:
        return coerce_column(column, values, first)
    except InvalidInputError as error:
        raise CorruptError(str(error)) from error


def _understood(content: str, member: bytes, row: int) -> Any:
    try:
        match content:
            case "text":
                return member.decode()
            case "json":
                return json.loads(member, parse_constant=_refuse_constant)
            case "number":
                return int(member)
            case "npy":
                return _npy(member)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"row {row} holds no {content}: {error}") from error
    raise CorruptError(f"foreign object: members that hold {content!r:.40}")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _npy(member: bytes) -> NDArray[Any]:
    """The array of an npy file, whose header is believed only as far as its bytes go."""
    stream = io.BytesIO(member)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an npy file of version {version}")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    with LITERALS:
        shape, fortran, dtype = read(stream)
    rest = memoryview(member)[stream.tell() :]
    if dtype.hasobject or prod(shape) * dtype.itemsize != rest.nbytes:
        raise ValueError(f"{rest.nbytes} bytes for an array of {dtype} and shape {shape}")
    array = np.frombuffer(rest, dtype)
    array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    return array.astype(dtype.newbyteorder("<"), copy=False)


# How pyarrow says that bytes are wrong. A lying length fails as an allocation.
_DAMAGED = (pa.ArrowException, ValueError, OverflowError, MemoryError, OSError, KeyError)


def read_metadata(file: OutsideFile, where: str) -> Any:
    """The footer of a Parquet file, as pyarrow's FileMetaData.

    Raises:
        CorruptError: it is no Parquet file, or a damaged one.
    """
    import pyarrow.parquet as pq  # takes 30 ms, and few datasets need it

    with _damage(where):
        return pq.ParquetFile(file, page_checksum_verification=True).metadata


def read_group(
    file: OutsideFile, metadata: Any, group: int, rows: int, place: TablePlace, where: str
) -> ColumnValues:
    """One column of one row group; only its bytes are read.

    `metadata` is the footer, from `read_metadata`; `where` names the file in errors.

    Raises:
        CorruptError: there is no such field or row group, it has other rows, or it is damaged.
    """
    import pyarrow.parquet as pq

    if group >= metadata.num_row_groups or metadata.row_group(group).num_rows != rows:
        raise CorruptError(f"{where} has no row group {group} of {rows} rows")
    with _damage(f"{where}, row group {group}, field {place.field!r}"):
        # Without buffering ahead: its threads and Python's wait for each other when it fails.
        opened = pq.ParquetFile(
            file, metadata=metadata, pre_buffer=False, page_checksum_verification=True
        )
        table = opened.read_row_group(group, columns=[place.field], use_threads=False)
        array = table.column(place.field).combine_chunks()
        # Offsets that point outside their buffer would crash whoever follows them.
        array.validate(full=True)
        return coerce_column(place.column(), converted(array, place.content))


def converted(array: pa.Array, content: str) -> pa.Array:
    """The array that a column of our types takes."""
    if content == "labels":  # a missing label is -1
        array = array.cast(pa.int64())
        return pc.if_else(pc.less(array, 0), None, array)
    if content == "image":
        return pc.struct_field(array, "bytes")
    if content != "plain":
        raise CorruptError(f"foreign object: a field of kind {content!r:.40}")
    return array


@contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError as error:
        raise CorruptError(f"{where}: {error}") from error
    except Error:
        raise
    except _DAMAGED as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptError(f"{where} cannot be read: {line}") from error


HASH_STEP_BYTES = 8 << 20
READ_THREADS = 8
_REMEMBERED = 64  # objects, and footers of Parquet files
_KNOWN_VERSIONS = 1 << 16  # files that were looked at


class ForeignReader:
    """Reads pages that are rows of foreign files. Thread-safe."""

    def __init__(self, objects: ObjectSource, outside: Outside) -> None:
        self._objects = objects
        self._outside = outside
        self._files = LimitedCache[tuple[ForeignFile, Any]](_REMEMBERED)
        self._versions = LimitedCache[Stat](_KNOWN_VERSIONS)
        self._hashing = Lock()

    def read(self, link: ObjectLink, column_id: str, entry: Any, storage: Storage) -> ColumnValues:
        """All rows of one page.

        `link` is that of the FOREIGN object, `entry` a PAGE_ENTRY record of codec PAGE_FOREIGN.

        Raises:
            PermissionDenied: the file is under no allowed prefix.
            NotFoundError: it is gone.
            CorruptError: it has changed, or does not hold what the entry says.
        """
        file, _ = self._described(link)
        place = file.columns.get(column_id)
        if place is None:
            raise CorruptError(f"object {link.digest:.12} knows nothing of column {column_id}")
        column = place.column()
        if column.storage != storage:
            raise CorruptError(f"object {link.digest:.12} has {column.storage}, not {storage}")
        first, rows = int(entry["offset"]), int(entry["rows"])
        try:
            values = self._values(link, file, place, first, rows)
        except CorruptError as error:
            where = hide_secrets(file.url)
            text = str(error)
            raise CorruptError(text if where in text else f"{where}: {text}") from error
        nulls = 0 if values.valid is None else values.rows - int(np.count_nonzero(values.valid))
        if values.rows != rows or nulls != int(entry["nulls"]):
            raise CorruptError(
                f"{hide_secrets(file.url)}: expected {rows} rows with {int(entry['nulls'])} nulls, "
                f"found {values.rows} with {nulls}"
            )
        return values

    def check(self, file: ForeignFile) -> Stat:
        """The version of the file that is there, which is the one that was adopted.

        Raises:
            CorruptError: it has changed; says expected and found.
        """
        key = (file.url, file.size, file.etag, file.hash)
        # Once for all threads that read it: all of the file may have to be hashed.
        return self._versions.get_or_load(key, lambda: (self._proved(file), 1))

    # -------------------------------------------------------------------------- one page

    def _values(
        self, link: ObjectLink, file: ForeignFile, place: ForeignPlace, first: int, rows: int
    ) -> ColumnValues:
        if isinstance(place, ArrayPlace):
            start, stop = array_range(place, first, rows, file.size)
            data = self._outside.read(file.url, start, stop, self.check(file))
            return array_values(place, data, rows)
        if isinstance(place, MembersPlace):
            return member_values(place, self._members(file, place, first, rows), first)
        if isinstance(place, InlinePlace):
            members = place.rows()[first : first + rows]
            if len(members) != rows:
                raise CorruptError(f"no values for rows [{first}, {first + rows})")
            return member_values(place, members, first)
        source, where = (
            OutsideFile(self._outside, file.url, self.check(file)),
            hide_secrets(file.url),
        )
        _, metadata = self._described(link)
        if metadata is None:
            metadata = read_metadata(source, where)
            self._files.drop(link.digest)
            self._files.put(link.digest, (file, metadata), 1)
        return read_group(source, metadata, first, rows, place, where)

    def _members(
        self, file: ForeignFile, place: MembersPlace, first: int, rows: int
    ) -> list[bytes | None]:
        starts, ends = place.bounds()
        starts, ends = starts[first : first + rows], ends[first : first + rows]
        if len(starts) != rows or int((ends - starts).sum()) > file.size:
            raise CorruptError(f"no members for rows [{first}, {first + rows})")
        there = np.flatnonzero(starts)
        bounds = list(zip(starts[there].tolist(), ends[there].tolist(), strict=True))
        joined = join_ranges(bounds)
        version = self.check(file)
        pieces = ordered_map(
            joined,
            lambda one: self._outside.read(file.url, one.start, one.stop, version),
            threads=READ_THREADS if len(joined) > 1 else 0,
            name="foreign",
        )
        members: list[bytes | None] = [None] * rows
        for one, piece in zip(joined, pieces, strict=True):
            for member in one.members:
                start, stop = bounds[member]
                members[int(there[member])] = bytes(piece[start - one.start : stop - one.start])
        return members

    # -------------------------------------------------------------------------- one file

    def _described(self, link: ObjectLink) -> tuple[ForeignFile, Any]:
        """The object, parsed, and the footer of its file where one was read already."""
        known = self._files.get(link.digest)
        if known is not None:
            return known
        envelope = self._objects.get(link.digest)
        if envelope.kind is not Kind.FOREIGN:
            raise CorruptError(f"object {link.digest:.12} is a {envelope.kind.label}, no file")
        file = decode_foreign(envelope.payload, f"object {link.digest:.12}")
        self._files.put(link.digest, (file, None), 1)
        return file, None

    def _proved(self, file: ForeignFile) -> Stat:
        found = self._outside.stat(file.url)
        if found.size != file.size:
            raise _changed(file, f"expected {file.size} bytes, found {found.size}")
        if file.etag is not None and found.etag == file.etag:
            return found
        if not file.hash:
            raise _changed(file, f"expected version {file.etag}, found {found.etag}")
        with self._hashing:
            digest = hash_outside(self._outside, file.url, found)
        if digest != file.hash:
            raise _changed(file, f"expected BLAKE3 {file.hash.hex():.16}, found {digest.hex():.16}")
        return found


def hash_outside(
    outside: Outside, url: str, version: Stat, progress: Callable[[int], None] = lambda _: None
) -> bytes:
    """The plain BLAKE3 of all that lies at `url`; `progress` is told the bytes done so far."""
    hasher = plain_hasher()
    for start in range(0, version.size, HASH_STEP_BYTES):
        stop = min(version.size, start + HASH_STEP_BYTES)
        hasher.update(outside.read(url, start, stop, version))
        progress(stop)
    return hasher.digest()


def _changed(file: ForeignFile, what: str) -> CorruptError:
    return CorruptError(
        f"{hide_secrets(file.url)} has changed since it was adopted: {what}. Put the old file back "
        "(a copy with other times will do if its hash was kept), or adopt the new one."
    )


@dataclass(frozen=True, slots=True)
class ForeignVersion:
    """A file that a dataset needs and does not carry. `hashed`: a copy of it will do."""

    url: str
    format: str
    size: int
    etag: str | None
    hashed: bool


def foreign_files(objects: ObjectSource, dataset: Digest) -> Iterator[ForeignVersion]:
    """The files outside the repository that a dataset needs, each once, in no order.

    Only metadata is read.
    """
    waiting, seen = [dataset], {dataset}
    told: set[ForeignVersion] = set()
    while waiting:
        digest = waiting.pop()
        envelope = objects.get(digest)
        if envelope.kind is Kind.FOREIGN:
            file = decode_foreign(envelope.payload, f"object {digest:.12}")
            found = ForeignVersion(file.url, file.format, file.size, file.etag, bool(file.hash))
            if found not in told:
                told.add(found)
                yield found
        for link in envelope.links:
            # What links to nothing is no structure; of that only foreign files are of interest.
            if link.digest not in seen and (not link.leaf or link.kind is Kind.FOREIGN):
                seen.add(link.digest)
                waiting.append(link.digest)
