"""When the power fails, what was acknowledged is there, and whatever is there is whole."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tensorrepo.repo.backends.disk import _storing
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.expire import KeepRule, expire
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import Error
from tensorrepo.repo.transfer.exchange import clone, fetch, push
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import history, to_disk, verify
from tests.support.builders.repositories import ADA, commit_files, new_repository, tip_of
from tests.support.effort import sampled, soaking
from tests.support.faults.power import Journal, JournaledDisk, remains

# Goes to disk beside others; in a soak it also comes in parts.
LARGE = random.Random(1).randbytes(5 << 20 if soaking() else 1_200_000)
RULES = CollectionRules(grace_seconds=0, retention_seconds=0)
SHARES = (0.0, 1.0, 0.5, 0.5, 0.9) if soaking() else (0.0, 0.5)  # of what survives by chance


class Journaling:
    """A repository on a journaled disk, and what its clients were told."""

    def __init__(self, folder: Path, omits: Sequence[str] = ()) -> None:
        self.journal = Journal()
        self.before = {stored.key: base().read(stored.key) for stored in base().list("")}
        store = to_disk(base(), folder / "store").local_root
        assert store is not None
        self.folder, self.store = folder, store
        self.disk = JournaledDisk(store, self.journal, omits)
        self.backend = LocalBackend(store, disk=self.disk)
        self.repository = open_repository(self.backend, drivers={})
        self.options = TransferOptions(ADA, folder / "parts")

    def told(self) -> None:
        """Somebody was told that it is done: the log may never fall behind this."""
        view = self.repository.log.refresh()
        self.journal.promise(view.generation, view.digest)

    def empty(self) -> None:
        """Begin with no repository at all."""
        store = self.folder / "new"
        self.before = {}
        self.backend = LocalBackend(store, disk=JournaledDisk(store, self.journal))


@cache
def base() -> MemoryBackend:
    """A history that is about to get its 64th record, and another one to push and fetch."""
    backend = MemoryBackend()
    history(backend)
    return backend


@cache
def other() -> RepositoryCore:
    """A copy that went on."""
    backend = MemoryBackend()
    for stored in base().list(""):
        backend.create(stored.key, (base().read(stored.key),))
    repository = open_repository(backend, drivers={})
    commit_files(repository, {"files/large": LARGE, "files/new": b"new"}, branch="far")
    commit_files(repository, {f"files/{n}": b"%d" % n for n in range(20)}, branch="far")
    return repository


def commits(at: Journaling) -> None:
    for number in range(3):
        commit_files(at.repository, {"files/a": b"%d" % number, f"files/n{number}": b"n"})
        at.told()


def large_commit(at: Journaling) -> None:
    commit_files(at.repository, {"files/large": LARGE, "files/small": b"small"})
    at.told()
    commit_files(at.repository, {f"files/many/{n:02}": b"%d" % n for n in range(12)})
    at.told()


def merge(at: Journaling) -> None:
    tip = at.repository.log.refresh().state.refs["heads/dev"]
    merge_branches.merge(at.repository, "main", tip, author=ADA, message="merge")
    at.told()


def move_refs(at: Journaling) -> None:
    tip = tip_of(at.repository)
    assert tip is not None
    refs.create_branch(at.repository, "new", tip, actor=ADA)
    refs.rename_branch(at.repository, "dev", "renamed", actor=ADA)
    refs.delete_ref(at.repository, "heads/old", actor=ADA)
    at.told()
    refs.undo(at.repository, "main", actor=ADA)
    at.told()


def collect(at: Journaling) -> None:
    refs.delete_ref(at.repository, "heads/dev", actor=ADA)
    at.told()
    collect_garbage(at.repository, actor=ADA, rules=RULES)
    at.told()
    commit_files(at.repository, {"files/d": b"dev"})  # what was just deleted
    at.told()


def give_up(at: Journaling) -> None:
    commit_files(at.repository, {"files/a": b"three"})
    expire(at.repository, "main", KeepRule(1), actor=ADA, now_ns=0)
    at.told()
    collect_garbage(at.repository, actor=ADA, rules=RULES)
    at.told()


def pushed_to(at: Journaling) -> None:
    push(other(), at.repository, ["far"], at.options)
    at.told()


def fetched(at: Journaling) -> None:
    fetch(HistorySource.of(other()), at.repository, "origin", at.options)
    at.told()


def cloned(at: Journaling) -> None:
    at.empty()
    at.repository = new_repository(at.backend)
    at.told()
    clone(HistorySource.of(other()), at.repository, "origin", at.options)
    at.told()


def mirrored(at: Journaling) -> None:
    at.empty()
    begin_mirror(other(), at.backend)
    at.repository = open_repository(at.backend, drivers={})
    follow(other(), at.repository, at.options)
    at.told()


SCENARIOS: dict[str, Callable[[Journaling], None]] = {
    "commits": commits,
    "large commit": large_commit,
    "merge": merge,
    "refs": move_refs,
    "collection": collect,
    "expiry": give_up,
    "push": pushed_to,
    "fetch": fetched,
    "clone": cloned,
    "mirror": mirrored,
}


def check(at: Journaling, step: int, share: float) -> None:
    """Cut the power after so many steps; open what is left, and go on."""
    left = remains(at.before, at.journal, step, random.Random(f"{step} {share}"), share)
    promised = at.journal.last_promise(step)
    backend = MemoryBackend()
    for key, data in left.items():
        backend.create(key, (data,))
    if "repo.json" not in left:
        assert promised is None
        return
    repository = open_repository(backend, drivers={})
    state = repository.log.refresh().state
    verify(backend)
    assert list(check_objects(repository.objects, state, ObjectTotals(), deep=True)) == []
    if promised is not None:
        generation, digest = promised
        assert repository.log.view_at(generation).digest == digest
    if repository.log.read_only is None:
        commit_files(repository, {"files/after": b"after"})
        verify(backend)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_after_any_step_loses_nothing_that_was_acknowledged(
    scenario: str, tmp_path: Path
) -> None:
    at = Journaling(tmp_path)
    SCENARIOS[scenario](at)
    steps = range(len(at.journal.steps) + 1)
    for step in sampled(steps, 2):
        for share in SHARES:
            check(at, step, share)


@pytest.mark.skipif(_storing is None, reason="no compiler when this was installed")
def test_commits_store_their_files_in_one_call(tmp_path: Path) -> None:
    at = Journaling(tmp_path)
    commits(at)
    assert at.disk.one_calls >= 3  # the records; folders of objects are new


@pytest.mark.parametrize("omitted", ["sync", "sync folder"])
def test_a_store_that_does_not_sync_is_caught(omitted: str, tmp_path: Path) -> None:
    at = Journaling(tmp_path, [omitted])
    commits(at)
    with pytest.raises((AssertionError, Error)):
        check(at, len(at.journal.steps), 0.0 if omitted == "sync folder" else 0.5)
