"""Which keys and values does an LMDB file hold?

LMDB itself maps the file and follows whatever page numbers are in it: a damaged or hostile file
ends the process. Here the B+tree is walked in Python with every number checked, through plain
reads; nothing locks, and nothing writes.

Layout of a page: number u64 | pad u16 | flags u16 | lower u16 | upper u16 (of large values: pages
u32), then of branches and leaves the places of nodes u16. A node: low u16 | high u16 | flags u16 |
key bytes u16 | key | value. Pages 0 and 1 hold what the last two transactions left.

Source:
    libraries/liblmdb/mdb.c of OpenLDAP, LMDB 0.9: MDB_page, MDB_node, MDB_meta, MDB_db.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.exchange.shards.records import read_exactly
from tensorrepo.repo.errors import NotFoundError, UnsupportedError

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
