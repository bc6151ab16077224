"""Models that were saved as tensors alone have a file of weights for clients that know files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

import tensorrepo as tr
from tensorrepo.api.content.made_weights import MadeWeights
from tensorrepo.api.huggingface import reading_routes
from tensorrepo.formats.files.models import made_file
from tests.support.clients.lfs_uploads import upload_files
from tests.support.servers.service import RunningService

TENSORS = {
    "layer.weight": np.random.default_rng(0).standard_normal((512, 600)).astype("f4"),
    "layer.bias": np.arange(600, dtype="i2"),
}
FILE = "model.safetensors"
BLOB = f"/ns/net/resolve/main/{FILE}"


@pytest.fixture
def client(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[httpx.Client]:
    """A client of a service whose model `net` was saved anew as tensors and a config."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TENSORREPO_SERVER", service.url)
    monkeypatch.setenv("TENSORREPO_TOKEN", service.token)
    with service.client() as client:
        client.post("/api/repos/create", json={"name": "net", "organization": "ns"})
        through = tr.open(f"{service.url}/ns", author="Ann <ann@example.org>")
        with through.transaction(message="net") as tx:
            tx.save_model("net", TENSORS, files={"config.json": b'{"model_type": "tiny"}'})
        yield client


def listed(client: httpx.Client) -> dict[str, str]:
    """Hashes of files, by path, as a listing tells them."""
    tree = client.get("/api/models/ns/net/tree/main?recursive=true").raise_for_status().json()
    return {one["path"]: one["lfs"]["oid"] for one in tree}


def tensors(service: RunningService) -> dict[str, np.ndarray]:
    url = service.service.directory.find("ns").url
    return dict(tr.open(url).model("net").load())


def test_the_file_is_the_tensors_and_what_the_listing_says(client: httpx.Client) -> None:
    whole = client.get(BLOB).raise_for_status()
    told = hashlib.sha256(whole.content).hexdigest()
    assert listed(client)[FILE] == told
    assert whole.headers["etag"] == f'"{told}"'
    assert {name: one.tolist() for name, one in load(whole.content).items()} == {
        name: one.tolist() for name, one in TENSORS.items()
    }
    info = client.get("/api/models/ns/net").json()
    assert info["safetensors"]["total"] == sum(one.size for one in TENSORS.values())


def test_its_bytes_are_those_of_every_other_way(
    client: httpx.Client, service: RunningService
) -> None:
    whole = client.get(BLOB).content
    digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"
    manifest = client.get("/v2/ns/net/manifests/main").raise_for_status().json()
    assert [one["digest"] for one in manifest["layers"]][1] == digest
    assert client.get(f"/v2/ns/net/blobs/{digest}").content == whole
    made = made_file(tr.open(service.service.directory.find("ns").url).model("net").stored)
    assert made is not None
    assert made.size_bytes == len(whole)


def test_a_download_goes_on_in_a_process_that_never_saw_the_file(
    client: httpx.Client, service: RunningService
) -> None:
    whole = client.get(BLOB)
    service.service.memory.weights.clear()
    service.service.memory.hashes.clear()
    headers = {"Range": "bytes=1000-", "If-Match": whole.headers["etag"]}
    rest = client.get(BLOB, headers=headers)
    assert (rest.status_code, rest.content) == (206, whole.content[1000:])


def test_a_card_that_comes_leaves_the_tensors(
    client: httpx.Client, service: RunningService
) -> None:
    before = listed(client)[FILE]
    upload_files(client, "ns/net", {"README.md": b"# words"})
    assert sorted(listed(client)) == ["README.md", "config.json", FILE]
    assert listed(client)[FILE] == before
    assert sorted(tensors(service)) == sorted(TENSORS)


def test_weights_of_that_name_take_the_place_of_the_tensors(
    client: httpx.Client, service: RunningService
) -> None:
    upload_files(client, "ns/net", {FILE: save({"layer.weight": np.zeros((8, 8), "f4")})})
    assert {name: one.shape for name, one in tensors(service).items()} == {"layer.weight": (8, 8)}


def commit(client: httpx.Client, **lines: dict[str, str]) -> None:
    """Make a commit of one line for each kind."""
    head = {"key": "header", "value": {"summary": "s"}}
    body = [head, *({"key": key, "value": value} for key, value in lines.items())]
    told = "\n".join(map(json.dumps, body))
    client.post("/api/models/ns/net/commit/main", content=told).raise_for_status()


def test_a_copy_is_the_file_and_leaves_it_as_it_was(
    client: httpx.Client, service: RunningService
) -> None:
    digest, whole = listed(client)[FILE], client.get(BLOB).content
    commit(client, lfsFile={"path": "copy.safetensors", "algo": "sha256", "oid": digest})
    assert listed(client)[FILE] == listed(client)["copy.safetensors"] == digest
    assert client.get("/ns/net/resolve/main/copy.safetensors").content == whole
    assert client.get(BLOB).content == whole
    assert sorted(tensors(service)) == sorted(TENSORS)


def test_a_copy_of_what_the_file_was_is_made_of_its_own_tensors(
    client: httpx.Client, service: RunningService
) -> None:
    digest, whole = listed(client)[FILE], client.get(BLOB).content
    through = tr.open(f"{service.url}/ns", author="Ann <ann@example.org>")
    with through.transaction(message="net") as tx:
        tx.save_model("net", TENSORS | {"layer.bias": np.zeros(600, "i2")})
    newer = listed(client)[FILE]
    commit(client, lfsFile={"path": "old.safetensors", "algo": "sha256", "oid": digest})
    assert listed(client) == {FILE: newer, "old.safetensors": digest}
    assert client.get("/ns/net/resolve/main/old.safetensors").content == whole


def test_a_copy_in_place_of_the_file_is_another_name_of_it(
    client: httpx.Client, service: RunningService
) -> None:
    digest = listed(client)[FILE]
    copy = {"path": "weights.safetensors", "algo": "sha256", "oid": digest}
    commit(client, lfsFile=copy, deletedFile={"path": FILE})
    assert listed(client).keys() == {"config.json", "weights.safetensors"}
    assert listed(client)["weights.safetensors"] == digest
    assert sorted(tensors(service)) == sorted(TENSORS)


def test_who_would_wait_too_long_for_the_hash_is_sent_here_again(
    client: httpx.Client, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.service.memory.profiles is not None
    service.service.memory.profiles.clear()
    service.service.memory.hashes.clear()
    is_over = threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(reading_routes, "HASH_SECONDS", 0.0)
        hashed = MadeWeights._hash
        slow.setattr(MadeWeights, "_hash", lambda one: is_over.wait() and hashed(one))
        asked = [client.head(BLOB) for _ in range(2)]
        is_over.set()
    assert [(one.status_code, one.headers["location"]) for one in asked] == [(307, BLOB)] * 2
    told = client.head(asked[0].headers["location"])
    assert told.headers["etag"] == client.get(BLOB).headers["etag"]


def test_the_file_goes_and_its_tensors_with_it(
    client: httpx.Client, service: RunningService
) -> None:
    commit(client, deletedFile={"path": FILE})
    assert (list(listed(client)), tensors(service)) == (["config.json"], {})
