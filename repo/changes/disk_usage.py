"""Disk usage of entries: bytes that each reaches, shares with others, and keeps for its history.

Sizes come by listing the store once, never by a request each; what links to others is read, as it
says what an entry reaches (`reach`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Final

from tensorrepo.repo.changes.reach import Reach, Root
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit, walk
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, PathChange, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.tables import Cell, RecordTable, Shown, bytes_text, counted


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
            "kind": self.kind.noun,
            "stored_bytes": self.stored_bytes,
            "shared_bytes": self.shared_bytes,
            "unique_bytes": self.unique_bytes,
            "history_bytes": self.history_bytes,
        }


USAGE_COLUMNS: Final[Mapping[str, Cell]] = {
    "path": "path",
    "kind": "kind.noun",
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
    with Reach(store, state, progress) as reach:
        stored = [
            reach.add(entry_roots(entry), owner) for owner, (_, _, entry) in enumerate(entries, 1)
        ]
        unique = reach.unique_bytes(len(entries))
        reached = reach.owned_bytes()
        older, commits = _add_history(store, reach, state.refs.values())
        (objects, total), every = reach.totals(), sum(older.values())
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
        objects,
        total,
    )


def _add_history(
    store: ObjectStore, reach: Reach, tips: Iterable[Digest]
) -> tuple[dict[str, int], int]:
    """Bytes that nothing counted so far reaches: by path of versions, and of commits."""
    older: dict[str, int] = {}
    commits = 0
    for digest, change in versions(store, tips):
        if change is None:
            commits += reach.claim([(digest, False)], only=Kind.TREE_PAGE)
        elif change.new is not None and (more := reach.claim(entry_roots(change.new))):
            older[change.path] = older.get(change.path, 0) + more
    return older, commits


def versions(
    store: ObjectStore, tips: Iterable[Digest], *, hidden: Iterable[Digest] = ()
) -> Iterator[tuple[Digest, PathChange | None]]:
    """Every commit with None, then with each entry that is new in it.

    Commits are those that `tips` lead to and `hidden` do not, the newest first.
    """
    for digest, commit in walk(store, sorted(set(tips)), hidden=hidden):
        yield digest, None
        # A checkpoint and a registered version stand beside their parent, and hold nothing but
        # their own: against the parent all other entries were removed, in each version anew.
        if commit.changed is not None:
            own = list(islice(diff(store, EMPTY_TREE, commit.tree), len(commit.changed) + 1))
            if len(own) <= len(commit.changed):
                yield from ((digest, change) for change in own)
                continue
        # Each version of an entry is new in some commit: what a commit left alone is not read.
        parent = commit.parents[0] if commit.parents else None
        before = EMPTY_TREE if parent is None else read_commit(store, parent).tree
        for change in diff(store, before, commit.tree):
            yield digest, change


def entry_roots(entry: Entry) -> list[Root]:
    """What an entry leads to first; files may be larger than memory, and link to nothing."""
    stored = [] if entry.storage is None else [(entry.storage, False)]
    return [(entry.digest, entry.kind is Kind.BLOB), *stored]
