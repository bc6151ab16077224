"""LMDB files: B+tree walk, plain keys and values, and Caffe's datums.

LMDB itself maps the file and follows whatever page numbers are in it: a damaged or hostile file
ends the process. Here the B+tree is walked in Python with every number checked, through plain
reads; nothing locks, and nothing writes.

Layout of a page: number u64 | pad u16 | flags u16 | lower u16 | upper u16 (of large values: pages
u32), then of branches and leaves the places of nodes u16. A node: low u16 | high u16 | flags u16 |
key bytes u16 | key | value. Pages 0 and 1 hold what the last two transactions left.

Rows come in the order of keys. What values are is told by the first of them: Caffe's `Datum`s
become columns `image` and `label`, images stay images, anything else is bytes; options `key` and
`value` say it outright.

Source:
    libraries/liblmdb/mdb.c of OpenLDAP, LMDB 0.9: MDB_page, MDB_node, MDB_meta, MDB_db.
    Datum: src/caffe/proto/caffe.proto of Caffe 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnBatch,
    ColumnType,
    Image,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.base import Candidate, ImportOrigin, OpenedSource, file_bytes
from tensorrepo.formats.exchange.records.samples import (
    SAMPLES,
    SampleRecord,
    array_type,
    batches_of,
    check_array,
    check_image,
    check_text,
    image_type,
    is_text,
    parse_message,
    read_exactly,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

DATA_FILE = "data.mdb"
MAGIC = 0xBEEFC0DE
MAGIC_AT = 16
_VERSION = 1
_PAGE = Struct("<QHHHH")
_OVERFLOW = Struct("<12xI")
_NODE = Struct("<HHHH")
_META = Struct("<IIQQ")
_DATABASE = Struct("<IHHQQQQQ")
_TAIL = Struct("<QQ")  # last page, transaction
assert (_PAGE.size, _NODE.size, _DATABASE.size) == (16, 8, 48)
_BRANCH, _LEAF, _LARGE = 0x01, 0x02, 0x04
_BIG_DATA, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_SORTS_DUPLICATES = 0x04
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32
_PAGE_BYTES = frozenset(1 << power for power in range(8, 17))


@dataclass(frozen=True, slots=True)
class Database:
    """One B+tree of a file: how many entries it says it has, and its root page."""

    name: str
    entries: int
    root: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Tree:
    """An open file: its pages, as far as the file goes."""

    stream: IO[bytes]
    where: str
    page_bytes: int
    pages: int

    def page(self, number: int, flag: int) -> bytes:
        """One page, checked to be that one and of that kind."""
        if not 2 <= number < self.pages:
            raise damage(self.where, f"refers to page {number}; it has {self.pages} pages")
        self.stream.seek(number * self.page_bytes)
        page = read_exactly(self.stream, self.page_bytes, f"{self.where}, page {number}")
        found, _, flags, _, _ = _PAGE.unpack_from(page)
        if found != number or not flags & flag:
            raise damage(
                self.where, f"page {number} is damaged: it says {found} with flags {flags:#x}"
            )
        return page


def find_database(file: Path, name: str | None) -> Database:
    """The database of this name in a file, by default the unnamed one.

    Raises:
        NotFoundError: none of that name; says which there are.
        InvalidInputError: not an LMDB file, or a damaged one.
        UnsupportedError: a key of it may have several values.
    """
    with refusals(file, "LMDB file"), file.open("rb") as stream:
        tree, main = _open(stream, str(file))
        found: dict[str, bytes] = {}
        for flags, key, value in _nodes(tree, main):
            if not flags & _SUB_DATABASE:
                if name is None:
                    return main
                continue
            found[key.decode("utf-8", "replace")] = value
    there = ", ".join(map(repr, sorted(found))) or "only the one without a name"
    if name is None and not found:
        return main
    if name is None:
        raise damage(file, f"holds several databases: {there}. Choose one: database=...")
    if name not in found:
        raise NotFoundError(f"{file}: holds no database {name!r}; there are {there}")
    return _database(name, found[name], 0, f"{file}, database {name!r}")


def walk_entries(file: Path, database: Database) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each entry, in the order of keys.

    Raises:
        InvalidInputError: a damaged file, or another number of entries than it says.
    """
    seen = 0
    with refusals(file, "LMDB file"), file.open("rb") as stream:
        tree, _ = _open(stream, str(file))
        for flags, key, value in _nodes(tree, database):
            if not flags & _SUB_DATABASE:
                yield key, value
            seen += 1
    if seen != database.entries:
        raise damage(file, f"says that it has {database.entries} entries, {seen} are there")


def _open(stream: IO[bytes], where: str) -> tuple[_Tree, Database]:
    size = stream.seek(0, 2)
    metas = [meta for at in (0, None) if (meta := _meta(stream, where, at)) is not None]
    if not metas:
        raise damage(where, "is no LMDB file: its first page does not say so. Is it cut short?")
    _, page_bytes, main = max(metas, key=lambda meta: meta[0])
    return _Tree(stream, where, page_bytes, size // page_bytes), main


def _meta(stream: IO[bytes], where: str, at: int | None) -> tuple[int, int, Database] | None:
    """(transaction, bytes of a page, main database) of the first meta page, or of the second.

    The second lies a page behind the first, which alone says how long a page is.
    """
    if at is None:
        first = _meta(stream, where, 0)
        if first is None:
            return None
        at = first[1]
    stream.seek(at + MAGIC_AT)
    data = stream.read(_META.size + 2 * _DATABASE.size + _TAIL.size)
    if len(data) < _META.size + 2 * _DATABASE.size + _TAIL.size:
        return None
    magic, version, _, _ = _META.unpack_from(data)
    if magic != MAGIC:
        return None
    if version != _VERSION:
        raise UnsupportedError(f"{where}: is LMDB of version {version}; {_VERSION} is read")
    (page_bytes, *_) = _DATABASE.unpack_from(data, _META.size)
    if page_bytes not in _PAGE_BYTES:
        raise damage(where, f"has pages of {page_bytes} bytes, which LMDB does not have")
    _, transaction = _TAIL.unpack_from(data, _META.size + 2 * _DATABASE.size)
    return transaction, page_bytes, _database("", data, _META.size + _DATABASE.size, where)


def _database(name: str, data: bytes, at: int, where: str) -> Database:
    if len(data) - at < _DATABASE.size:
        raise damage(where, "is described too shortly")
    _, flags, depth, _, _, _, entries, root = _DATABASE.unpack_from(data, at)
    if flags & _SORTS_DUPLICATES:
        raise UnsupportedError(f"{where}: its keys may have several values, which is not read")
    if depth > _MAX_DEPTH:
        raise damage(where, f"is {depth} pages deep; at most {_MAX_DEPTH} can be")
    return Database(name, entries, root, depth)


def _nodes(tree: _Tree, database: Database) -> Iterator[tuple[int, bytes, bytes]]:
    """(flags, key, value) of every node of every leaf, from left to right."""
    if database.root == _NO_ROOT:
        return
    waiting = [(database.root, 1)]
    seen = 0
    while waiting:
        number, depth = waiting.pop()
        seen += 1
        if seen > tree.pages or depth > database.depth:
            raise damage(tree.where, f"page {number} is reached twice: its tree has a loop")
        leaf = depth == database.depth
        page = tree.page(number, _LEAF if leaf else _BRANCH)
        where = f"{tree.where}, page {number}"
        if leaf:
            for at in _places(page, where):
                yield _leaf_node(tree, page, at, where)
        else:
            children = [_child(page, at) for at in _places(page, where)]
            waiting += [(child, depth + 1) for child in reversed(children)]


def _places(page: bytes, where: str) -> tuple[int, ...]:
    """Where the nodes of a page begin."""
    lower = _PAGE.unpack_from(page)[3]
    count = (lower - _PAGE.size) // 2
    if not 0 <= count <= (len(page) - _PAGE.size) // 2:
        raise damage(where, "is damaged: it has more nodes than fit")
    places = Struct(f"<{count}H").unpack_from(page, _PAGE.size)
    if places and not _PAGE.size <= min(places) <= max(places) <= len(page) - _NODE.size:
        raise damage(where, "is damaged: a node lies outside of it")
    return places


def _child(page: bytes, at: int) -> int:
    low, high, top, _ = _NODE.unpack_from(page, at)
    return int(low | high << 16 | top << 32)


def _leaf_node(tree: _Tree, page: bytes, at: int, where: str) -> tuple[int, bytes, bytes]:
    low, high, flags, key_bytes = _NODE.unpack_from(page, at)
    size = low | high << 16
    start = at + _NODE.size + key_bytes
    large = bool(flags & _BIG_DATA)
    if flags & _DUPLICATES:
        raise UnsupportedError(f"{where}: a key has several values, which is not read")
    if start + (8 if large else size) > len(page):
        raise damage(where, f"is damaged: an entry of {size} bytes reaches past its end")
    key = page[at + _NODE.size : start]
    if not large:
        return flags, key, page[start : start + size]
    return flags, key, _large_value(tree, int.from_bytes(page[start : start + 8], "little"), size)


def _large_value(tree: _Tree, number: int, size: int) -> bytes:
    """A value that has pages of its own, from page `number`."""
    first = tree.page(number, _LARGE)
    (pages,) = _OVERFLOW.unpack_from(first)
    if _PAGE.size + size > pages * tree.page_bytes or number + pages > tree.pages:
        raise damage(tree.where, f"page {number} is damaged: {size} bytes in {pages} pages")
    tree.stream.seek(number * tree.page_bytes + _PAGE.size)
    return read_exactly(tree.stream, size, f"{tree.where}, page {number}")


KEYS = ("text", "bytes")
VALUES = ("bytes", "text", "image", "datum")
_SAMPLE_BYTES = 64 << 20  # of values that are held to infer types from


@dataclass(frozen=True, slots=True)
class Datum:
    """One of Caffe's samples: an encoded image, or an array of shape (channels, height, width)."""

    image: bytes | NDArray[Any]
    label: int


def read_lmdb(
    path: Path,
    *,
    database: str | None = None,
    key: str | None = None,
    value: str | None = None,
    samples: int = SAMPLES,
) -> OpenedSource:
    """A folder with `data.mdb`, or such a file, read without locking it.

    Args:
        path: folder or file.
        database: of several in one file, this one.
        key: what keys are, text or bytes; otherwise the first ones tell.
        value: what values are, bytes, text, image or datum; otherwise the first ones tell.
        samples: from how many entries that is told.

    Raises:
        InvalidInputError: no LMDB file, a damaged one, no entries, or values of another kind.
    """
    if key not in (None, *KEYS) or value not in (None, *VALUES):
        raise InvalidInputError(f"key is {' or '.join(KEYS)}, value {' or '.join(VALUES)}")
    file = path / DATA_FILE if path.is_dir() else path
    chosen = find_database(file, database)
    first = _first_entries(file, chosen, samples)
    if not first:
        raise damage(file, "holds no entries")
    schema = _schema(first, key, value, str(file))
    stored = file_bytes(file)
    return OpenedSource(
        schema=schema,
        rows=chosen.entries,
        bytes=stored,
        batches=_batches(file, chosen, schema),
        origin=ImportOrigin(str(path), "lmdb", 1, stored),
    )


def matches_lmdb(candidate: Candidate) -> bool:
    """A file with LMDB's mark, or a folder with one called `data.mdb`."""
    if candidate.is_folder:
        return any(str(name) == DATA_FILE for name in candidate.names)
    return candidate.head[MAGIC_AT : MAGIC_AT + 4] == MAGIC.to_bytes(4, "little")


def parse_datum(data: bytes, where: str) -> Datum:
    """What a serialised `Datum` says.

    Raises:
        InvalidInputError: another message, or one whose sizes and data disagree.
    """
    datum = parse_message("Datum", data, where, "Datum of Caffe")
    if datum.encoded:
        return Datum(datum.data, datum.label)
    shape = datum.channels, datum.height, datum.width
    floats = len(datum.float_data)
    stored = np.array(datum.float_data, "<f4") if floats else np.frombuffer(datum.data, np.uint8)
    if min(shape) < 1 or prod(shape) != len(stored):
        raise damage(where, f"is no Datum of Caffe: {len(stored)} numbers for shape {shape}")
    return Datum(stored.reshape(shape), datum.label)


def _first_entries(file: Path, database: Database, samples: int) -> list[tuple[bytes, bytes]]:
    first = []
    held = 0
    for entry in islice(walk_entries(file, database), samples):
        first.append(entry)
        held += len(entry[1])
        if held >= _SAMPLE_BYTES:
            break
    return first


def _schema(
    first: Sequence[tuple[bytes, bytes]], key: str | None, value: str | None, where: str
) -> Schema:
    keys, values = zip(*first, strict=True)
    text = key == "text" or (key is None and all(map(is_text, keys)))
    named = Column("key", Text() if text else Bytes())
    if value in (None, "datum"):
        try:
            datums = [parse_datum(data, f"{where}, key {name!r}") for name, data in first]
            return Schema((named, *_datum_columns(datums, where)))
        except InvalidInputError:
            if value == "datum":
                raise
    kinds: dict[str | None, ColumnType] = {"bytes": Bytes(), "text": Text(), "image": Image()}
    image = image_type(values) if value in (None, "image") else None
    return Schema((named, Column("value", image or kinds.get(value, Bytes()))))


def _datum_columns(datums: Sequence[Datum], where: str) -> tuple[Column, Column]:
    encoded = [datum.image for datum in datums if isinstance(datum.image, bytes)]
    arrays = [datum.image for datum in datums if not isinstance(datum.image, bytes)]
    found: ColumnType | None = image_type(encoded) if encoded else None
    if not encoded:
        found = array_type([(array.dtype, array.shape) for array in arrays], where)
    if found is None or (encoded and arrays):
        raise damage(where, "mixes encoded images with others; read it with value=bytes")
    return Column("image", found), Column("label", Scalar("int64"))


def _batches(file: Path, database: Database, schema: Schema) -> Iterator[ColumnBatch]:
    return batches_of(
        (_row(file, schema, key, value) for key, value in walk_entries(file, database)),
        schema.names,
    )


def _row(file: Path, schema: Schema, key: bytes, value: bytes) -> SampleRecord:
    where = f"{file}, key {key[:60]!r}"
    values: dict[str, Any] = {"key": key}
    if isinstance(schema.column("key").type, Text):
        values["key"] = check_text(key, where)
    if "label" in schema:
        datum = parse_datum(value, where)
        values["label"] = datum.label
        values["image"] = _image(schema.column("image").type, datum, where)
    else:
        values["value"] = _value(schema.column("value").type, value, where)
    return SampleRecord(values, len(key) + len(value))


def _image(kind: ColumnType, datum: Datum, where: str) -> bytes | NDArray[Any]:
    if isinstance(datum.image, bytes) and isinstance(kind, Image):
        return check_image(kind, datum.image, where)
    if isinstance(datum.image, bytes) or not isinstance(kind, Tensor):
        raise damage(where, "is encoded where the first are not, or the other way round")
    return check_array(kind, datum.image, where)


def _value(kind: ColumnType, value: bytes, where: str) -> bytes | str:
    if isinstance(kind, Image):
        return check_image(kind, value, where)
    return check_text(value, where) if isinstance(kind, Text) else value
