"""Storage by owner, kept up to date: a commit costs what it changed, not what there is.

The first count lists the store and walks all of it, as `owner_usage` does. After that, commits that
are new tell what is new: versions of their entries are walked until objects are met that the owner
had. What takes something away (a collection, a branch that was reset, a ref that is gone) is
counted anew, and so is what has grown by a quarter since it was listed, or is an hour old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from typing import Any, Final

from tensorrepo.repo.changes.disk_usage import entry_roots, versions
from tensorrepo.repo.changes.growing_reach import GrowingReach
from tensorrepo.repo.changes.owner_usage import (
    KINDS_OF,
    Owners,
    OwnersUsage,
    OwnerUsage,
    described,
    measure_owners,
    other_roots,
)
from tensorrepo.repo.changes.reach import Root
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import is_ancestor, read_commit, walk
from tensorrepo.repo.history.trees import Entry, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State

MOST_BITMAP_BYTES: Final = 64 << 20  # many owners that share much are counted anew each time
MOST_LISTED: Final = 4 << 20  # objects of a store, 20 bytes each: what has more is, too
_LEAST_LATE: Final = 4096  # objects that may come before the store is listed again
_FRESH_SECONDS: Final = 3600.0  # what nobody leads to is seen by a listing alone

DecodedBytes = Callable[[str, Entry], int]


@dataclass(slots=True)
class _Owner:
    """One ref or path: its number, what its content takes when decoded, and where it stands."""

    number: int
    logical_bytes: int = 0
    shown: bool = True
    commit: Digest | None = None
    rank: tuple[int, str] = (-1, "")


@dataclass(slots=True)
class _Counted:
    """All that is known after a count, of the state of the log that it was made at."""

    reach: GrowingReach
    at: float
    state: State = field(default_factory=State)
    others: frozenset[Digest] = frozenset()
    owners: dict[str, _Owner] = field(default_factory=dict)

    def owner(self, name: str, **more: Any) -> _Owner:
        """The owner of that name, a new one where there is none."""
        known = self.owners.get(name)
        if known is None:
            known = self.owners[name] = _Owner(self.reach.new_owner(), **more)
        return known


class _CountAnewError(Exception):
    """Something was taken away, or what is known takes too much memory."""


class KeptOwners:
    """Storage of refs, datasets or models of one repository. Not thread-safe.

    Args:
        by: what the owners are.
        timer: seconds from any start.
    """

    def __init__(self, by: Owners, timer: Callable[[], float] = time.monotonic) -> None:
        self._by, self._timer = by, timer
        self._counted: _Counted | None = None
        self._is_too_large = False

    def measure(self, repository: RepositoryCore, decoded_bytes: DecodedBytes) -> OwnersUsage:
        """What each takes now, as `measure_owners` tells it.

        Objects that no ref leads to are in the sum of the store once it is listed again.
        """
        state = repository.log.refresh().state
        counted, self._counted = self._counted, None  # an error may leave it half grown
        if counted is not None and self._may_grow(counted, state):
            with suppress(_CountAnewError):
                return self._advance(repository, counted, state, decoded_bytes)
        if not self._is_too_large:
            fresh = _Counted(GrowingReach(repository.objects, state), self._timer())
            if fresh.reach.listed <= MOST_LISTED:
                with suppress(_CountAnewError):
                    return self._advance(repository, fresh, state, decoded_bytes)
            self._is_too_large = True
        return measure_owners(repository, self._by, decoded_bytes)

    def _may_grow(self, counted: _Counted, state: State) -> bool:
        """Whether nothing happened but that commits came, and refs and leases changed."""
        before, reach = counted.state, counted.reach
        return (
            before.generation <= state.generation
            and before.graves == state.graves
            and all(grave.ended for grave in state.graves)
            and before.config == state.config
            and before.shallow == state.shallow
            and before.supersedes == state.supersedes
            and before.purges == state.purges
            and reach.late <= max(_LEAST_LATE, reach.listed // 4)
            and self._timer() - counted.at < _FRESH_SECONDS
        )

    def _advance(
        self,
        repository: RepositoryCore,
        counted: _Counted,
        state: State,
        decoded_bytes: DecodedBytes,
    ) -> OwnersUsage:
        if self._by is Owners.REF:
            _grow_refs(repository, counted, state, decoded_bytes)
        else:
            _grow_paths(repository, counted, state, decoded_bytes, self._by)
        _note_others(repository, counted, state)
        counted.state = state
        self._counted = counted
        return self._told(counted)

    def _told(self, counted: _Counted) -> OwnersUsage:
        reach = counted.reach
        rows = (
            OwnerUsage(
                name,
                owner.logical_bytes,
                reach.stored[owner.number],
                reach.unique[owner.number],
                reach.freed[owner.number],
            )
            for name, owner in sorted(counted.owners.items())
            if owner.shown
        )
        return OwnersUsage(self._by, tuple(rows), reach.shown_bytes, reach.total_bytes)


def _grow_refs(
    repository: RepositoryCore, counted: _Counted, state: State, decoded_bytes: DecodedBytes
) -> None:
    if counted.owners.keys() - state.refs.keys():
        raise _CountAnewError
    sizes: dict[bytes, int] = {}  # of trees
    for ref, commit in sorted(state.refs.items()):
        owner = counted.owner(ref)
        if owner.commit == commit:
            continue
        tree = read_commit(repository.objects, commit).tree
        if owner.commit is not None:
            if not is_ancestor(repository.objects, owner.commit, commit):
                raise _CountAnewError
            before = read_commit(repository.objects, owner.commit).tree
            for change in diff(repository.objects, before, tree):
                for sign, entry in ((-1, change.old), (1, change.new)):
                    owner.logical_bytes += sign * decoded_bytes(change.path, entry) if entry else 0
        else:
            if tree not in sizes:
                sizes[tree] = sum(decoded_bytes(*each) for each in repository.entries(tree))
            owner.logical_bytes = sizes[tree]
        owner.commit = commit
        _grow(counted, owner, [(commit, False)])


def _grow_paths(
    repository: RepositoryCore,
    counted: _Counted,
    state: State,
    decoded_bytes: DecodedBytes,
    by: Owners,
) -> None:
    tips, before = set(state.refs.values()), set(counted.state.refs.values())
    gone = before - tips
    if gone and next(walk(repository.objects, gone, hidden=tips), None) is not None:
        raise _CountAnewError  # versions that no ref leads to any more
    roots: dict[str, dict[Root, None]] = {}
    newest: dict[str, tuple[tuple[int, str], Entry]] = {}
    rank = (-1, "")
    commits: list[Digest] = []
    for digest, change in versions(repository.objects, tips - before, hidden=before):
        if change is None:
            rank = (read_commit(repository.objects, digest).generation, digest)
            commits.append(digest)
        elif change.new is not None:  # the newest commit comes first
            newest.setdefault(change.path, (rank, change.new))
            roots.setdefault(change.path, {}).update(dict.fromkeys(entry_roots(change.new)))
    counted.reach.note_history(commits)
    for path, (rank, entry) in newest.items():
        shown = entry.kind is KINDS_OF[by]
        owner = counted.owner(path, shown=shown)
        if rank > owner.rank:
            if owner.shown is not shown:
                raise _CountAnewError
            owner.rank, owner.logical_bytes = rank, decoded_bytes(path, entry)
        _grow(counted, owner, roots[path])


def _grow(counted: _Counted, owner: _Owner, roots: Iterable[Root]) -> None:
    counted.reach.grow(list(roots), owner.number, shown=owner.shown)
    if counted.reach.bitmap_bytes > MOST_BITMAP_BYTES:
        raise _CountAnewError


def _note_others(repository: RepositoryCore, counted: _Counted, state: State) -> None:
    """Note what dropped refs, leases and the log keep, of what came since, or all of it anew."""
    now = other_roots(state)
    if counted.others - now.keys():
        counted.reach.forget_kept()
        counted.others = frozenset()
    new = [each for each in now if each not in counted.others]
    counted.reach.keep(described(repository, new))
    counted.others = frozenset(now)
