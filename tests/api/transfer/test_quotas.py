"""Quotas of repositories: what would go beyond is refused, and what makes room is not."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tensorrepo.api.transfer.quotas import FRESH_SECONDS, StoredBytes
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import MessageHead, encode_message
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


def in_pieces(running: RunningService) -> None:
    base = "/api/v1/repositories/team/photos/-"
    with running.client() as client:
        told = client.put(f"{base}/uploads/{'ab' * 32}/1000/0", content=os.urandom(1000))
    assert told.status_code == 400, told.text


def in_a_message(running: RunningService) -> None:
    broken = encode_message(MessageHead((("ab" * 32, 1000),)), [os.urandom(1000)])
    with running.client() as client:
        told = client.post("/api/v1/repositories/team/photos/-/objects", content=broken)
    assert told.status_code == 400, told.text


@pytest.mark.parametrize("refused", [in_pieces, in_a_message])
def test_what_was_refused_does_not_count(
    small: RunningService, refused: Callable[[RunningService], None]
) -> None:
    known = small.service.directory.open("team/photos").kept(StoredBytes)
    before = known.total
    refused(small)
    assert known.total == before


def test_what_a_listing_told_is_not_given_back_again(small: RunningService) -> None:
    times = iter([0.0, 0.0, FRESH_SECONDS + 1, FRESH_SECONDS + 1, FRESH_SECONDS + 1])
    known = StoredBytes(small.service.directory.open("team/photos"), lambda: next(times))
    before, listed_at = known.take(1000, QUOTA_BYTES)
    assert known.total == before
    known.give_back(1000, listed_at)
    assert known.total == before


def hugging(client: httpx.Client, size: int) -> httpx.Response:
    """Commit a file by Hugging Face's API."""
    made = {"name": "net", "organization": "plain", "type": "model"}
    client.post("/api/repos/create", json=made)
    content = base64.b64encode(os.urandom(size)).decode()
    lines = [
        {"key": "header", "value": {"summary": "s"}},
        {"key": "file", "value": {"content": content, "path": "a.bin", "encoding": "base64"}},
    ]
    body = "\n".join(map(json.dumps, lines))
    headers = {"Content-Type": "application/x-ndjson"}
    return client.post("/api/models/plain/net/commit/main", content=body, headers=headers)


def logging(client: httpx.Client, size: int) -> httpx.Response:
    """Log a file of a run by MLflow's API."""
    client.post("/api/v1/repositories", json={"name": "plain"})
    base = "/plain/api/2.0/mlflow"
    run = client.post(f"{base}/runs/create", json={"experiment_id": "0"}).json()
    place = run["run"]["info"]["artifact_uri"].partition(":")[2].lstrip("/")
    place = place.partition("artifacts/")[2] if "artifacts/runs" in place else place
    return client.put(f"{base}-artifacts/artifacts/{place}/a.bin", content=os.urandom(size))


@pytest.mark.parametrize("store", [hugging, logging])
def test_clients_of_elsewhere_have_the_same_quota(
    small: RunningService, store: Callable[[httpx.Client, int], httpx.Response]
) -> None:
    with small.client() as client:
        assert store(client, 1000).is_success
        refused = store(client, QUOTA_BYTES + 1)
    assert refused.status_code == 413
    assert "may take 100,000" in refused.text


def test_uploads_at_the_same_time_do_not_share_room(small: RunningService) -> None:
    known = StoredBytes(small.service.directory.open("team/photos"))
    room = known.total + 15
    fits: list[bool] = []

    def take(most: int) -> None:
        fits.append(known.take(10, most)[0] + 10 <= room)

    other = threading.Thread(target=take, args=(room,))

    class Compared(int):
        """A quota: when somebody compares with it, another one comes."""

        def __ge__(self, taken: int) -> bool:
            other.start()
            other.join(0.2)
            return int(self) >= taken

    take(Compared(room))
    other.join()
    assert sorted(fits) == [False, True]


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
