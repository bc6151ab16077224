"""Mirrors: the log and all objects, verbatim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.errors import ConflictError, PermissionDenied, RepositoryRewound
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.transfer.exchange import push
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import TransferOptions
from tests.support.builders.histories import copied, history, snapshot, verify
from tests.support.builders.repositories import ADA, commit_files, new_repository, tip_of
from tests.support.faults.backends import CountingBackend


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


def mirrored(origin: RepositoryCore, backend: Backend, options: TransferOptions) -> RepositoryCore:
    begin_mirror(origin, backend)
    mirror = open_repository(backend, drivers={})
    follow(origin, mirror, options)
    return mirror


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_mirror_has_every_record_of_the_log_and_follows(
    kind: str, tmp_path: Path, options: TransferOptions
) -> None:
    backend = LocalBackend(tmp_path / "mirror") if kind == "local" else MemoryBackend()
    source = MemoryBackend()
    history(source)
    origin = open_repository(source, drivers={})
    commit_files(origin, {"files/a": b"three"})  # record 64, with a checkpoint
    mirror = mirrored(origin, backend, options)
    assert logged(backend) == logged(source)
    assert snapshot(backend) == snapshot(source)
    commit_files(origin, {"files/z": b"later"})
    refs.delete_ref(origin, "heads/old", actor=ADA)
    report = follow(origin, mirror, options)
    assert report.records == 2
    assert logged(backend) == logged(source)
    verify(backend)


def test_a_far_mirror_of_a_disk_has_short_segments(
    tmp_path: Path, options: TransferOptions
) -> None:
    origin = new_repository(LocalBackend(tmp_path / "origin"))
    made = [commit_files(origin, {"a": b"%d" % at}).digest for at in range(70)]
    assert list(origin.backend.list("log/segment/")) == []
    far = CountingBackend(MemoryBackend())
    mirrored(origin, far, options)
    reader = open_repository(far, drivers={})
    reader.log.refresh()
    far.reset()
    assert [digest for digest, _ in walk(reader.objects, made[-1:])] == made[::-1]
    assert far.count["read"] < 20


def test_a_mirror_takes_no_commit(options: TransferOptions) -> None:
    origin = new_repository()
    commit_files(origin, {"files/a": b"one"})
    mirror = mirrored(origin, MemoryBackend(), options)
    with pytest.raises(PermissionDenied, match="this is a mirror"):
        commit_files(mirror, {"files/a": b"two"})
    keys = [stored.key for stored in mirror.backend.list("")]
    made = commit_files(origin, {"files/a": b"two"})
    with pytest.raises(PermissionDenied, match="this is a mirror"):
        push(origin, mirror, ["main"], options)
    assert [stored.key for stored in mirror.backend.list("")] == keys
    assert tip_of(mirror) != made.digest


def test_a_mirror_that_lags_is_not_taken_for_a_rewound_repository(
    tmp_path: Path, options: TransferOptions
) -> None:
    local = LocalState(memory=tmp_path / "memory")
    origin = create_repository(MemoryBackend(), drivers={}, local=local)
    commit_files(origin, {"files/a": b"one"})
    mirror = mirrored(origin, MemoryBackend(), options)
    commit_files(origin, {"files/a": b"two"})
    late = open_repository(mirror.backend, drivers={}, local=local)
    assert late.log.refresh().generation == origin.log.refresh().generation - 1
    follow(origin, mirror, options)
    assert tip_of(late) == tip_of(origin)


def test_an_origin_that_was_put_back_does_not_change_its_mirror(options: TransferOptions) -> None:
    origin = new_repository()
    commit_files(origin, {"files/a": b"one"})
    older = copied(origin.backend)
    commit_files(origin, {"files/a": b"two"})
    mirror = mirrored(origin, MemoryBackend(), options)
    before = snapshot(mirror.backend)
    with pytest.raises(RepositoryRewound, match="the mirror has the newer past"):
        follow(open_repository(older, drivers={}), mirror, options)
    assert snapshot(mirror.backend) == before


def test_a_mirror_is_not_made_over_another_repository() -> None:
    origin, other = new_repository(), new_repository()
    with pytest.raises(ConflictError, match="another repository"):
        begin_mirror(origin, other.backend)


def logged(backend: Backend) -> dict[str, bytes]:
    """The log, and all that is kept beside it."""
    return {stored.key: backend.read(stored.key) for stored in backend.list("log/")}
