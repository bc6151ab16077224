"""Reach of damage: which entries of which commits need objects that are damaged.

A check names one entry for each damaged object, the first that it came by. A page of rows or a pack
of tensors is shared by versions, copies and fine-tunes: here all paths are named that need it. All
metadata is walked once more, an object once, so this is done only where something is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tensorrepo.repo.changes.gc_marks import ObjectTable
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, StorageError, UnsupportedError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry, iterate
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore

MAX_DAMAGED: Final = 1 << 10  # objects that are looked for at once
MAX_PATHS: Final = 100  # that are named of each
_UNREADABLE = (CorruptError, NotFoundError, StorageError, UnsupportedError)
_NONE, _SOME = 1, 2


@dataclass(frozen=True, slots=True)
class Need:
    """An entry that needs something, in a commit that has it."""

    commit: Digest
    path: str


def find_needs(
    store: ObjectStore,
    state: State,
    damaged: Iterable[Digest],
    tips: Iterable[Digest] | None = None,
) -> Mapping[Digest, tuple[Need, ...]]:
    """Entries that lead to damaged objects, each path once, in the commit it was met in first."""
    wanted = list(dict.fromkeys(damaged))[:MAX_DAMAGED]
    if not wanted:
        return {}
    reach = _Reach(store, state, wanted)
    roots = set(state.refs.values()) | set(state.retained) if tips is None else set(tips)
    reach.walk(sorted(roots))
    return {digest: tuple(needs) for digest, needs in reach.needs.items()}


class _Reach:
    def __init__(self, store: ObjectStore, state: State, damaged: list[Digest]) -> None:
        self.needs: dict[Digest, list[Need]] = {digest: [] for digest in damaged}
        self._store = store
        self._state = state
        self._damaged = damaged
        self._table = ObjectTable(store.backend, packs=list(store.packs.readable()))
        self._seen = bytearray(len(self._table))
        self._bits: dict[Digest, int] = {digest: 1 << at for at, digest in enumerate(damaged)}
        self._paths: set[tuple[str, Digest]] = set()

    def walk(self, tips: list[Digest]) -> None:
        """All commits, and in each the entries that were not met at that path."""
        waiting, seen = tips[::-1], set(tips)
        known: set[tuple[str, Digest, Digest | None]] = set()
        while waiting:
            digest = waiting.pop()
            try:
                commit = read_commit(self._store, digest)
                waiting += [each for each in commit.parents if each not in seen]
                seen.update(commit.parents)
                for path, entry in iterate(self._store, commit.tree):
                    key = (path, entry.digest, entry.storage)
                    if key not in known:
                        known.add(key)
                        self._note(Need(digest, path), entry)
            except _UNREADABLE:
                continue  # told by the check

    def _note(self, need: Need, entry: Entry) -> None:
        storage = () if entry.storage is None else (entry.storage,)
        bits = 0
        for digest in (entry.digest, *storage):
            bits |= self._bits_of(digest)
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            digest = self._damaged[lowest.bit_length() - 1]
            needs = self.needs[digest]
            if len(needs) < MAX_PATHS and (need.path, digest) not in self._paths:
                self._paths.add((need.path, digest))
                needs.append(need)

    def _bits_of(self, root: Digest) -> int:
        """Which damaged objects one leads to; what leads to none is remembered in one byte."""
        stack: list[tuple[Digest, list[Digest] | None]] = [(root, None)]
        while stack:
            digest, children = stack.pop()
            digest = self._state.resolve(digest)
            number = self._table.find(digest_bytes(digest))
            if children is not None:
                bits = self._bits.get(digest, 0)
                for child in children:
                    bits |= self._bits.get(child, 0)
                if bits:
                    self._bits[digest] = bits
                if number >= 0:
                    self._seen[number] = _SOME if bits else _NONE
            elif number < 0 or not self._seen[number]:
                children = self._children(digest)
                if number >= 0:
                    self._seen[number] = _NONE
                stack.append((digest, children))
                stack += [(child, None) for child in children]
        return self._bits.get(self._state.resolve(root), 0)

    def _children(self, digest: Digest) -> list[Digest]:
        """What an object leads to and could be damaged; nothing where it cannot be read."""
        try:
            if self._store.describe(digest).leaf:
                return []
            links = self._store.get(digest).links
        except _UNREADABLE:
            return []
        return [
            self._state.resolve(link.digest)
            for link in links
            if link.kind is not Kind.COMMIT and (not link.leaf or link.digest in self._bits)
        ]
