"""A small history with everything in it, and what can be done to it in one step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence, merge_branches, refs
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.shallow import end_entry
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import STATE_INTERVAL, LogEntry
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.repositories import (
    ADA,
    commit_files,
    files_at,
    new_repository,
    stage_files,
)
from tests.support.effort import sampled
from tests.support.faults.backends import WrappedBackend

Snapshot = dict[str, dict[str, bytes]]  # files by ref
MANY = {f"files/many/{at:03}": b"%d" % at for at in range(150)}


def history(backend: Backend) -> None:
    """main and dev went apart after a common commit, old is where main was.

    The next record is the 64th, which brings a checkpoint and a hint with it.
    """
    repository = new_repository(backend)
    first = commit_files(repository, {"files/a": b"one", "files/b": b"one"})
    refs.create_branch(repository, "dev", first.digest, actor=ADA)
    refs.create_branch(repository, "old", first.digest, actor=ADA)
    commit_files(repository, {"files/d": b"dev"}, branch="dev")
    commit_files(repository, {"files/a": b"two"})
    while repository.log.refresh().generation < STATE_INTERVAL - 1:
        noop = LogEntry(f"noop-{repository.log.refresh().generation}", "noop", ADA, 0)
        append(repository.log, lambda _, noop=noop: (noop,))  # type: ignore[misc]


def copied(backend: Backend, folder: Path | None = None) -> Backend:
    """Another store with the same keys; in `folder`, when it is a local one."""
    if isinstance(backend, LocalBackend):
        assert folder is not None
        shutil.copytree(backend.local_root, folder)
        return LocalBackend(folder)
    copy = MemoryBackend()
    for stored in backend.list(""):
        copy.create(stored.key, (backend.read(stored.key),))
    return copy


def snapshot(backend: Backend) -> Snapshot:
    """What a reader sees who remembers nothing: every ref, with all of its files, verified."""
    repository = open_repository(backend, drivers={})
    state = repository.log.refresh().state
    return {ref: files_at(repository, commit) for ref, commit in state.refs.items()}


def verify(backend: Backend) -> None:
    """Read the whole chain, and every object that anything leads to; raises what is wrong."""
    repository = open_repository(backend, drivers={})
    view = repository.log.refresh()
    assert len(list(repository.log.records(1, view.generation + 1))) == view.generation
    for digest in gc_fence.closure(repository.objects, view.state.roots(), view.state.supersedes):
        repository.objects.get(digest)


# Each of these is one atomic change.


def commit(repository: RepositoryCore) -> None:
    commit_files(repository, {"files/new": b"new", "files/b": None})


def commit_many(repository: RepositoryCore) -> None:
    commit_files(repository, MANY)


def first_commit(repository: RepositoryCore) -> None:
    commit_files(repository, {"files/new": b"new"}, branch="born")


def commit_on_what_moved(repository: RepositoryCore) -> None:
    """Staged on the first commit, and merged with the second."""
    first = repository.log.view_at(1)
    transaction = begin(repository, "main", pin=first)
    stage_files(transaction, {"files/new": b"new"})
    assert transaction.commit("late", author=ADA) is not None


def merge(repository: RepositoryCore) -> None:
    other = repository.log.refresh().state.refs["heads/dev"]
    merge_branches.merge(repository, "main", other, author=ADA, message="merge")


def forward(repository: RepositoryCore) -> None:
    other = repository.log.refresh().state.refs["heads/main"]
    merge_branches.merge(repository, "old", other, author=ADA, message="merge")


def branch(repository: RepositoryCore) -> None:
    commit = repository.log.refresh().state.refs["heads/dev"]
    refs.create_branch(repository, "new", commit, actor=ADA)


def rename(repository: RepositoryCore) -> None:
    refs.rename_branch(repository, "dev", "renamed", actor=ADA)


def delete(repository: RepositoryCore) -> None:
    refs.delete_ref(repository, "heads/dev", actor=ADA)


def undo(repository: RepositoryCore) -> None:
    refs.undo(repository, "main", actor=ADA)


# What can be done, by name.
CHANGES: Mapping[str, Callable[[RepositoryCore], None]] = {
    "commit": commit,
    "commit of many files": commit_many,
    "first commit of a branch": first_commit,
    "commit on a branch that moved": commit_on_what_moved,
    "merge": merge,
    "fast-forward": forward,
    "branch": branch,
    "rename": rename,
    "delete": delete,
    "undo": undo,
}


class _LikeADisk(WrappedBackend):
    """Memory that says it is a disk on this machine, to which other requests are made."""

    @property
    def local_root(self) -> Path | None:
        return Path("/")


class Harm:
    """The history, what each change makes of it, and where a change can be harmed."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        history(self.backend)
        self.before = snapshot(self.backend)
        self.after = {change: self._after(change) for change in CHANGES}

    def _after(self, change: str) -> Snapshot:
        backend = copied(self.backend)
        CHANGES[change](open_repository(backend, drivers={}))
        return snapshot(backend)

    def operations(
        self, change: str, *, late: bool = False, disk: bool = False
    ) -> list[tuple[str, str]]:
        """What a client that has read the log does for a change."""
        kind = _LikeADisk if disk else WrappedBackend
        backend = kind(copied(self.backend), late=late)
        CHANGES[change](warm(backend))
        return backend.operations

    def places(self, *changes: str, disk: bool = False) -> list[tuple[str, bool, int]]:
        """Changes, whether their uploads are late, and the numbers of their operations from 1.

        Of a row of reads, or of uploads, the first and the last; of those that remain every third
        but in a soak.
        """
        found = []
        for change in changes:
            for late in (False, True):
                verbs = [verb for verb, _ in self.operations(change, late=late, disk=disk)]
                around = zip(["", *verbs[:-1]], verbs, [*verbs[1:], ""], strict=True)
                found += [
                    (change, late, at)
                    for at, (before, verb, after) in enumerate(around, 1)
                    if verb not in ("read", "upload") or not before == verb == after
                ]
        return sampled(found, -(-len(found) // 5))


@cache
def harm() -> Harm:
    """The one history of this process."""
    return Harm()


def warm(backend: WrappedBackend) -> RepositoryCore:
    """A repository that has read the log; its backend counts operations from here."""
    repository = open_repository(backend, drivers={})
    repository.log.refresh()
    backend.operations.clear()
    return repository


def to_disk(backend: Backend, folder: Path) -> LocalBackend:
    """The same keys in a folder."""
    for stored in backend.list(""):
        (folder / stored.key).parent.mkdir(parents=True, exist_ok=True)
        (folder / stored.key).write_bytes(backend.read(stored.key))
    return LocalBackend(folder)


def extend_history(repository: RepositoryCore, commits: Collection[Digest], *, actor: str) -> None:
    """Let history go on behind commits, as a transfer does that stored their parents."""

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        known = sorted(set(commits) & view.state.shallow)
        writer = ObjectWriter(repository.objects, view.state.graves)
        for ended in known:
            for parent in read_commit(repository.objects, ended).beyond:
                gc_fence.secure_commit(writer, view.state, parent)
        return (end_entry(actor, remove=known),) if known else ()

    repository.append(decide)
