"""The pull part of the OCI distribution specification, by plain requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.oci import repositories
from tensorrepo.formats.model.layout.manifest import decode_manifest, encode_manifest
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects.envelope import Kind
from tests.support.clients.lfs_uploads import upload_files
from tests.support.servers.service import RunningService

NET = "/v2/ns/net"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
WEIGHTS = save({"w": np.random.default_rng(0).standard_normal((512, 600)).astype("f4")})
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b'{"model_type": "tiny"}',
    "README.md": b"# A card\n",
    "sub/Vocab (1).txt": b"a\nb\n",
    "empty": b"",
}
OLD = {"config.json": b"{}"}
NOWHERE = f"sha256:{'0' * 64}"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture(scope="module")
def net(service: RunningService) -> dict[str, str]:
    """Commits: `old` and `new` of main, a branch `secret`, and an alias on the old one."""
    with service.client() as client:
        old = upload_files(client, "ns/net", OLD)
        registry = "/api/v1/repositories/ns/-/registry/net"
        made = client.post(f"{registry}/-/versions", json={"path": "models/net", "alias": "live"})
        made.raise_for_status()
        new = upload_files(client, "ns/net", FILES)
        client.post("/api/models/ns/net/branch/secret", json={}).raise_for_status()
        secret = upload_files(client, "ns/net", {"secret.txt": b"few"}, branch="secret")
        client.post("/api/models/ns/net/tag/main", json={"tag": "v1"}).raise_for_status()
    return {"old": old, "new": new, "secret": secret}


@pytest.fixture(scope="module")
def client(service: RunningService, net: dict[str, str]) -> Iterator[httpx.Client]:
    assert net, "it is there"
    with service.client() as client:
        yield client


@pytest.fixture(scope="module")
def reader(service: RunningService, net: dict[str, str]) -> Iterator[httpx.Client]:
    """Somebody who reads the branch main alone."""
    assert net, "it is there"
    with service.client(service.user("rea", Grant("ns", Action.READ, "heads/main"))) as client:
        yield client


def manifest(client: httpx.Client, reference: str = "main") -> dict[str, Any]:
    answer = client.get(f"{NET}/manifests/{reference}").raise_for_status()
    read: dict[str, Any] = answer.json()
    return read


def codes(answer: httpx.Response) -> list[str]:
    return [one["code"] for one in answer.json()["errors"]]


def paths(found: dict[str, Any]) -> list[str]:
    return [one["annotations"]["org.cncf.model.filepath"] for one in found["layers"]]


# ------------------------------------------------------------------------------ who asks


def test_who_is_unknown_is_asked_for_a_password(service: RunningService) -> None:
    with service.client("") as client:
        answer = client.get("/v2/")
    assert (answer.status_code, codes(answer)) == (401, ["UNAUTHORIZED"])
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert answer.headers["docker-distribution-api-version"] == "registry/2.0"


@pytest.mark.parametrize("path", ["/v2/", f"{NET}/manifests/main"])
def test_a_token_is_taken_as_a_password(
    service: RunningService, net: dict[str, str], path: str
) -> None:
    assert net, "it is there"
    url, auth = service.url + path, ("anybody", service.token)
    assert httpx.get(url, auth=auth, trust_env=False).status_code == 200
    assert httpx.get(url, auth=("anybody", "no"), trust_env=False).status_code == 401


def test_who_has_no_grant_is_told_what_they_are_told_of_a_name_that_is_not_there(
    service: RunningService, net: dict[str, str]
) -> None:
    assert net, "it is there"
    with service.client(service.user("eve", Grant("other", Action.ADMIN))) as client:
        there = client.get(f"{NET}/manifests/main")
        nowhere = client.get("/v2/nobody/net/manifests/main")
    assert (there.status_code, codes(there)) == (404, ["NAME_UNKNOWN"])
    assert nowhere.text.replace("nobody/net", "ns/net") == there.text


def test_who_reads_some_refs_learns_nothing_of_others(
    reader: httpx.Client, client: httpx.Client
) -> None:
    hidden = client.head(f"{NET}/manifests/secret").headers["docker-content-digest"]
    assert reader.get(f"{NET}/manifests/secret").status_code == 404
    assert reader.get(f"{NET}/manifests/{hidden}").status_code == 404
    assert reader.get(f"{NET}/blobs/{digest(b'few')}").status_code == 404
    assert client.get(f"{NET}/blobs/{digest(b'few')}").content == b"few"
    assert reader.get(f"{NET}/tags/list").json()["tags"] == ["latest", "main"]
    assert reader.get(f"{NET}/blobs/{digest(WEIGHTS)}").content == WEIGHTS


def test_a_digest_that_somebody_else_asked_for_is_no_way_to_their_commit(
    reader: httpx.Client, client: httpx.Client
) -> None:
    hidden = client.head(f"{NET}/manifests/secret").headers["docker-content-digest"]
    assert client.get(f"{NET}/manifests/{hidden}").status_code == 200
    assert codes(reader.get(f"{NET}/manifests/{hidden}")) == ["MANIFEST_UNKNOWN"]


# ------------------------------------------------------------------------------ manifests


@pytest.mark.parametrize("reference", ["main", "latest", "v1"])
def test_a_manifest_has_its_digest_and_its_size_by_get_and_by_head(
    client: httpx.Client, reference: str
) -> None:
    got, head = (client.request(m, f"{NET}/manifests/{reference}") for m in ("GET", "HEAD"))
    assert got.headers["content-type"] == head.headers["content-type"] == MANIFEST
    assert got.headers["docker-content-digest"] == digest(got.content)
    assert head.headers["docker-content-digest"] == digest(got.content)
    assert (head.content, int(head.headers["content-length"])) == (b"", len(got.content))


def test_a_manifest_is_a_model_of_modelpack(client: httpx.Client) -> None:
    found = manifest(client)
    assert found["mediaType"] == MANIFEST
    assert found["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
    assert found["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"
    assert paths(found) == sorted(FILES)


def test_what_was_parsed_as_tensors_is_weights(client: httpx.Client) -> None:
    (layer,) = (one for one in manifest(client)["layers"] if one["size"] == len(WEIGHTS))
    assert layer["mediaType"] == "application/vnd.cncf.model.weight.v1.raw"
    assert layer["annotations"]["org.cncf.model.file.mediatype.untested"] == "false"


@pytest.mark.parametrize("reference", ["live", "1"])
def test_aliases_and_versions_are_tags(client: httpx.Client, reference: str) -> None:
    assert paths(manifest(client, reference)) == sorted(OLD)


def test_an_alias_goes_before_a_branch_that_somebody_calls_like_it(client: httpx.Client) -> None:
    client.post("/api/models/ns/net/branch/live", json={}).raise_for_status()
    assert paths(manifest(client, "live")) == sorted(OLD)
    client.delete("/api/models/ns/net/branch/live").raise_for_status()


def test_a_commit_is_a_tag(client: httpx.Client, net: dict[str, str]) -> None:
    assert paths(manifest(client, net["old"])) == sorted(OLD)


def test_a_manifest_is_found_by_its_digest(client: httpx.Client) -> None:
    named = client.get(f"{NET}/manifests/main")
    wanted = named.headers["docker-content-digest"]
    assert client.get(f"{NET}/manifests/{wanted}").content == named.content


@pytest.mark.parametrize("reference", ["nope", ".INVALID", NOWHERE, "v1.0.0", "a" * 129])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_manifest_that_is_not_there_is_404(
    client: httpx.Client, method: str, reference: str
) -> None:
    assert client.request(method, f"{NET}/manifests/{reference}").status_code == 404
    assert codes(client.get(f"{NET}/manifests/{reference}")) == ["MANIFEST_UNKNOWN"]


@pytest.mark.parametrize("kind", ["manifests", "blobs", "referrers"])
@pytest.mark.parametrize("text", ["sha256:12", f"md5:{'0' * 32}", f"sha256:{'G' * 64}"])
def test_what_is_no_digest_is_400(client: httpx.Client, kind: str, text: str) -> None:
    answer = client.get(f"{NET}/{kind}/{text}")
    assert (answer.status_code, codes(answer)) == (400, ["DIGEST_INVALID"])


@pytest.mark.parametrize("what", ["manifests/main", f"blobs/{NOWHERE}", "tags/list"])
def test_a_name_that_is_not_there_is_404(client: httpx.Client, what: str) -> None:
    answer = client.get(f"/v2/ns/nope/{what}")
    assert (answer.status_code, codes(answer)) == (404, ["NAME_UNKNOWN"])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{NET}/blobs/uploads/"),
        ("PUT", f"{NET}/manifests/main"),
        ("DELETE", f"{NET}/manifests/main"),
    ],
)
def test_a_push_is_told_how_models_come_here(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code in {404, 405}
    assert (codes(answer), "git-lfs" in answer.text) == (["UNSUPPORTED"], True)


def test_a_repository_of_a_team_has_models_too(service: RunningService) -> None:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/nets"}).raise_for_status()
        url = service.service.directory.find("team/nets").url
        with tr.open(url, author="Ann <a@x>").transaction(message="a model") as tx:
            tx.save_model("deep/one", {"w": np.zeros(3, "f4")}, files={"config.json": b"{}"})
        found = client.get("/v2/team/nets/deep/one/manifests/latest").raise_for_status().json()
    assert paths(found) == ["config.json", "model.safetensors"]


# ------------------------------------------------------------------------------ blobs


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_blob_is_the_file_and_has_its_digest(client: httpx.Client, path: str) -> None:
    wanted = digest(FILES[path])
    got, head = (client.request(m, f"{NET}/blobs/{wanted}") for m in ("GET", "HEAD"))
    assert (got.status_code, got.content) == (200, FILES[path])
    assert got.headers["docker-content-digest"] == wanted
    assert head.headers["docker-content-digest"] == wanted
    assert int(head.headers["content-length"]) == len(FILES[path])


def test_the_config_is_a_blob(client: httpx.Client) -> None:
    wanted = manifest(client)["config"]
    got = client.get(f"{NET}/blobs/{wanted['digest']}")
    assert (digest(got.content), len(got.content)) == (wanted["digest"], wanted["size"])
    assert json.loads(got.content)["descriptor"] == {"name": "net"}


def test_a_blob_that_is_not_there_is_404(client: httpx.Client) -> None:
    assert client.head(f"{NET}/blobs/{NOWHERE}").status_code == 404
    assert codes(client.get(f"{NET}/blobs/{NOWHERE}")) == ["BLOB_UNKNOWN"]


def test_a_blob_of_another_model_is_none_of_this_one(client: httpx.Client) -> None:
    upload_files(client, "ns/other", {"only.txt": b"here"})
    assert codes(client.get(f"{NET}/blobs/{digest(b'here')}")) == ["BLOB_UNKNOWN"]
    assert client.get(f"/v2/ns/other/blobs/{digest(b'here')}").content == b"here"


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=1000-", 1000, None), ("bytes=10-19", 10, 20), ("bytes=-5", -5, None)],
)
def test_a_blob_goes_on_where_it_was_broken_off(
    client: httpx.Client, asked: str, start: int, stop: int | None
) -> None:
    answer = client.get(f"{NET}/blobs/{digest(WEIGHTS)}", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, WEIGHTS[start:stop])
    assert answer.headers["content-range"].endswith(f"/{len(WEIGHTS)}")


def test_a_range_behind_the_end_is_416(client: httpx.Client) -> None:
    headers = {"Range": f"bytes={len(WEIGHTS)}-"}
    assert client.get(f"{NET}/blobs/{digest(WEIGHTS)}", headers=headers).status_code == 416


def test_what_a_tag_named_before_is_still_found_by_digest(
    client: httpx.Client, net: dict[str, str], service: RunningService
) -> None:
    """In a process that never saw it: it is looked for behind the branches."""
    upload_files(client, "ns/pinned", {"a.txt": b"first"})
    pinned = client.head("/v2/ns/pinned/manifests/main").headers["docker-content-digest"]
    upload_files(client, "ns/pinned", {"a.txt": b"second"})
    served = service.service.directory.open("ns")
    served.kept(repositories._memory).places.clear()
    found = client.get(f"/v2/ns/pinned/manifests/{pinned}").raise_for_status().json()
    assert [one["digest"] for one in found["layers"]] == [digest(b"first")]
    served.kept(repositories._memory).places.clear()
    assert client.get(f"/v2/ns/pinned/blobs/{digest(b'first')}").content == b"first"
    assert net, "it is there"


def test_a_digest_that_somebody_was_told_is_found_after_any_number_of_commits(
    client: httpx.Client, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "LOOKED_AT", 0)
    upload_files(client, "ns/long", {"a.txt": b"first"})
    pinned = client.head("/v2/ns/long/manifests/main").headers["docker-content-digest"]
    upload_files(client, "ns/long", {"a.txt": b"second"})
    memory = service.service.directory.open("ns").kept(repositories._memory)
    memory.places.clear()
    manifest = client.get(f"/v2/ns/long/manifests/{pinned}").raise_for_status()
    assert digest(manifest.content) == pinned
    memory.places.clear()
    assert client.get(f"/v2/ns/long/blobs/{digest(b'first')}").content == b"first"
    assert codes(client.get(f"/v2/ns/long/manifests/{NOWHERE}")) == ["MANIFEST_UNKNOWN"]


def test_equal_files_have_one_digest_in_all_commits(client: httpx.Client) -> None:
    upload_files(client, "ns/same", {"a.txt": b"same"})
    first = client.head("/v2/ns/same/manifests/main").headers["docker-content-digest"]
    upload_files(client, "ns/other", {"b.txt": b"moves main"})
    assert client.head("/v2/ns/same/manifests/main").headers["docker-content-digest"] == first


def test_bytes_that_are_not_what_the_model_says_are_not_given(
    service: RunningService, net: dict[str, str]
) -> None:
    """Whoever pushes a model writes its manifest, hashes of files included."""
    assert net, "it is there"
    truth, lie = b"the truth", b"some lies"
    with service.client() as client:
        upload_files(client, "ns/liar", {"a.txt": truth})
        place = f"/v2/ns/liar/blobs/{digest(truth)}"
        honest = client.get(place)
        commit_lie(service, "models/liar", lie)
        service.service.directory.open("ns").kept(repositories._memory).places.clear()
        answer = client.get(place)
    assert (honest.status_code, honest.content) == (200, truth)
    assert (answer.status_code, lie in answer.content) == (500, False)


def commit_lie(service: RunningService, path: str, lie: bytes) -> None:
    """Commit a model as a client that pushes might: its manifest has another hash than its file."""
    core = service.service.directory.open("ns").core
    with begin(core, "main") as tx:
        entry = tx.entry(path)
        assert entry is not None, "it was uploaded"
        manifest = decode_manifest(core.objects.get(entry.digest).payload, entry.digest)
        (file,) = manifest.files
        blob = tx.objects.put(Kind.BLOB, lie)
        lying = msgspec.structs.replace(file, blob=digest_bytes(blob.digest))
        told = msgspec.structs.replace(manifest, files=(lying,))
        link = tx.objects.put(Kind.MODEL, encode_manifest(told), told.links())
        tx.stage(path, msgspec.structs.replace(entry, digest=link.digest))
        tx.commit("a lie", author="Eve <eve@example.org>")


# ------------------------------------------------------------------------------ tags


def test_tags_are_listed_in_order(client: httpx.Client) -> None:
    told = client.get(f"{NET}/tags/list").json()
    assert told == {"name": "ns/net", "tags": ["1", "latest", "live", "main", "secret", "v1"]}


def test_tags_come_in_pages(client: httpx.Client) -> None:
    first = client.get(f"{NET}/tags/list?n=4")
    following = client.get(first.links["next"]["url"])
    assert first.json()["tags"] == ["1", "latest", "live", "main"]
    assert following.json()["tags"] == ["secret", "v1"]
    assert "next" not in following.links
    none = client.get(f"{NET}/tags/list?n=0")
    assert (none.json()["tags"], none.links) == ([], {})


def test_nothing_refers_to_a_manifest(client: httpx.Client) -> None:
    answer = client.get(f"{NET}/referrers/{NOWHERE}")
    assert answer.headers["content-type"] == "application/vnd.oci.image.index.v1+json"
    assert answer.json()["manifests"] == []
