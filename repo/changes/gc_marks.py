"""Mark phase of garbage collection: objects of a store, and which of them roots lead to.

The store is listed once, into rows of 48 bytes in a temporary file; a mark takes 4 bytes more. Then
links are walked: what links to others is read and verified, leaves are marked by the links to
them. Nothing else is kept in memory, whatever the length of the history.

Source:
    docs/design/collection.md; docs/spec/objects.md, sections "Links" and "Keys and labels".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from heapq import merge
from itertools import chain, compress, groupby
from mmap import ACCESS_READ, mmap
from operator import itemgetter
from struct import Struct
from tempfile import TemporaryFile
from typing import Final, NamedTuple

from tensorrepo.repo.backends.base import Backend, ReadsSmallFiles, StoredKey
from tensorrepo.repo.backends.small_files import SmallFiles
from tensorrepo.repo.errors import CorruptError, NotFoundError, StorageError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Digest, digest_bytes
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import (
    HEADER,
    LEAF_FLAG,
    LINK,
    ZSTD_MAGIC,
    Kind,
    decode_header,
    expand,
    link_table,
    raw_links,
)
from tensorrepo.repo.objects.history_pack import PackTable
from tensorrepo.repo.objects.incarnations import object_key, parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.threads import ordered_map

try:
    from tensorrepo.repo.changes import _following
except ImportError:  # no compiler when this was installed, or built for another machine
    _following = None  # type: ignore[assignment]

READING_THREADS: Final = 16  # of objects in a store, where each read waits for an answer
SOME: Final = 1 << 12  # objects between two calls of a progress function
PACKED_AT_ONCE: Final = 1 << 6  # their ancestors lie near them, in parts of packs that are kept
SMALL_BYTES: Final = 64 << 10  # of a file that is read at once
FOREIGN_SHOWN: Final = 100
SEVERAL: Final = (1 << 32) - 1  # mark of what several owners lead to
PACKED: Final = (1 << 32) - 1  # label of a row that is no key: the object is a member of a pack

_ROW: Final = Struct(
    "<32sQII"
)  # digest, bytes in the store, label, seconds of storing (0: unknown)
_BUCKETS: Final = 1 << 16  # rows are found by the first 16 bits of their digests
_SEARCHED_ROWS: Final = 256  # that are looked through faster than they are halved

RawLink = tuple[bytes, int, int, int, int]
Progress = Callable[[int, int], None]
Rows = mmap | bytes


class StoredRow(NamedTuple):
    """One key of an object in the store; `seconds` is when it was stored, 0 where nobody knows."""

    digest: Digest
    bytes: int
    label: int
    seconds: int

    @property
    def key(self) -> str:
        """The key; of a member of a history pack, which has none, words."""
        if self.label == PACKED:
            return f"object {self.digest:.12} in a history pack"
        return object_key(self.digest, self.label)


Followed = tuple[int, bytes, bytes]
"""What some links lead to: the number of objects that are new, numbers (u64) of rows that lead on
and were not this owner's yet, and those links whose objects the listing did not have.
"""


def _find(rows: Rows, starts: array[int], raw: bytes) -> int:
    bucket = raw[0] << 8 | raw[1]
    start, stop = starts[bucket], starts[bucket + 1]
    if stop - start > _SEARCHED_ROWS:
        start = bisect_left(range(stop), raw, start, key=lambda number: _digest(rows, number))
        return start if start < stop and _digest(rows, start) == raw else -1
    at = rows.find(raw, start * _ROW.size, stop * _ROW.size)
    while at >= 0 and at % _ROW.size:  # bytes of two fields that look like it
        at = rows.find(raw, at + 1, stop * _ROW.size)
    return at // _ROW.size if at >= 0 else -1


def _digest(rows: Rows, number: int) -> bytes:
    return rows[number * _ROW.size : number * _ROW.size + DIGEST_BYTES]


def _follow_in_python(
    rows: Rows, starts: array[int], owners: array[int], owner: int, links: bytes
) -> Followed:
    marked = 0
    pending = array("Q")
    unlisted: list[bytes] = []
    for at in range(0, len(links), LINK.size):
        link = links[at : at + LINK.size]
        number = _find(rows, starts, link[:DIGEST_BYTES])
        if number < 0:
            unlisted.append(link)
        elif (known := owners[number]) not in (owner, SEVERAL):
            owners[number] = SEVERAL if known else owner
            marked += not known
            if not link[-1] & LEAF_FLAG:
                pending.append(number)
    return marked, pending.tobytes(), b"".join(unlisted)


PYTHON: Final = _follow_in_python
NATIVE: Final = None if _following is None else _following.follow
_BEST: Final = PYTHON if _following is None else _following.follow


class ObjectTable:
    """Keys of all objects of a store, as one listing had them, ascending.

    Attributes:
        count: number of keys.
        foreign: keys among the objects that are none of ours, the first of them.
        foreign_count: number of all of those.
    """

    def __init__(
        self,
        backend: Backend,
        progress: Progress = lambda _done, _total: None,
        packs: Sequence[PackTable] = (),
        *,
        listing: Iterable[StoredKey] | None = None,
    ) -> None:
        """List `backend`, or take the keys of its objects from a `listing` that somebody made.

        Members of `packs` are rows of no bytes and of the label `PACKED`.
        """
        self.count = 0
        self.foreign: list[str] = []
        self.foreign_count = 0
        self._starts = array("Q", bytes(8 * (_BUCKETS + 1)))
        with TemporaryFile() as file:
            keys = backend.list("objects/") if listing is None else listing
            for row in self._rows_of(self._listed(backend, keys), packs, progress):
                file.write(row)
            file.flush()
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ) if self.count else b""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> StoredRow:
        raw, size, label, seconds = _ROW.unpack_from(self._data, number * _ROW.size)
        return StoredRow(Digest(raw.hex()), size, label, seconds)

    def rows(self) -> Iterator[tuple[bytes, int, int, int]]:
        """Fields of all rows."""
        return _ROW.iter_unpack(self._data)

    def rows_of(self, number: int) -> Iterator[StoredRow]:
        """All rows of the object of a first row; none of -1."""
        if number < 0:
            return
        raw = self._raw(number)
        while True:
            yield self[number]
            number += 1
            if number == self.count or self._raw(number) != raw:
                return

    def is_stored_once(self, number: int, size_bytes: int) -> bool:
        """Whether the object of a first row has that one key, of so many bytes."""
        raw, found_bytes, label, _ = _ROW.unpack_from(self._data, number * _ROW.size)
        is_last = number + 1 == self.count or self._raw(number + 1) != raw
        return is_last and bool(found_bytes == size_bytes and label != PACKED)

    def find(self, raw: bytes) -> int:
        """Number of the first row of a digest, -1 when the listing had none."""
        return _find(self._data, self._starts, raw)

    def follow(self, owners: array[int], owner: int, links: bytes) -> Followed:
        """Mark in `owners`, one for each row, what `links` lead to.

        Args:
            owners: marks as `Marks` has them.
            owner: whose those links are.
            links: some of an object, as it stores them.
        """
        return _BEST(self._data, self._starts, owners, owner, links)

    def _raw(self, number: int) -> bytes:
        return _digest(self._data, number)

    def _rows_of(
        self,
        listed: Iterator[tuple[bytes, int, int, int]],
        packs: Sequence[PackTable],
        progress: Progress,
    ) -> Iterator[bytes]:
        filled = 0
        packed = ((raw, 0, PACKED, 0) for raw, _ in groupby(merge(*(p.digests() for p in packs))))
        for raw, size, label, seconds in merge(listed, packed, key=itemgetter(0)):
            bucket = raw[0] << 8 | raw[1]
            if filled < bucket:
                self._fill(filled, bucket)
                filled = bucket
            self.count += 1
            if self.count % SOME == 0:
                progress(self.count, 0)
            yield _ROW.pack(raw, size, label, seconds)
        self._fill(filled, _BUCKETS)

    def _fill(self, filled: int, bucket: int) -> None:
        """Say of the buckets behind `filled`, up to `bucket`, that they begin at the next row."""
        # One slice: a loop over all buckets takes longer than to collect a small repository.
        self._starts[filled + 1 : bucket + 1] = array("Q", [self.count]) * (bucket - filled)

    def _listed(
        self, backend: Backend, keys: Iterable[StoredKey]
    ) -> Iterator[tuple[bytes, int, int, int]]:
        previous = b""
        for stored in keys:
            parsed = parse_object_key(stored.key)
            if parsed is None:
                self.foreign_count += 1
                if len(self.foreign) < FOREIGN_SHOWN:
                    self.foreign.append(stored.key)
                continue
            raw = bytes.fromhex(parsed[0])
            if raw < previous:
                raise CorruptError(f"{backend.url} lists {stored.key} after what comes after it")
            previous = raw
            yield raw, stored.bytes, parsed[1], int(stored.modified_seconds or 0)


class Marks:
    """Which objects of a table roots lead to, and whose.

    A mark is the number of the owner that leads to an object: 0 for nobody, `SEVERAL` for more than
    one. Who does not ask whose they are marks all for one owner.
    """

    def __init__(
        self, store: ObjectStore, table: ObjectTable, state: State, progress: Progress
    ) -> None:
        self.table = table
        self.owners = array("I", bytes(4 * len(table)))
        self.opened = 0
        self._store = store
        self._progress = progress
        self._done = 0
        self._late: set[bytes] = set()  # stored after the listing; not condemned, but followed
        self._pending = array("Q")
        self._supersedes: dict[bytes, bytes] = {}
        self._shallow: frozenset[bytes] = frozenset()
        self._now(state)

    def mark(self, roots: Iterable[Digest], owner: int = 1) -> None:
        """Mark all that `roots` lead to.

        Raises:
            NotFoundError, CorruptError, UnsupportedError: something of it cannot be read. What it
                leads to is not known then, and nothing may be condemned.
        """
        late = [raw for each in roots for raw in self._root(each, owner)]
        with small_files(self._store.backend) as files:
            while self._pending or late:
                rows = [self.table[number] for number in self._some()]
                opened = read_all_links(self._store, rows, files)
                late = self._follow(chain(map(self._links_of_late, late), opened), owner)
                self._progress(self._done, len(self.table))

    def _some(self) -> list[int]:
        """Numbers of rows that are read next, in the order of their keys."""
        is_packed = bool(self._pending) and self.table[self._pending[-1]].label == PACKED
        most = PACKED_AT_ONCE if is_packed else SOME
        some = sorted(self._pending[-most:])
        del self._pending[-most:]
        return some

    def advance(self, state: State) -> None:
        """Mark what is reachable at once by what the log did since, roots aside."""
        before, shallow = self._supersedes, self._shallow
        self._now(state)
        roots = [
            Digest(new.hex())
            for old, new in self._supersedes.items()
            if old not in before and self._is_seen(old)
        ]
        for raw in filter(self._is_seen, shallow - self._shallow):
            links = self._store.get(Digest(raw.hex())).links
            roots += [link.digest for link in links if link.kind is Kind.COMMIT]
        self.mark(roots)

    def _now(self, state: State) -> None:
        resolved = {old: state.resolve(old) for old in state.supersedes}
        self._supersedes = {digest_bytes(a): digest_bytes(b) for a, b in resolved.items()}
        self._shallow = frozenset(map(digest_bytes, state.shallow))

    def owner(self, digest: Digest) -> int:
        """Mark of an object that the listing had; 0: nobody leads to it."""
        return self.owners[self.table.find(digest_bytes(digest))]

    def holds(self, digest: Digest) -> bool:
        """Whether an object was marked, be it that it was stored after the listing."""
        return self._is_seen(digest_bytes(digest))

    def _is_seen(self, raw: bytes) -> bool:
        number = self.table.find(raw)
        return raw in self._late if number < 0 else self.owners[number] != 0

    def _root(self, digest: Digest, owner: int) -> list[bytes]:
        raw = digest_bytes(digest)
        number = -1 if raw in self._supersedes else self.table.find(raw)
        if number >= 0 and self.table[number].bytes <= SMALL_BYTES:
            return self._see(raw, owner, leaf=False)  # what leads to nothing is read in vain
        # Nobody told what a root is. It may be a file larger than memory: its header says so.
        link = self._store.describe(digest)
        return self._see(digest_bytes(link.digest), owner, leaf=link.leaf)

    def _see(self, raw: bytes, owner: int, *, leaf: bool) -> list[bytes]:
        """Mark one object; gives it back when it must be followed and was not in the listing."""
        if raw in self._supersedes:
            raw, leaf = self._supersedes[raw], False
        number = self.table.find(raw)
        if number < 0:
            # A leaf that is not listed cannot be condemned, either.
            if leaf or raw in self._late:
                return []
            self._late.add(raw)
            return [raw]
        known = self.owners[number]
        if known not in (owner, SEVERAL):
            self.owners[number] = SEVERAL if known else owner
            self._done += not known
            if not leaf:
                self._pending.append(number)
        return []

    def _follow(self, opened: Iterable[tuple[bytes, bytes]], owner: int) -> list[bytes]:
        """Mark what objects link to; gives what must be followed and was not in the listing."""
        late: list[bytes] = []
        for raw, links in opened:
            self.opened += 1
            # What a commit that ends a history links to beside commits is its tree.
            direct, others = self._split(links, ends=raw in self._shallow)
            marked, pending, unlisted = self.table.follow(self.owners, owner, direct)
            self._done += marked
            self._pending.frombytes(pending)
            for child, _, _, _, flags in LINK.iter_unpack(others + unlisted):
                late += self._see(child, owner, leaf=bool(flags & LEAF_FLAG))
        return late

    def _split(self, links: bytes, *, ends: bool) -> tuple[bytes, bytes]:
        """Links that are followed as they are, and those in whose place others are."""
        if not ends and not self._supersedes:
            return links, b""
        direct: list[bytes] = []
        others: list[bytes] = []
        for link in LINK.iter_unpack(links):
            if not (ends and link[3] == Kind.COMMIT):
                (others if link[0] in self._supersedes else direct).append(LINK.pack(*link))
        return b"".join(direct), b"".join(others)

    def _links_of_late(self, raw: bytes) -> tuple[bytes, bytes]:
        return raw, link_table(self._store.fetch(Digest(raw.hex())).links).data

    def unmarked(self) -> Iterator[int]:
        """Numbers of rows that nothing leads to. All incarnations of an object share its mark."""
        previous, owner = b"", 0
        for number, (raw, _, _, _) in enumerate(self.table.rows()):
            if raw != previous:
                previous, owner = raw, self.owners[number]
            if not owner:
                yield number

    def bytes_by_owner(self, owners: int) -> list[int]:
        """Bytes that nobody leads to, each of so many owners alone, and at last several."""
        found = [0] * (owners + 2)
        previous, owner = b"", 0
        for number, (raw, size, _, _) in enumerate(self.table.rows()):
            if raw != previous:
                previous, owner = raw, self.owners[number]
            found[min(owner, owners + 1)] += size
        return found


def read_all_links(
    store: ObjectStore, rows: Sequence[StoredRow], files: SmallFiles | None
) -> Iterator[tuple[bytes, bytes]]:
    """Digests of objects and what they link to, read past every cache and verified.

    Links are as an object stores them.
    """
    if files is not None or store.backend.local_root is not None:
        stored = read_all_small(files, rows)
        return (_links_of(store, row, data) for row, data in zip(rows, stored, strict=True))
    return ordered_map(rows, lambda row: _links_of(store, row, None), threads=READING_THREADS)


def _links_of(store: ObjectStore, row: StoredRow, stored: bytes | None) -> tuple[bytes, bytes]:
    raw = digest_bytes(row.digest)
    with suppress(NotFoundError, CorruptError):  # of this incarnation; there may be others
        if stored is None:
            is_packed = row.label == PACKED
            stored = store.packs.read(row.digest) if is_packed else store.backend.read(row.key)
        return raw, raw_links(expand(stored, row.digest), row.digest)
    return raw, link_table(store.fetch(row.digest).links).data


def small_files(backend: Backend) -> AbstractContextManager[SmallFiles | None]:
    """What reads the small files of a disk; None where the store is none."""
    return backend.small_files() if isinstance(backend, ReadsSmallFiles) else nullcontext()


def read_small(files: SmallFiles | None, row: StoredRow) -> bytes | None:
    """What is stored under a key, where it is a small file; None: it is to be read otherwise."""
    if files is None or row.bytes > SMALL_BYTES or row.label == PACKED:
        return None
    return files.read(row.key, row.bytes)


def read_all_small(files: SmallFiles | None, rows: Sequence[StoredRow]) -> Iterator[bytes | None]:
    """The same of many rows, in their order."""
    if files is None or len(rows) == 1:
        return (read_small(files, row) for row in rows)
    is_small = [row.bytes <= SMALL_BYTES and row.label != PACKED for row in rows]
    read = files.read_all((row.key, row.bytes) for row in compress(rows, is_small))
    return (next(read) if small else None for small in is_small)


def _kind(backend: Backend, row: StoredRow) -> str:
    """Kind of an object in words; it may be gone or damaged, which is no matter here."""
    try:
        head = bytes(backend.read_range(row.key, 0, HEADER.size))
        if head[:4] == ZSTD_MAGIC:
            head = expand(backend.read(row.key), row.digest)[: HEADER.size]
        return decode_header(memoryview(head), row.digest)[0].label
    except (NotFoundError, CorruptError, UnsupportedError, StorageError):
        return "unreadable"


def count_kinds(
    backend: Backend, rows: Iterable[StoredRow], progress: Progress, total: int
) -> Mapping[str, int]:
    """Bytes of objects by their kinds, which their headers tell."""
    from_store = READING_THREADS if backend.local_root is None else 0
    found: dict[str, int] = {}
    told = ordered_map(rows, lambda row: (row, _kind(backend, row)), threads=from_store)
    for done, (row, kind) in enumerate(told):
        found[kind] = found.get(kind, 0) + row.bytes
        if done % SOME == 0:
            progress(done, total)
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
