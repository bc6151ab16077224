"""A service over a bucket: what clients see is what they see over a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.housekeeping import INCOMING_SECONDS, Housekeeping
from tensorrepo.api.transfer.stored_values import WHOLE_BYTES, KnownObjects, SmallValue, open_value
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.purge import Twins, append_purge
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object
from tests.support.builders.repositories import ADA, commit_files, files_at, tip_of
from tests.support.effort import sampled
from tests.support.servers.object_stores import Bucket, s3_on_moto, s3_on_ours
from tests.support.servers.service import RunningService, caches_of, running_service

PRESIGNED_BYTES = 1 << 20
BASE = "/api/v1/repositories/team/photos/-"
STORE = f"{BASE}/store"


@pytest.fixture(scope="module", params=sampled(["ours", "moto"], 1))
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    root = tmp_path_factory.mktemp("s3")
    with s3_on_moto() if request.param == "moto" else s3_on_ours(root) as made:
        yield made


@pytest.fixture(scope="module")
def over_s3(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(
        tmp_path_factory.mktemp("service"),
        environment=bucket.environment,
        storage=f"{bucket.url}/all",
        presigned_bytes=PRESIGNED_BYTES,
    ) as running:
        with running.client() as client:
            client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        yield running


@pytest.fixture
def remote(over_s3: RunningService) -> Iterator[RepositoryCore]:
    url = f"{over_s3.url}/team/photos"
    opened = open_repository(open_http(url, {"token": over_s3.token}, environment={}), drivers={})
    yield opened
    opened.close()


def test_commits_through_the_service_are_in_the_bucket(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    files = {"small": b"words", "large": os.urandom(3 << 20)}
    commit_files(remote, files)
    there = over_s3.service.directory.open("team/photos").core
    assert files_at(there, tip_of(there)) == files_at(remote, tip_of(remote)) == files


def test_an_object_of_several_pieces_is_stored(remote: RepositoryCore) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(PIECE_BYTES + 99))
    digest = encoded.link.digest
    key = f"objects/{digest[:2]}/{digest[2:]}"
    remote.backend.create(key, encoded.parts)
    assert remote.backend.read(key) == b"".join(encoded.parts)


def test_large_values_come_straight_from_the_store(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    whole, digest = b"".join(encoded.parts), encoded.link.digest
    key = f"objects/{digest[:2]}/{digest[2:]}"
    remote.backend.create(key, encoded.parts)
    with over_s3.client() as client:
        path = f"/api/v1/repositories/team/photos/-/store/{key}"
        answer = client.get(path)
        head = client.head(path)
    signed = answer.headers["Location"]
    assert (answer.status_code, head.status_code) == (307, 200)
    assert over_s3.token not in signed
    told = [one for one in over_s3.audited() if one["kind"] == "download"]
    assert told[-1]["paths"] == [path]
    assert "by an address of the store" in told[-1]["detail"]
    assert httpx.get(signed).content == whole
    assert "X-Amz-Expires=900" in signed
    assert bytes(remote.backend.read_range(key, 5, 1 << 20)) == whole[5 : 1 << 20]


def _large(remote: RepositoryCore) -> tuple[str, bytes]:
    """An object of 2 MiB that is stored: its key and bytes."""
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    digest = encoded.link.digest
    key = f"objects/{digest[:2]}/{digest[2:]}"
    remote.backend.create(key, encoded.parts)
    return key, b"".join(encoded.parts)


def test_an_address_is_bound_to_the_range_that_was_asked_for(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    key, whole = _large(remote)
    asked = {"Range": "bytes=7-1048575"}
    with over_s3.client() as client:
        signed = client.get(f"{STORE}/{key}", headers=asked).headers["Location"]
    assert "X-Amz-SignedHeaders=host%3Brange" in signed
    assert httpx.get(signed, headers=asked).content == whole[7 : 1 << 20]


def test_addresses_of_many_objects_come_in_one_answer_and_are_audited(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    small = encode_object(Kind.CHUNK, b"words").link.digest
    stored = [_large(remote) for _ in range(2)]
    keys = [key for key, _ in stored]
    asked = {"keys": [*keys, f"objects/{small[:2]}/{small[2:]}", "log/hint"]}
    with over_s3.client() as client:
        answer = client.post(f"{BASE}/addresses", json=asked).json()
    found = answer["addresses"]
    ranged = [httpx.get(found[key], headers={"Range": "bytes=5-99"}).content for key in keys]
    told = [one for one in over_s3.audited() if one["kind"] == "download"][-1]
    narrow = over_s3.user("nan", Grant("team/photos", Action.READ, "heads/other"))
    with over_s3.client(narrow) as client:
        refused = client.post(f"{BASE}/addresses", json=asked)
    assert (sorted(found), answer["seconds"]) == (sorted(keys), 900)
    assert ranged == [whole[5:100] for _, whole in stored]
    assert told["paths"] == [f"{STORE}/{key}" for key in keys]
    assert refused.status_code == 403


@pytest.mark.soak
def test_a_stream_of_ranges_asks_the_service_twice(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    key, whole = _large(remote)
    before = len(over_s3.audited())
    read = [bytes(remote.backend.read_range(key, at, at + 999)) for at in range(0, 9990, 999)]
    told = [one["method"] for one in over_s3.audited()[before:]]
    assert b"".join(read) == whole[:9990]
    assert told == ["GET", "POST"]


def test_who_may_read_some_refs_gets_addresses_by_ways(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    commit_files(remote, {"far": os.urandom(2 << 20)})
    token = over_s3.user("pat", Grant("team/photos", Action.READ, "heads/main"))
    url = f"{over_s3.url}/team/photos"
    partial = open_repository(open_http(url, {"token": token}, environment={}), drivers={})
    tree = read_commit(partial.objects, tip_of(partial)).tree
    link = partial.objects.describe(dict(partial.entries(tree))["far"].digest)
    before = len(over_s3.audited())
    read = [bytes(partial.objects.read_range(link, at, at + 9)) for at in (0, 9, 18)]
    told = [one["method"] for one in over_s3.audited()[before:]]
    partial.close()
    whole = remote.objects.get(link.digest).payload
    assert b"".join(read) == whole[:27]
    assert told == ["GET", "POST"]


def _counted(over_s3: RunningService) -> list[str]:
    return [path for one in over_s3.audited() for path in one["paths"] if "/incoming" in path]


def test_large_objects_go_straight_to_the_store_and_are_verified_there(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    before = len(_counted(over_s3))
    key, whole = _large(remote)
    backend = over_s3.service.directory.open("team/photos").core.backend
    assert len(_counted(over_s3)) == before + 1
    assert backend.read(key) == whole
    assert list(backend.list("incoming/")) == []


def _address(client: httpx.Client, encoded: EncodedObject) -> tuple[str, dict[str, Any]]:
    data = b"".join(encoded.parts)
    path = f"{BASE}/uploads/{encoded.link.digest}"
    wanted = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    answer = client.post(f"{path}/address", json=wanted)
    answer.raise_for_status()
    return path, answer.json()


def test_an_address_is_no_key_of_an_object_and_good_for_one_body(
    over_s3: RunningService,
) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    with over_s3.client() as client:
        _, place = _address(client, encoded)
    parts = urlsplit(place["url"])
    assert "/incoming/" in parts.path
    assert encoded.link.digest[2:] not in parts.path
    assert parse_qs(parts.query)["X-Amz-SignedHeaders"] == [
        "content-length;host;x-amz-checksum-sha256"
    ]
    assert place["headers"]["Content-Length"] == str(encoded.link.bytes)


def test_what_is_put_there_and_is_not_the_object_never_counts(over_s3: RunningService) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    forged = bytearray(b"".join(encoded.parts))
    forged[-1] ^= 1
    with over_s3.client() as client:
        path, place = _address(client, encoded)
        headers = {"Content-Length": place["headers"]["Content-Length"]}
        httpx.put(place["url"], content=bytes(forged), headers=headers)
        put = {"bytes": encoded.link.bytes, "name": place["name"]}
        first, again = (client.post(f"{path}/incoming", json=put) for _ in range(2))
    backend = over_s3.service.directory.open("team/photos").core.backend
    digest = encoded.link.digest
    assert (first.status_code, again.status_code) == (400, 404)
    assert backend.size(f"objects/{digest[:2]}/{digest[2:]}") is None
    assert list(backend.list("incoming/")) == []


def test_nobody_takes_in_what_another_one_put(over_s3: RunningService) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    other = over_s3.user("otto", Grant("team/photos", Action.WRITE))
    reader = over_s3.user("rob", Grant("team/photos", Action.READ))
    with over_s3.client() as client:
        path, place = _address(client, encoded)
        httpx.put(place["url"], content=b"".join(encoded.parts), headers=place["headers"])
    put = {"bytes": encoded.link.bytes, "name": place["name"]}
    with over_s3.client(other) as client, over_s3.client(reader) as third:
        statuses = [one.post(f"{path}/incoming", json=put).status_code for one in (client, third)]
    with over_s3.client() as client:
        assert client.post(f"{path}/incoming", json=put).json()["stored"]
    assert statuses == [404, 403]


def test_what_nobody_took_in_is_dropped_after_a_day(over_s3: RunningService) -> None:
    encoded = encode_object(Kind.CHUNK, os.urandom(2 << 20))
    with over_s3.client() as client:
        _, place = _address(client, encoded)
    httpx.put(place["url"], content=b"".join(encoded.parts), headers=place["headers"])
    running = over_s3.service
    backend = running.directory.open("team/photos").core.backend
    running.housekeeping.turn()
    kept = list(backend.list("incoming/"))
    later = time.time() + INCOMING_SECONDS + 60
    Housekeeping(
        running.directory,
        running.settings.data,
        caches_of(running),
        running.spool,
        clock=lambda: later,
    ).turn()
    assert (len(kept), list(backend.list("incoming/"))) == (1, [])


def test_a_known_object_is_told_of_and_refused_like_any(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    key, _ = _large(remote)
    path, asked = f"{STORE}/{key}", {"Range": "bytes=5-9"}
    with over_s3.client() as client:
        first, second = (client.get(path, headers=asked) for _ in range(2))
        metrics = client.get("/metrics").text
    assert (first.status_code, second.status_code) == (307, 307)
    told = [one for one in over_s3.audited() if one["kind"] == "download"]
    assert told[-1]["paths"] == [path]
    assert "/-/store/{key:path}" in metrics
    assert httpx.get(f"{over_s3.url}{path}", headers=asked).status_code == 401
    narrow = over_s3.user("eve", Grant("team/photos", Action.READ, "heads/other"))
    with over_s3.client(narrow) as client:
        assert client.get(path, headers=asked).status_code == 403


def test_a_small_object_is_read_once_by_one_request_a_large_one_not_at_all() -> None:
    class Reading:
        def __init__(self) -> None:
            self.asked: list[tuple[str, str]] = []

        def size(self, key: str) -> int:
            self.asked.append(("size", key))
            return 5

        def read_up_to(self, key: str, most_bytes: int) -> bytes | int:
            self.asked.append(("read", key))
            return most_bytes + 1 if key == "large" else b"words"

    backend: Any = Reading()
    known = KnownObjects()
    small = [open_value(backend, "small", known) for _ in range(3)]
    large = [open_value(backend, "large", known) for _ in range(2)]
    part = open_value(backend, "part", known, in_part=True)
    assert small == [SmallValue(b"words")] * 3
    assert [value.size_bytes for value in large] == [WHOLE_BYTES + 1] * 2
    assert part == SmallValue(b"words")
    wanted = [("read", "small"), ("read", "large"), ("size", "part"), ("read", "part")]
    assert backend.asked == wanted


def test_what_was_purged_is_not_told_from_memory(
    over_s3: RunningService, remote: RepositoryCore
) -> None:
    secret = encode_object(Kind.BLOB, b"of somebody").link.digest
    there = over_s3.service.directory.open("team/photos").core
    commit_files(remote, {"secret": b"of somebody"}, branch="told")
    with over_s3.client() as client:
        before = [client.get(f"{STORE}/objects/{secret[:2]}/{secret[2:]}") for _ in range(2)]
        append_purge(
            there,
            lambda _, writer: Twins(
                {secret: writer.put(Kind.BLOB, b"erased").digest}, {}, frozenset()
            ),
            actor=ADA,
            reason="asked",
        )
        collect_garbage(there, actor=ADA, rules=CollectionRules(0.0, 0.0))
        after = client.get(f"{STORE}/objects/{secret[:2]}/{secret[2:]}")
    assert [answer.status_code for answer in (*before, after)] == [200, 200, 404]


def test_sizes_are_asked_for_once_a_minute_and_when_the_object_is_gone() -> None:
    class Counting:
        def __init__(self) -> None:
            self.asked = 0

        def size(self, key: str) -> int | None:
            self.asked += 1
            return None if key == "gone" else 7

    now = [0.0]
    backend, sizes = Counting(), KnownObjects(timer=lambda: now[0])
    known = [sizes.size(backend, "a") for _ in range(3)]  # type: ignore[arg-type]
    assert (known, backend.asked) == ([7, 7, 7], 1)
    with pytest.raises(NotFoundError):
        sizes.size(backend, "gone")  # type: ignore[arg-type]
    sizes.forget("a")
    assert sizes.known("a") is None
    sizes.size(backend, "a")  # type: ignore[arg-type]
    now[0] += 61
    assert sizes.known("a") is None
    assert backend.asked == 3
