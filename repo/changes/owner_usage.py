"""Storage by owner: what refs, datasets or models take with all of their history, and would free.

A ref leads to all commits behind it; a dataset or model to all versions that any commit has under
its path. What goes with an owner is what no other owner, dropped ref, lease or the log leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from tensorrepo.repo.changes.disk_usage import entry_roots, versions
from tensorrepo.repo.changes.gc_collect import log_roots
from tensorrepo.repo.changes.reach import Reach, Root
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import Cell, RecordTable, Shown, bytes_text


class Owners(StrEnum):
    """By what storage is told."""

    REF = "ref"
    DATASET = "dataset"
    MODEL = "model"


KINDS_OF: Final = {Owners.DATASET: Kind.DATASET, Owners.MODEL: Kind.MODEL}


@dataclass(frozen=True, slots=True)
class OwnerUsage:
    """Bytes of one ref, dataset or model, with its history.

    Attributes:
        owner: full name of the ref, or path.
        logical_bytes: content when decoded: of all entries of the ref, or of the newest version,
            as if nothing were shared.
        stored_bytes: all objects that it leads to, each once, as they lie in the store.
        unique_bytes: those of them that no other ref, or no other path, leads to.
        reclaimable_bytes: those of them that `gc` would delete, were it gone: neither dropped refs
            nor leases lead to them. A ref that is deleted is a dropped one for the retention.
    """

    owner: str
    logical_bytes: int
    stored_bytes: int
    unique_bytes: int
    reclaimable_bytes: int

    @property
    def shared_bytes(self) -> int:
        """Bytes that others lead to as well."""
        return self.stored_bytes - self.unique_bytes

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "owner": self.owner,
            "logical_bytes": self.logical_bytes,
            "stored_bytes": self.stored_bytes,
            "shared_bytes": self.shared_bytes,
            "unique_bytes": self.unique_bytes,
            "reclaimable_bytes": self.reclaimable_bytes,
        }


OWNER_COLUMNS: Final[Mapping[str, Cell]] = {
    ">logical": lambda one: bytes_text(one.logical_bytes),
    ">stored": lambda one: bytes_text(one.stored_bytes),
    ">shared": lambda one: bytes_text(one.shared_bytes),
    ">unique": lambda one: bytes_text(one.unique_bytes),
    ">reclaimable": lambda one: bytes_text(one.reclaimable_bytes),
}


@dataclass(frozen=True, slots=True, repr=False)
class OwnersUsage(Shown):
    """Storage by ref, dataset or model.

    Attributes:
        by: what the owners are.
        owners: each of them, by name.
        stored_bytes: objects that any of them leads to, each once.
        total_bytes: size of all objects in the store.
    """

    by: Owners
    owners: tuple[OwnerUsage, ...]
    stored_bytes: int
    total_bytes: int

    def __getitem__(self, owner: str) -> OwnerUsage:
        for one in self.owners:
            if one.owner == owner:
                return one
        raise NotFoundError(f"no {self.by} {owner!r} was counted; `owners` are those that were")

    def part_lines(self) -> list[str]:
        """The sums, for people."""
        all_of_them = f"all of these {self.by}s"
        return [
            f"{all_of_them:<21}  {bytes_text(self.stored_bytes):>10}",
            f"{'store':<21}  {bytes_text(self.total_bytes):>10}",
        ]

    def to_table(self) -> RecordTable:
        """A row for each owner."""
        return RecordTable.of(
            self.owners, {self.by.value: "owner", **OWNER_COLUMNS}, *self.part_lines()
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "by": self.by.value,
            "owners": [one.to_json() for one in self.owners],
            "stored_bytes": self.stored_bytes,
            "total_bytes": self.total_bytes,
        }


def measure_owners(
    repository: RepositoryCore,
    by: Owners,
    decoded_bytes: Callable[[str, Entry], int],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> OwnersUsage:
    """Storage of all refs, or of all datasets or models that any commit has.

    Versions are held in memory while they are counted, some 200 bytes each.

    Args:
        repository: where.
        by: what is told of.
        decoded_bytes: what the content of an entry takes when it is decoded, by its path.
        progress: callback that receives the objects counted so far, and those there are.
    """
    state = repository.log.refresh().state
    if by is Owners.REF:
        named = _refs(repository, state, decoded_bytes)
        shown = list(named)
    else:
        named, kinds = _paths(repository, state, decoded_bytes)
        shown = [path for path in named if kinds[path] is KINDS_OF[by]]
    # Those that are told of come first, so that what any of them leads to is known before the rest.
    told = set(shown)
    order = [*shown, *(name for name in named if name not in told)]
    with Reach(repository.objects, state, progress) as reach:
        stored, every = [], 0
        for number, name in enumerate(order, 1):
            if number == len(shown) + 1:
                every = reach.owned_bytes()
            stored.append(reach.add(named[name][0], number))
        if len(order) == len(shown):
            every = reach.owned_bytes()
        unique = reach.unique_bytes(len(order))
        reach.drop_shared(described(repository, other_roots(state)))
        freed = reach.unique_bytes(len(order))
        total = reach.totals().bytes
    rows = (
        OwnerUsage(name, named[name][1], stored[at], unique[at], freed[at])
        for at, name in enumerate(shown)
    )
    return OwnersUsage(by, tuple(rows), every, total)


def _refs(
    repository: RepositoryCore, state: State, decoded_bytes: Callable[[str, Entry], int]
) -> dict[str, tuple[Sequence[Root], int]]:
    """Roots and decoded bytes of each ref."""
    found: dict[str, tuple[Sequence[Root], int]] = {}
    sizes: dict[bytes, int] = {}
    for ref, commit in sorted(state.refs.items()):
        tree = read_commit(repository.objects, commit).tree
        if tree not in sizes:
            sizes[tree] = sum(decoded_bytes(*each) for each in repository.entries(tree))
        found[ref] = [(commit, False)], sizes[tree]
    return found


def _paths(
    repository: RepositoryCore, state: State, decoded_bytes: Callable[[str, Entry], int]
) -> tuple[dict[str, tuple[Sequence[Root], int]], dict[str, Kind]]:
    """Roots of all versions, decoded bytes and kind of the newest, of each path."""
    roots: dict[str, dict[Root, None]] = {}
    newest: dict[str, Entry] = {}
    for _, change in versions(repository.objects, state.refs.values()):
        if change is not None and change.new is not None:  # the newest commit comes first
            newest.setdefault(change.path, change.new)
            roots.setdefault(change.path, {}).update(dict.fromkeys(entry_roots(change.new)))
    named: dict[str, tuple[Sequence[Root], int]] = {
        path: (list(roots[path]), decoded_bytes(path, newest[path])) for path in sorted(roots)
    }
    return named, {path: entry.kind for path, entry in newest.items()}


def other_roots(state: State) -> dict[Digest, None]:
    """What keeps objects beside refs: dropped refs, leases and the log."""
    leased = (each for lease in state.leases.values() for each in lease.keep)
    return dict.fromkeys([*state.retained, *leased, *log_roots(state)])


def described(repository: RepositoryCore, roots: Iterable[Digest]) -> list[Root]:
    """Roots, and whether they link to nothing: one may be a file larger than memory."""
    return [(each, repository.objects.describe(each).leaf) for each in roots]
