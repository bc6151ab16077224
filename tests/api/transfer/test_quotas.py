"""Quotas of repositories: what would go beyond is refused, and what makes room is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.api.transfer.quotas import FRESH_SECONDS, StoredBytes
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.changes.refs import delete_ref
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import TooLargeError
from tests.support.builders.repositories import ADA, commit_files, files_at, tip_of
from tests.support.servers.service import RunningService, running_service

QUOTA_BYTES = 100_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "service", repository_bytes=QUOTA_BYTES) as running:
        with running.client() as client:
            client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        yield running


@pytest.fixture
def remote(small: RunningService) -> Iterator[RepositoryCore]:
    options = {"token": small.token}
    backend = open_http(f"{small.url}/team/photos", options, environment={})
    opened = open_repository(backend, drivers={})
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [QUOTA_BYTES + 1, 3 << 20])
def test_what_is_too_much_is_refused_and_nothing_is_committed(
    small: RunningService, remote: RepositoryCore, size: int
) -> None:
    with pytest.raises(TooLargeError, match="may take 100,000"):
        commit_files(remote, {"large.bin": os.urandom(size)})
    there = small.service.directory.open("team/photos").core
    assert tip_of(there) is None


def test_what_is_stored_counts_until_it_is_full(
    small: RunningService, remote: RepositoryCore
) -> None:
    files = {"first.bin": os.urandom(QUOTA_BYTES // 2)}
    commit_files(remote, files)
    with pytest.raises(TooLargeError):
        commit_files(remote, {"second.bin": os.urandom(QUOTA_BYTES // 2)})
    there = small.service.directory.open("team/photos").core
    assert files_at(there, tip_of(there)) == files


def test_what_makes_room_is_not_refused(small: RunningService, remote: RepositoryCore) -> None:
    commit_files(remote, {"a": b"a"}, branch="gone")
    small.service.directory.open("team/photos").kept(StoredBytes).add(QUOTA_BYTES)
    delete_ref(remote, "heads/gone", actor=ADA)
    assert tip_of(small.service.directory.open("team/photos").core, "gone") is None


def test_the_store_itself_is_asked_again_after_a_while(small: RunningService) -> None:
    times = iter([0.0, 0.0, 1.0, FRESH_SECONDS + 1, FRESH_SECONDS + 1])
    served = small.service.directory.open("team/photos")
    known = StoredBytes(served, lambda: next(times))
    before = known.total
    known.add(1000)
    assert (known.total, known.total) == (before + 1000, before)
