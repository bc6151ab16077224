"""Lazy clones: data comes when it is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.transfer.exchange import clone, push
from tensorrepo.repo.transfer.lazy_clone import complete, lazily, promise
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.faults.backends import CountingBackend

FILES = {"files/a": bytes(100_000), "files/b": b"two" * 50_000}


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


@pytest.fixture
def origin() -> RepositoryCore:
    made = new_repository(CountingBackend(MemoryBackend()))
    commit_files(made, FILES)
    commit_files(made, {"files/a": b"new"})
    return made


@pytest.fixture
def lazy(origin: RepositoryCore, options: TransferOptions) -> RepositoryCore:
    here = new_repository()
    promise(here.backend, origin.id)
    clone(HistorySource.of(origin), here, "origin", lazily(options))
    return opened(here, origin)


def opened(lazy: RepositoryCore, origin: RepositoryCore) -> RepositoryCore:
    again = open_repository(lazy.backend, drivers={})
    assert again.copy is not None
    again.objects.promised = lambda: origin.objects
    return again


def test_history_is_here_and_data_comes_when_it_is_read(
    lazy: RepositoryCore, origin: RepositoryCore
) -> None:
    stored = sum(each.bytes for each in lazy.backend.list("objects/"))
    assert stored < 5_000
    assert files_at(lazy, tip_of(lazy)) == FILES | {"files/a": b"new"}
    assert origin.url != lazy.url


def test_a_check_stops_at_what_is_promised(lazy: RepositoryCore) -> None:
    assert list(check_objects(lazy.objects, lazy.log.refresh().state, ObjectTotals())) == []


def test_a_lazy_clone_takes_commits_and_pushes_them(
    lazy: RepositoryCore, origin: RepositoryCore, options: TransferOptions
) -> None:
    made = commit_files(lazy, {"files/c": b"mine"})
    push(lazy, origin, ["main"], options)
    assert files_at(origin, made.digest)["files/c"] == b"mine"
    verify(origin.backend)


def test_it_is_pushed_elsewhere_with_the_data_that_it_has_not(
    lazy: RepositoryCore, options: TransferOptions
) -> None:
    other = new_repository()
    push(lazy, other, ["main"], options)
    assert files_at(other, tip_of(other)) == FILES | {"files/a": b"new"}


def test_completing_brings_all_data_and_needs_the_origin_no_more(
    lazy: RepositoryCore, options: TransferOptions
) -> None:
    totals = complete(lazy, options)
    assert totals.objects == 3
    whole = open_repository(lazy.backend, drivers={})
    assert whole.copy is None
    assert files_at(whole, tip_of(whole)) == FILES | {"files/a": b"new"}
    verify(lazy.backend)


def test_without_its_origin_what_was_not_read_is_said_to_be_missing(lazy: RepositoryCore) -> None:
    alone = open_repository(lazy.backend, drivers={})
    with pytest.raises(NotFoundError):
        files_at(alone, tip_of(alone))


def test_damage_at_the_origin_is_told_of_the_origin(
    lazy: RepositoryCore, origin: RepositoryCore, options: TransferOptions
) -> None:
    """Both are named, for a lazy clone reads through itself."""
    there = re.escape(origin.url)
    for stored in list(origin.backend.list("objects/")):
        if stored.bytes > 50_000:
            origin.backend.delete(stored.key)
            origin.backend.create(stored.key, (bytes(stored.bytes),))
    lazy = opened(lazy, open_repository(origin.backend, drivers={}))
    with pytest.raises(CorruptError, match=f"^{there}: object "):
        files_at(lazy, tip_of(lazy))
    with pytest.raises(CorruptError, match=f"^{there}: .* fsck --deep --repo {there}"):
        complete(lazy, options)
