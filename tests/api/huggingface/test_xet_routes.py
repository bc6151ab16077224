"""Xet by plain requests: who may send what, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.huggingface.xet_uploads import EPOCH_SECONDS, begin_xet
from tests.support.builders.xet import Xorb, file_of, make_chunk, make_file, make_shard, make_xorb
from tests.support.servers.service import RunningService

TOKEN = "/api/models/ns/net/xet-write-token/main"


class Session:
    """A client that has a token."""

    def __init__(self, service: RunningService, token: str) -> None:
        with service.client(token) as client:
            self.told: dict[str, Any] = client.get(TOKEN).raise_for_status().json()
        self.url = str(self.told["casUrl"])
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {self.told['accessToken']}"},
            timeout=60,
            trust_env=False,
        )

    def put(self, xorb: Xorb, body: bytes | None = None) -> httpx.Response:
        sent = xorb.body if body is None else body
        return self.client.post(f"{self.url}/v1/xorbs/default/{xorb.name}", content=sent)

    def shard(self, content: bytes) -> httpx.Response:
        return self.client.post(f"{self.url}/v1/shards", content=content)


@pytest.fixture(scope="module")
def writers(service: RunningService) -> dict[str, str]:
    """Tokens of two who may write."""
    with service.client() as client:
        made = client.post("/api/repos/create", json={"name": "net", "organization": "ns"})
        made.raise_for_status()
    return {name: service.user(name, Grant("ns", Action.WRITE)) for name in ("ann", "bob")}


@pytest.fixture
def ann(service: RunningService, writers: dict[str, str]) -> Iterator[Session]:
    session = Session(service, writers["ann"])
    with session.client:
        yield session


@pytest.fixture
def bob(service: RunningService, writers: dict[str, str]) -> Iterator[Session]:
    session = Session(service, writers["bob"])
    with session.client:
        yield session


@pytest.fixture
def xorb() -> Xorb:
    """Two chunks that nobody sent before."""
    return make_xorb(secrets.token_bytes(1000), secrets.token_bytes(500), codec=1)


def spooled(service: RunningService, content: bytes) -> list[Path]:
    """Files of the spool that have, or may become, these bytes."""
    name = hashlib.sha256(content).hexdigest()
    found = service.service.spool.folder.rglob(f"{name}*")
    return [path for path in found if path.suffix != ".xxh3"]


def test_a_file_is_made_of_chunks_and_committed(
    service: RunningService, writers: dict[str, str], ann: Session, xorb: Xorb
) -> None:
    other = make_xorb(secrets.token_bytes(70_000))
    assert ann.put(xorb).json() == {"was_inserted": True}
    assert ann.put(xorb).json() == {"was_inserted": False}
    assert ann.put(other).json() == {"was_inserted": True}
    assert ann.shard(make_shard(file_of(other, xorb))).json() == {"result": 1}
    content = other.content + xorb.content
    lines = [
        {"key": "header", "value": {"summary": "s"}},
        {"key": "lfsFile", "value": {"path": "a", "oid": hashlib.sha256(content).hexdigest()}},
    ]
    with service.client(writers["ann"]) as client:
        body = "\n".join(map(json.dumps, lines))
        client.post("/api/models/ns/net/commit/main", content=body).raise_for_status()
        assert client.get("/ns/net/resolve/main/a").content == content


def test_a_file_may_have_the_same_chunks_again_and_parts_of_a_xorb(
    service: RunningService, ann: Session, xorb: Xorb
) -> None:
    first, second = xorb.chunks
    ann.put(xorb).raise_for_status()
    content = second + first + first
    segments = [(xorb.name, len(second), 1, 2), *[(xorb.name, len(first), 0, 1)] * 2]
    file = make_file(hashlib.sha256(content).hexdigest(), segments)
    assert ann.shard(make_shard(file)).status_code == 200
    (found,) = spooled(service, content)
    assert found.read_bytes() == content


# ------------------------------------------------------------------------------ who may


def test_who_may_only_read_gets_no_token(service: RunningService, writers: dict[str, str]) -> None:
    assert writers, "the repository is there"
    with service.client(service.user("rea", Grant("ns", Action.READ))) as client:
        assert client.get(TOKEN).status_code == 403


def test_a_token_of_the_service_is_none_of_an_upload(
    service: RunningService, writers: dict[str, str], ann: Session
) -> None:
    place = f"{ann.url}/v1/shards"
    for shown in ({}, {"Authorization": f"Bearer {writers['ann']}"}, {"Authorization": "Bearer x"}):
        assert httpx.post(place, content=b"", headers=shown, trust_env=False).status_code == 401
    with service.client(ann.told["accessToken"]) as client:
        assert client.get("/api/v1/me").status_code == 401


def test_a_token_of_one_repository_opens_no_other(ann: Session) -> None:
    elsewhere = ann.url.replace("/cas/ns/", "/cas/other/")
    assert ann.client.post(f"{elsewhere}/v1/shards", content=b"").status_code == 401


@pytest.mark.parametrize("epoch", ["..", "xet-1-0000000000000000", "rooms", "%2e%2e%2frooms"])
def test_an_epoch_that_is_none_is_404(ann: Session, epoch: str) -> None:
    place = ann.url.rpartition("/")[0]
    answer = ann.client.post(httpx.URL(f"{place}/{epoch}/v1/shards"), content=b"")
    assert answer.status_code in {401, 404, 405}


def test_somebody_elses_epoch_is_not_there(ann: Session, bob: Session, xorb: Xorb) -> None:
    assert ann.url != bob.url
    place = f"{ann.url}/v1/xorbs/default/{xorb.name}"
    assert bob.client.post(place, content=xorb.body).status_code == 404


def test_a_shard_may_not_refer_to_what_somebody_else_sent(
    service: RunningService, ann: Session, bob: Session, xorb: Xorb
) -> None:
    ann.put(xorb).raise_for_status()
    refused = bob.shard(make_shard(file_of(xorb)))
    assert (refused.status_code, "not sent by you" in refused.text) == (400, True)
    assert spooled(service, xorb.content) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "v1/chunks/default/{}"),
        ("GET", "v1/chunks/default-merkledb/{}"),
        ("POST", "v1/xorb-grants/default/{}"),
        ("POST", "v2/shards"),
    ],
)
def test_nothing_is_told_of_chunks_and_no_other_way_is_offered(
    ann: Session, xorb: Xorb, method: str, path: str
) -> None:
    ann.put(xorb).raise_for_status()
    assert ann.client.request(method, f"{ann.url}/{path.format(xorb.name)}").status_code == 404


# ------------------------------------------------------------------------------ epochs


def epoch_at(service: RunningService, token: str, clock_seconds: float) -> str:
    running = service.service
    access = running.enter(running.accounts.caller(token), "ns")
    return begin_xet(replace(running.spool, clock=lambda: clock_seconds), access).epoch


def test_an_epoch_goes_on_for_some_hours(service: RunningService, writers: dict[str, str]) -> None:
    began = time.time() + 1_000_000
    epochs = [
        epoch_at(service, writers["bob"], began + after)
        for after in (0, EPOCH_SECONDS - 2, EPOCH_SECONDS + 2)
    ]
    assert epochs[0] == epochs[1] != epochs[2]


def test_an_epoch_that_is_gone_is_followed_by_another(
    service: RunningService, writers: dict[str, str], ann: Session
) -> None:
    (folder,) = service.service.spool.folder.glob(f"*/{ann.url.rpartition('/')[2]}")
    os.utime(folder, (time.time() - 90_000,) * 2)
    after = Session(service, writers["ann"])
    with after.client:
        assert after.url != ann.url
    assert not folder.exists()
    assert ann.shard(b"").status_code == 404


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "body",
    [b"", b"not a xorb", make_xorb(b"other", b"chunks").body, make_chunk(b"first only")],
    ids=["nothing", "garbage", "others", "one"],
)
def test_a_xorb_with_wrong_chunks_is_refused(
    service: RunningService, ann: Session, xorb: Xorb, body: bytes
) -> None:
    assert ann.put(xorb, body).status_code == 400
    assert ann.shard(make_shard(file_of(xorb))).status_code == 400
    assert list(service.service.spool.folder.rglob(f"{xorb.name}*")) == []


@pytest.mark.parametrize("name", ["0" * 63, "..", "G" * 64, "a" * 500])
def test_a_name_that_no_xorb_has_is_refused(ann: Session, name: str) -> None:
    place = f"{ann.url}/v1/xorbs/default/{name}"
    assert ann.client.post(place, content=b"").status_code in {400, 404, 405}


@pytest.mark.soak
def test_a_body_that_is_larger_than_any_xorb_is_refused(ann: Session, xorb: Xorb) -> None:
    assert ann.put(xorb, bytes((80 << 20) + 1)).status_code == 413


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((0, 0, 3), "which has 2"),
        ((1, 0, 2), "the shard says"),
        ((0, 0, 1), "the shard says"),
    ],
    ids=["behind the end", "another size", "fewer chunks"],
)
def test_a_segment_that_its_xorb_does_not_have_is_refused(
    ann: Session, xorb: Xorb, change: tuple[int, int, int], told: str
) -> None:
    ann.put(xorb).raise_for_status()
    more, start, stop = change
    file = make_file("ab" * 32, [(xorb.name, len(xorb.content) + more, start, stop)])
    refused = ann.shard(make_shard(file))
    assert (refused.status_code, told in refused.text) == (400, True)


def test_a_file_that_is_not_what_its_hash_says_is_forgotten(
    service: RunningService, ann: Session, xorb: Xorb
) -> None:
    ann.put(xorb).raise_for_status()
    lie = hashlib.sha256(secrets.token_bytes(8)).hexdigest()
    refused = ann.shard(make_shard(make_file(lie, [(xorb.name, len(xorb.content), 0, 2)])))
    assert (refused.status_code, "expected" in refused.text) == (400, True)
    assert list(service.service.spool.folder.rglob(f"{lie}*")) == []


@pytest.mark.soak
def test_a_shard_that_would_fill_the_disk_is_refused_before_it_does(
    service: RunningService, ann: Session
) -> None:
    """48 bytes a segment: a small shard may tell of a very large file."""
    full = make_xorb(*[bytes(128 << 10)] * 512, codec=1)
    ann.put(full).raise_for_status()
    segments = [(full.name, 64 << 20, 0, 512)] * 100_000  # six terabytes
    refused = ann.shard(make_shard(make_file("ef" * 32, segments)))
    assert refused.status_code == 413
    assert list(service.service.spool.folder.rglob("ef" * 32 + "*")) == []
