"""Disk usage of entries: bytes that each reaches, shares with others, and keeps for its history.

Sizes come by listing the store once, never by a request each; what links to others is read, as it
says what an entry reaches. An object takes some 24 bytes of memory while it is counted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit, walk
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.tables import Cell, RecordTable, Shown, bytes_text, counted
from tensorrepo.repo.threads import ordered_map

READING_THREADS: Final = 8  # of objects in a store, where each read waits for an answer
KEY_DIGITS: Final = 16  # of a digest: 64 random bits tell the objects of one repository apart
NOBODY, HISTORY, SEVERAL = 0, (1 << 32) - 2, (1 << 32) - 1  # owners that are no entry


@dataclass(frozen=True, slots=True)
class EntryUsage:
    """Bytes in the store of one entry, compressed as they lie there.

    Attributes:
        ref: name of the ref that has the entry.
        path: path of the entry there.
        kind: kind of the entry.
        stored_bytes: all objects that it reaches, each once.
        unique_bytes: those of them that no other entry counted reaches.
        history_bytes: objects that older versions under this path reach, and no entry counted;
            where several entries have one path, they stand at the first.
    """

    ref: str
    path: str
    kind: Kind
    stored_bytes: int
    unique_bytes: int
    history_bytes: int

    @property
    def shared_bytes(self) -> int:
        """Bytes that other entries reach as well."""
        return self.stored_bytes - self.unique_bytes

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ref": self.ref,
            "path": self.path,
            "kind": self.kind.label,
            "stored_bytes": self.stored_bytes,
            "shared_bytes": self.shared_bytes,
            "unique_bytes": self.unique_bytes,
            "history_bytes": self.history_bytes,
        }


USAGE_COLUMNS: Final[Mapping[str, Cell]] = {
    "path": "path",
    "kind": "kind.label",
    ">stored": lambda one: bytes_text(one.stored_bytes),
    ">shared": lambda one: bytes_text(one.shared_bytes),
    ">unique": lambda one: bytes_text(one.unique_bytes),
    ">history": lambda one: bytes_text(one.history_bytes),
}


@dataclass(frozen=True, slots=True, repr=False)
class StoreUsage(Shown):
    """Bytes of entries, and of the store that they lie in.

    Attributes:
        entries: the entries that were asked for, in their order.
        stored_bytes: objects that all entries counted reach, each once.
        history_bytes: objects that only older versions reach, of whatever path.
        commit_bytes: commits and pages of trees that refs lead to.
        other_bytes: objects that no ref leads to: staged, or left by what was cut off.
        objects: number of objects in the store.
        total_bytes: size of all objects in the store.
    """

    entries: tuple[EntryUsage, ...]
    stored_bytes: int
    history_bytes: int
    commit_bytes: int
    other_bytes: int
    objects: int
    total_bytes: int

    def __getitem__(self, path: str) -> EntryUsage:
        for one in self.entries:
            if one.path == path:
                return one
        raise NotFoundError(f"no entry {path!r} was counted; `entries` are those that were")

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of what lies in the store, by what it is for; the last is all of it."""
        return {
            "these entries": self.stored_bytes,
            "older versions": self.history_bytes,
            "commits and trees": self.commit_bytes,
            "reached by no ref": self.other_bytes,
            f"store, {counted(self.objects, 'object')}": self.total_bytes,
        }

    def part_lines(self) -> list[str]:
        """The parts for people, a line for each."""
        width = max(map(len, self.parts))
        return [f"{name:<{width}}  {bytes_text(size):>10}" for name, size in self.parts.items()]

    def to_table(self) -> RecordTable:
        """The parts of the store, and a row for each entry."""
        return RecordTable.of(self.entries, USAGE_COLUMNS, *self.part_lines())

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        entries = [one.to_json() for one in self.entries]
        return asdict(replace(self, entries=())) | {"entries": entries}


def measure_trees(
    repository: RepositoryCore,
    trees: Mapping[str, bytes],
    path: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoreUsage:
    """What the entries of trees take, each counted once, behind the first of the refs that have it.

    Args:
        repository: the repository that they lie in.
        trees: root pages by the name of their ref.
        path: path or name of the entry, or path of the folder of those, that is told of; "": all.
        progress: see `measure_entries`.

    Raises:
        NotFoundError: nothing lies at the path.
    """
    seen: dict[tuple[str, Entry], str] = {}
    for ref, tree in trees.items():
        for found in repository.entries(tree):
            seen.setdefault(found, ref)

    shown = _meant({each for each, _ in seen}, path)
    entries = [(ref, each, entry) for (each, entry), ref in seen.items()]
    state = repository.log.refresh().state
    return measure_entries(repository.objects, state, entries, shown.__contains__, progress)


def _meant(paths: set[str], wanted: str) -> set[str]:
    """The paths that are `wanted` or below it, else those whose last part it is."""
    if not wanted:
        return paths
    below = {each for each in paths if each == wanted or each.startswith(f"{wanted}/")}
    named = below or {each for each in paths if each.endswith(f"/{wanted}")}
    if not named:
        raise NotFoundError(f"no entry {wanted} in the commits looked at; `ls` lists them")
    return named


def measure_entries(
    store: ObjectStore,
    state: State,
    entries: Sequence[tuple[str, str, Entry]],
    shown: Callable[[str], bool] = lambda _: True,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoreUsage:
    """What entries take, and what of the store is left beside them.

    Args:
        store: objects of the repository.
        state: refs, and placements that took the place of others.
        entries: names of refs, paths and entries that are asked whether they share anything.
        shown: whether the entry of a path is told of.
        progress: callback that receives the objects counted so far, and those there are.
    """
    count = _Count(store, state.supersedes, progress)
    count.list_objects()
    stored = [count.add(entry, owner) for owner, (_, _, entry) in enumerate(entries, 1)]
    unique = count.unique_bytes(len(entries))
    reached = count.owned_bytes()
    older, commits = count.add_history(state.refs.values())
    total, every = sum(count.sizes), sum(older.values())
    return StoreUsage(
        tuple(
            EntryUsage(ref, path, entry.kind, stored[at], unique[at], older.pop(path, 0))
            for at, (ref, path, entry) in enumerate(entries)
            if shown(path)
        ),
        reached,
        every,
        commits,
        total - reached - every - commits,
        len(count.keys),
        total,
    )


@dataclass(slots=True)
class _Count:
    """Objects by the first digits of their digests, ascending, with sizes, owners and marks.

    The owner is the number of the one entry that reaches an object, or NOBODY, HISTORY or SEVERAL.
    The mark is that of the newest walk that came by.
    """

    store: ObjectStore
    supersedes: Mapping[Digest, Digest]
    progress: Callable[[int, int], None]
    keys: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    owners: array[int] = field(default_factory=lambda: array("I"))
    marks: array[int] = field(default_factory=lambda: array("I"))
    _done: int = 0

    def list_objects(self) -> None:
        """Learn which objects there are; incarnations of one object count as one."""
        for stored in self.store.backend.list("objects/"):
            parsed = parse_object_key(stored.key)
            if parsed is None:
                continue
            key = int(parsed[0][:KEY_DIGITS], 16)
            if self.keys and self.keys[-1] == key:
                self.sizes[-1] += stored.bytes
            else:
                self.keys.append(key)
                self.sizes.append(stored.bytes)
        self.owners = array("I", bytes(4 * len(self.keys)))
        self.marks = array("I", bytes(4 * len(self.keys)))

    def add(self, entry: Entry, owner: int) -> int:
        """Bytes that an entry reaches."""
        found = 0
        for at in self._walk(_roots(entry), lambda at: self.marks[at] != owner):
            self.marks[at] = owner
            self.owners[at] = owner if self.owners[at] in (NOBODY, owner) else SEVERAL
            found += self.sizes[at]
        return found

    def unique_bytes(self, entries: int) -> list[int]:
        """Bytes that one entry alone reaches, of each."""
        found = [0] * (entries + 1)
        for owner, size in zip(self.owners, self.sizes, strict=True):
            if NOBODY < owner <= entries:
                found[owner] += size
        return found[1:]

    def owned_bytes(self) -> int:
        """Bytes that any entry reaches."""
        pairs = zip(self.owners, self.sizes, strict=True)
        return sum(size for owner, size in pairs if owner != NOBODY)

    def add_history(self, tips: Iterable[Digest]) -> tuple[dict[str, int], int]:
        """Bytes that nothing counted so far reaches: by path of versions, and of commits."""
        older: dict[str, int] = {}
        commits = 0
        for digest, commit in walk(self.store, sorted(set(tips))):
            commits += self._claim([(digest, False)], only=Kind.TREE_PAGE)
            # Each version of an entry is new in some commit: what a commit left alone is not read.
            parent = commit.parents[0] if commit.parents else None
            before = EMPTY_TREE if parent is None else read_commit(self.store, parent).tree
            for change in diff(self.store, before, commit.tree):
                if change.new is not None and (more := self._claim(_roots(change.new))):
                    older[change.path] = older.get(change.path, 0) + more
        return older, commits

    def _claim(self, roots: Sequence[tuple[Digest, bool]], only: Kind | None = None) -> int:
        """Bytes of what nobody owns, which is history now."""
        found = 0
        for at in self._walk(roots, lambda at: self.owners[at] == NOBODY, only):
            self.owners[at] = HISTORY
            found += self.sizes[at]
        return found

    def _walk(
        self,
        roots: Sequence[tuple[Digest, bool]],
        is_new: Callable[[int], bool],
        only: Kind | None = None,
    ) -> Iterator[int]:
        """Numbers of objects that roots lead to; the caller marks each before it takes the next.

        Args:
            roots: digests, each with whether it links to nothing.
            is_new: whether an object was not come by. What was is not followed again.
            only: kind of the links that are followed; None: all.
        """
        threads = READING_THREADS if self.store.backend.local_root is None else 0
        while roots:
            opened = []
            for given, leaf in roots:
                digest = self._current(given)
                at = self._number(digest)
                if at is None or not is_new(at):
                    continue
                yield at
                self._done += 1
                if not leaf:
                    opened.append(digest)
            self.progress(min(self._done, len(self.keys)), len(self.keys))
            links = (each.links for each in ordered_map(opened, self.store.get, threads=threads))
            roots = [
                (child.digest, child.leaf)
                for each in links
                for child in each
                if only is None or child.kind is only
            ]

    def _current(self, digest: Digest) -> Digest:
        while (newer := self.supersedes.get(digest)) is not None:
            digest = newer
        return digest

    def _number(self, digest: Digest) -> int | None:
        """The number of an object; None where it is not in the store, which is for `fsck`."""
        key = int(digest[:KEY_DIGITS], 16)
        at = bisect_left(self.keys, key)
        return at if at < len(self.keys) and self.keys[at] == key else None


def _roots(entry: Entry) -> list[tuple[Digest, bool]]:
    """What an entry leads to first; files may be larger than memory, and link to nothing."""
    stored = [] if entry.storage is None else [(entry.storage, False)]
    return [(entry.digest, entry.kind is Kind.BLOB), *stored]
