"""No space, a defect, a read-only disk, a login that expires: an error, nothing half, and again."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.disk import TEMPORARY
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    Error,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.log.append import resolve
from tensorrepo.repo.transfer.exchange import push
from tensorrepo.repo.transfer.receive import TransferOptions
from tests.support.builders.histories import copied, harm, merge, snapshot, to_disk, verify
from tests.support.builders.repositories import ADA, commit_files, stage_files, tip_of
from tests.support.effort import sampled, sampled_product
from tests.support.faults.refusing import ExpiredLogin, FailingCalls

LARGE = bytes(1_200_000)


def small_commit(repository: RepositoryCore) -> None:
    _commit(repository, {"files/new": b"new", "files/b": None})


def large_commit(repository: RepositoryCore) -> None:
    _commit(repository, {"files/large": LARGE, "files/b": None})


def _commit(repository: RepositoryCore, files: dict[str, bytes | None]) -> None:
    with begin(repository, "main") as transaction:
        stage_files(transaction, files)
        transaction.commit("change", author=ADA)


def pushed(repository: RepositoryCore) -> None:
    source = open_repository(copied(harm().backend), drivers={})
    commit_files(source, {"files/large": LARGE, "files/a": b"new"})
    with TemporaryDirectory() as folder:
        push(source, repository, ["main"], TransferOptions(ADA, Path(folder)))


def collected(repository: RepositoryCore) -> None:
    """Of a branch that is dropped first, if it was not before."""
    if "heads/dev" in repository.log.refresh().state.refs:
        refs.delete_ref(repository, "heads/dev", actor=ADA)
    rules = CollectionRules(grace_seconds=0, retention_seconds=0)
    collect_garbage(repository, actor=ADA, rules=rules)


CHANGES: dict[str, Callable[[RepositoryCore], None]] = {
    "commit": small_commit,
    "large commit": large_commit,
    "merge": merge,
    "push": pushed,
    "collection": collected,
}


def check_whole(backend: Backend) -> None:
    verify(backend)
    repository = open_repository(backend, drivers={})
    state = repository.log.refresh().state
    assert list(check_objects(repository.objects, state, ObjectTotals(), deep=True)) == []


def check(change: str, backend: Backend, heal: Callable[[], None], kinds: tuple[type, ...]) -> None:
    """It is refused, or comes about all the same; all is whole; and again it works."""
    unknown: CommitOutcomeUnknown | None = None
    told = "nothing"
    before = snapshot(copied(harm().backend))
    try:
        CHANGES[change](open_repository(backend, drivers={}))
        done = True
    except CommitOutcomeUnknown as error:
        unknown, done = error, False
    except kinds as error:
        told, done = str(error), False
    heal()
    assert re.search("nothing|cannot|could not|refuses", told)
    check_whole(backend)
    fresh = open_repository(backend, drivers={})
    if unknown is not None:
        outcome = resolve(fresh.log, unknown.txn, unknown.generation, settle=True)
        assert outcome in ("landed", "lost")
        done = outcome == "landed"
    if not done:
        assert change == "collection" or snapshot(backend) == before
        CHANGES[change](open_repository(backend, drivers={}))
    check_whole(backend)
    assert tip_of(open_repository(backend, drivers={})) is not None


@sampled_product("change,error", CHANGES, [errno.ENOSPC, errno.EIO, errno.EROFS], dev=5)
def test_a_disk_that_fails_on_the_way_harms_nothing(
    change: str, error: int, tmp_path: Path
) -> None:
    whole = to_disk(harm().backend, tmp_path / "whole")
    counting = FailingCalls(error, 10**9)
    copied(whole, tmp_path / "counted")
    with counting.installed():
        CHANGES[change](open_repository(counting.backend(tmp_path / "counted"), drivers={}))
    for at in sampled(range(counting.calls), 3):
        folder = tmp_path / str(at)
        copied(whole, folder)
        calls = FailingCalls(error, at)

        def heal(calls: FailingCalls = calls) -> None:
            calls.healed = True

        with calls.installed():
            check(change, calls.backend(folder), heal, (StorageError, PermissionDenied))
        assert [path.name for path in (folder / TEMPORARY).glob("*-*")] in ([], ["append-queue"])


@pytest.mark.parametrize("change", CHANGES)
def test_a_login_that_expires_on_the_way_harms_nothing(change: str) -> None:
    counting = ExpiredLogin(copied(harm().backend), 10**9)
    CHANGES[change](open_repository(counting, drivers={}))
    for at in sampled(range(1, len(counting.operations) + 1), 3):
        login = ExpiredLogin(copied(harm().backend), at)

        def heal(login: ExpiredLogin = login) -> None:
            login.renewed = True

        check(change, login, heal, (PermissionDenied, StorageError))


def test_a_store_that_names_what_it_could_not_write_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client that takes no notice of a write that failed leaves half of it behind a name."""
    whole = to_disk(harm().backend, tmp_path / "whole")
    copied(whole, tmp_path / "store")
    calls = FailingCalls(errno.ENOSPC, 1)  # the first write

    def careless(fd: int, parts: list[memoryview]) -> None:
        try:
            calls.writev(fd, parts)
        except OSError:
            calls.healed = True

    monkeypatch.setattr("tensorrepo.repo.backends.disk._write", careless)
    with calls.installed(), pytest.raises((AssertionError, Error)):
        check("commit", calls.backend(tmp_path / "store"), lambda: None, (StorageError,))
