"""Reach of owners in a store: the bytes that each leads to, shares with others, or has alone.

The table is that of the collector (`gc_marks`): one listing in a temporary file. What an object
links to is read once, and noted in a second one as numbers of rows, so that every further owner is
walked without the store. An object takes 16 bytes of memory, whatever the number of owners.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from tempfile import TemporaryFile
from typing import Final, NamedTuple, Self

from tensorrepo.repo.changes.gc_marks import (
    ObjectTable,
    Progress,
    read_all_links,
    small_files,
)
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import LEAF_FLAG, LINK, Kind
from tensorrepo.repo.objects.store import ObjectStore

NOBODY, HISTORY, SEVERAL = 0, (1 << 32) - 2, (1 << 32) - 1  # owners that are no single one
SOME: Final = 1 << 12  # objects whose links are asked for at once
_NUMBER_BITS: Final = 40  # of a noted link; above them its leaf flag and its kind

Root = tuple[Digest, bool]  # whether it links to nothing


class Totals(NamedTuple):
    """Objects of a store, all incarnations of one counted as one, and their bytes."""

    objects: int
    bytes: int


class Reach:
    """Objects of a store, each with the one owner that leads to it, or NOBODY, HISTORY, SEVERAL.

    A context manager: its temporary file is closed at the end.
    """

    def __init__(
        self,
        store: ObjectStore,
        state: State,
        progress: Progress = lambda _done, _total: None,
    ) -> None:
        self._store = store
        self._progress = progress
        self._supersedes = state.supersedes
        self._resolve = state.resolve
        self._shallow = frozenset(map(digest_bytes, state.shallow))
        self._table = ObjectTable(store.backend, packs=store.packs.tables())
        self._owners = array("I", bytes(4 * len(self._table)))
        self._walks = array("I", bytes(4 * len(self._table)))  # the newest that came by
        self._noted_at = array("Q", bytes(8 * len(self._table)))  # 0: links were not read
        self._notes = TemporaryFile()  # noqa: SIM115 - closed with this
        self._notes_end = 8  # bytes: no note begins at 0
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._notes.close()

    def add(self, roots: Sequence[Root], owner: int) -> int:
        """Bytes that an owner leads to; all of its roots come in one call."""
        found = 0
        for at in self._walk(roots, lambda at: self._walks[at] != owner):
            self._walks[at] = owner
            self._owners[at] = owner if self._owners[at] in (NOBODY, owner) else SEVERAL
            found += self._bytes(at)
        return found

    def claim(self, roots: Sequence[Root], only: Kind | None = None) -> int:
        """Bytes of what nobody owns, which is history now."""
        found = 0
        for at in self._walk(roots, lambda at: self._owners[at] == NOBODY, only):
            self._owners[at] = HISTORY
            found += self._bytes(at)
        return found

    def drop_shared(self, roots: Sequence[Root]) -> None:
        """Let SEVERAL own all that `roots` lead to."""
        for at in self._walk(roots, lambda at: self._owners[at] != SEVERAL):
            self._owners[at] = SEVERAL

    def unique_bytes(self, owners: int) -> list[int]:
        """Bytes that one owner alone leads to, of each."""
        found = [0] * (owners + 1)
        for at, size in self._objects():
            if NOBODY < self._owners[at] <= owners:
                found[self._owners[at]] += size
        return found[1:]

    def owned_bytes(self) -> int:
        """Bytes that any owner leads to."""
        return sum(size for at, size in self._objects() if self._owners[at] != NOBODY)

    def totals(self) -> Totals:
        """Of all objects in the store."""
        count = total = 0
        for _, size in self._objects():
            count, total = count + 1, total + size
        return Totals(count, total)

    def _objects(self) -> Iterator[tuple[int, int]]:
        """First row and bytes of each object."""
        first, previous, total = 0, b"", 0
        for number, (raw, size, _, _) in enumerate(self._table.rows()):
            if raw == previous:
                total += size
                continue
            if previous:
                yield first, total
            first, previous, total = number, raw, size
        if previous:
            yield first, total

    def _bytes(self, at: int) -> int:
        row = self._table[at]
        total = row.bytes
        for number in range(at + 1, len(self._table)):
            other = self._table[number]
            if other.digest != row.digest:
                break
            total += other.bytes
        return total

    def _walk(
        self, roots: Iterable[Root], is_new: Callable[[int], bool], only: Kind | None = None
    ) -> Iterator[int]:
        """Numbers of objects that roots lead to; the caller marks each before it takes the next.

        Args:
            roots: where to begin.
            is_new: whether an object was not come by. What was is not followed again.
            only: kind of the links that are followed; None: all.
        """
        links = [link for root in roots if (link := self._link(*root)) is not None]
        pending = array("Q")
        while links or pending:
            for link in links:
                at = link & ((1 << _NUMBER_BITS) - 1)
                kind = link >> (_NUMBER_BITS + 1)
                if (only is not None and kind not in (0, only)) or not is_new(at):
                    continue
                yield at
                self._done += 1
                if not link >> _NUMBER_BITS & 1:
                    pending.append(at)
            some = pending[-SOME:]
            del pending[-SOME:]
            self._progress(min(self._done, len(self._table)), len(self._table))
            self._note(sorted(at for at in some if not self._noted_at[at]))
            links = [link for at in some for link in self._noted(at)]

    def _link(self, digest: Digest, leaf: bool, kind: int = 0, size: int = 0) -> int | None:
        """A link as it is noted; None where the store lacks the object, which is for `fsck`.

        `kind` and `size`, in bytes, are what a parent says of the object; 0: nobody says it.
        """
        if digest in self._supersedes:
            digest, leaf, size = self._resolve(digest), False, 0
        at = self._number(digest, kind, size)
        return None if at < 0 else at | leaf << _NUMBER_BITS | kind << (_NUMBER_BITS + 1)

    def _number(self, digest: Digest, _kind: int, _size: int) -> int:
        """Number of an object, -1 where the store lacks it."""
        return self._table.find(digest_bytes(digest))

    def _note(self, numbers: Sequence[int]) -> None:
        """Read what objects link to, and note it."""
        with small_files(self._store.backend) as files:
            rows = [self._table[at] for at in numbers]
            self._write(numbers, read_all_links(self._store, rows, files))

    def _write(self, numbers: Sequence[int], opened: Iterable[tuple[bytes, bytes]]) -> None:
        self._notes.seek(0, os.SEEK_END)
        for at, (raw, links) in zip(numbers, opened, strict=True):
            ends = raw in self._shallow  # what a commit links to beside commits is its tree
            found = array("Q", [0])
            for child, low, high, kind, flags in LINK.iter_unpack(links):
                if ends and kind == Kind.COMMIT:
                    continue
                size = low | high << 32
                link = self._link(Digest(child.hex()), bool(flags & LEAF_FLAG), kind, size)
                if link is not None:
                    found.append(link)
            found[0] = len(found) - 1
            self._noted_at[at] = self._notes_end
            self._notes_end += 8 * len(found)
            self._notes.write(found.tobytes())

    def _noted(self, at: int) -> array[int]:
        self._notes.seek(self._noted_at[at] - 8)
        found = array("Q", self._notes.read(8))
        return array("Q", self._notes.read(8 * found[0]))
