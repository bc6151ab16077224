"""Cache peers that are real servers, with real tokens, beside a real store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.credentials import store_token
from tensorrepo.this_machine import machine
from tests.support.processes.shell import ADA
from tests.support.servers.object_stores import s3_on_ours
from tests.support.servers.service import RunningService, running_service

ROWS = 2000
NAME = "team/points"


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tr.Repository]:
    """A repository in S3, read by a user without a cache."""
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        repo = tr.init(f"{bucket.url}/repo", author=ADA)
        with repo.transaction("main") as tx:
            columns = {"x": tr.Tensor("float32", (1024,)), "y": "int64"}
            values = np.random.default_rng(0).random((ROWS, 1024), dtype=np.float32)
            values[:, 0] = np.arange(ROWS) * 1024
            tx.create_dataset("points", columns=columns).append({"x": values, "y": range(ROWS)})
        yield repo


@pytest.fixture
def peers(origin: tr.Repository, tmp_path: Path) -> Iterator[list[RunningService]]:
    """Two servers, each with a mirror of the repository on its own disk."""
    with ExitStack() as running:
        services = []
        for number in range(2):
            place = tmp_path / f"mirror-{number}"
            tr.clone(origin.url, place, mirror=True, author=ADA).close()
            data = tmp_path / f"service-{number}"
            service = running_service(data, repositories={NAME: str(place)})
            services.append(running.enter_context(service))
        yield services


def login(service: RunningService, token: str) -> None:
    """What `tensorrepo login` keeps."""
    store_token(machine(), service.url, "reader", token)


def urls(peers: list[RunningService]) -> list[str]:
    return [f"{peer.url}/{NAME}" for peer in peers]


def streamed(origin: tr.Repository, peers: list[str]) -> tr.Stream:
    """A stream whose rows were seen, all right, in two epochs."""
    loading = tr.Loading(cache_peers=peers, cache_limit=0, ahead="2MB")
    stream = origin.dataset("points").stream(batch_size=100, loading=loading)
    for _ in range(2):  # peers are opened beside the first epoch
        batches = list(stream)
        numbers = np.concatenate([batch["y"] for batch in batches])
        firsts = np.concatenate([batch["x"][:, 0] for batch in batches])
        assert sorted(numbers.tolist()) == list(range(ROWS))
        assert (firsts == numbers * 1024).all()
        assert opened(stream)
    stream.close()
    return stream


def opened(stream: tr.Stream) -> bool:
    """Waits until every peer has been opened, or has failed."""
    peers = stream.stored.setup.peers
    assert peers is not None
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if not any(each.is_opening for each in peers._peers):
            return True
        time.sleep(0.02)
    return False


def test_pages_come_from_servers_near_by(
    origin: tr.Repository, peers: list[RunningService]
) -> None:
    for peer in peers:
        login(peer, peer.user("reader", Grant(NAME, Action.READ)))
    stats = streamed(origin, urls(peers)).stats()
    assert stats.peer_requests > 0.9 * stats.requests
    assert stats.peer_bytes > ROWS * 4000


def test_a_digest_is_no_right_to_read(origin: tr.Repository, peers: list[RunningService]) -> None:
    login(peers[0], peers[0].user("reader", Grant("team/other", Action.READ)))  # no token at 1
    stream = streamed(origin, urls(peers))
    assert stream.stats().peer_requests == 0
    counts = stream.stored.setup.peers.counts()  # type: ignore[union-attr]
    assert all(count.failures == 1 for count in counts.values())
    assert all("token" in count.problem or "no" in count.problem for count in counts.values())


@pytest.mark.soak
def test_a_dead_peer_is_left_alone(origin: tr.Repository) -> None:
    dead = f"http://127.0.0.1:9/{NAME}"
    stream = streamed(origin, [dead])
    (count,) = stream.stored.setup.peers.counts().values()  # type: ignore[union-attr]
    assert (count.requests, count.failures) == (0, 1)
    assert "cannot reach" in count.problem


def test_a_peer_whose_disk_lies_is_found_out(
    origin: tr.Repository, peers: list[RunningService], tmp_path: Path
) -> None:
    login(peers[0], peers[0].user("reader", Grant(NAME, Action.READ)))
    large = [
        path for path in (tmp_path / "mirror-0" / "objects").rglob("*")
        if path.is_file() and path.stat().st_size > 1 << 20
    ]  # fmt: skip
    assert large
    for path in large:
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[4096::4096] = bytes(255 - byte for byte in data[4096::4096])
        path.write_bytes(data)
    stream = streamed(origin, [urls(peers)[0]])
    (count,) = stream.stored.setup.peers.counts().values()  # type: ignore[union-attr]
    assert count.failures >= 1


@pytest.mark.soak
def test_a_server_with_another_repository_is_no_peer(origin: tr.Repository, tmp_path: Path) -> None:
    other = tr.init(tmp_path / "other", author=ADA)
    with running_service(tmp_path / "s", repositories={NAME: str(other.url)}) as service:
        login(service, service.user("reader", Grant(NAME, Action.READ)))
        stream = streamed(origin, urls([service]))
        (count,) = stream.stored.setup.peers.counts().values()  # type: ignore[union-attr]
    assert "no copy of" in count.problem
    assert stream.stats().peer_requests == 0


@pytest.mark.parametrize("wrong", [["http://host/b", "http://host/b"], 3, [3]])
def test_one_url_twice_and_no_urls_are_refused(wrong: Any) -> None:
    with pytest.raises(tr.InvalidInputError, match="cache_peers"):
        tr.Loading(cache_peers=wrong)
