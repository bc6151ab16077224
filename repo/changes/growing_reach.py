"""Reach of owners that only grows: what new roots lead to is added, all else is left alone.

Beside the table of `Reach`, which one listing made, there are the objects that new roots lead to
and the listing did not have. Which owner an object has is told by one number; of those that several
share, a bitmap for each owner tells whether it is one of them.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from tensorrepo.repo.changes.reach import NOBODY, SEVERAL, Reach, Root
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, link_table
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore

_AS_LINKED: Final = frozenset(kind for kind in Kind if not kind.compressible)
# Flags of an object: a shown owner leads to it, something beside owners does, it is history.
_SHOWN, _KEPT, _HISTORY = 1, 2, 4


class GrowingReach(Reach):
    """Reach of owners, with their sums, which are those of a new count after each growth.

    Attributes:
        stored: bytes that each owner leads to, by its number; 0 is nobody.
        unique: those that it alone leads to.
        freed: those of them that nothing beside owners leads to.
        shown_bytes: bytes that any owner leads to that is shown.
        total_bytes: bytes of the listing, and of what came since by a root.
        late: number of objects that the listing did not have.
        listed: number of rows that it had.
        bitmap_bytes: memory of the bitmaps.
    """

    def __init__(self, store: ObjectStore, state: State) -> None:
        super().__init__(store, state)
        weakref.finalize(self, self._notes.close)  # it is kept for as long as somebody asks
        self.stored, self.unique, self.freed = [0], [0], [0]
        self.shown_bytes = 0
        self.total_bytes = self.totals().bytes
        self.listed = len(self._table)
        self.bitmap_bytes = 0
        self._flags = bytearray(self.listed)
        self._bitmaps: dict[int, bytearray] = {}
        self._late: dict[bytes, int] = {}
        self._late_digests: list[bytes] = []
        self._late_bytes = array("Q")

    @property
    def late(self) -> int:
        return len(self._late)

    def new_owner(self) -> int:
        """Number of one more owner, which leads to nothing yet."""
        for sums in (self.stored, self.unique, self.freed):
            sums.append(0)
        return len(self.stored) - 1

    def grow(self, roots: Sequence[Root], owner: int, *, shown: bool) -> None:
        """Let an owner lead to all that these roots lead to, too."""
        for at in self._walk(roots, lambda at: not self._leads(owner, at)):
            self._own(at, owner, self._bytes(at))
            if shown and not self._flags[at] & _SHOWN:
                self._flags[at] |= _SHOWN
                self.shown_bytes += self._bytes(at)

    def keep(self, roots: Sequence[Root]) -> None:
        """Note what something beside owners leads to."""
        for at in self._walk(roots, lambda at: not self._flags[at] & _KEPT):
            self._flags[at] |= _KEPT
            owner = self._owners[at]
            if owner not in (NOBODY, SEVERAL):
                self.freed[owner] -= self._bytes(at)

    def note_history(self, commits: Sequence[Digest]) -> None:
        """Count these commits, and pages of their trees, in the sum of the store."""
        roots = [(commit, False) for commit in commits]
        for at in self._walk(roots, lambda at: not self._flags[at] & _HISTORY, only=Kind.TREE_PAGE):
            self._flags[at] |= _HISTORY

    def forget_kept(self) -> None:
        """Begin again with what `keep` noted."""
        self._flags = self._flags.translate(bytes(flags & ~_KEPT for flags in range(256)))
        self.freed = list(self.unique)

    def _own(self, at: int, owner: int, size: int) -> None:
        self.stored[owner] += size
        alone = 0 if self._flags[at] & _KEPT else size
        before = self._owners[at]
        if before == NOBODY:
            self._owners[at] = owner
            self.unique[owner] += size
            self.freed[owner] += alone
            return
        if before != SEVERAL:
            self.unique[before] -= size
            self.freed[before] -= alone
            self._owners[at] = SEVERAL
            self._include(before, at)
        self._include(owner, at)

    def _leads(self, owner: int, at: int) -> bool:
        found = self._owners[at]
        if found != SEVERAL:
            return found == owner
        bitmap = self._bitmaps.get(owner, b"")
        return at >> 3 < len(bitmap) and bool(bitmap[at >> 3] >> (at & 7) & 1)

    def _include(self, owner: int, at: int) -> None:
        bitmap = self._bitmaps.setdefault(owner, bytearray())
        if at >> 3 >= len(bitmap):
            more = max(len(self._flags) + 7 >> 3, (at >> 3) + 1) - len(bitmap)
            bitmap += bytes(more)
            self.bitmap_bytes += more
        bitmap[at >> 3] |= 1 << (at & 7)

    def _number(self, digest: Digest, kind: int, size: int) -> int:
        raw = digest_bytes(digest)
        at = self._table.find(raw)
        if at < 0:
            at = self._late.get(raw, -1)
        if at >= 0:
            return at
        if not size or kind not in _AS_LINKED:  # it may be compressed
            size = self._store.backend.size(object_key(digest)) or 0
        return self._add_late(raw, size) if size else -1

    def _add_late(self, raw: bytes, size: int) -> int:
        at = self.listed + len(self._late)
        self._late[raw] = at
        self._late_digests.append(raw)
        self._late_bytes.append(size)
        self._flags.append(0)
        self._owners.append(NOBODY)
        self._noted_at.append(0)
        self.total_bytes += size
        return at

    def _bytes(self, at: int) -> int:
        return super()._bytes(at) if at < self.listed else self._late_bytes[at - self.listed]

    def _note(self, numbers: Sequence[int]) -> None:
        super()._note([at for at in numbers if at < self.listed])
        late = [at for at in numbers if at >= self.listed]
        self._write(late, self._links_of_late(late))

    def _links_of_late(self, numbers: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
        for at in numbers:
            raw = self._late_digests[at - self.listed]
            yield raw, link_table(self._store.fetch(Digest(raw.hex())).links).data
