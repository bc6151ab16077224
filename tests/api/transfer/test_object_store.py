"""A service over a bucket: what clients see is what they see over a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tests.support.builders.repositories import commit_files, files_at, tip_of
from tests.support.servers.object_stores import Bucket, s3_on_moto
from tests.support.servers.service import RunningService, running_service

PRESIGNED_BYTES = 1 << 20


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_on_moto() as made:
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
    assert bytes(remote.backend.read_range(key, 5, 1 << 20)) == whole[5 : 1 << 20]
