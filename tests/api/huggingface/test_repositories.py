"""Who may see and do what, by Hugging Face's routes."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.huggingface import commits
from tests.support.servers.service import RunningService

NET = "/api/models/ns/net"


@pytest.fixture(scope="module")
def net(service: RunningService) -> dict[str, str]:
    """A model on main and, otherwise, on a branch `secret`; commits of both."""
    with service.client() as client:
        client.post("/api/repos/create", json={"name": "net", "organization": "ns"})
        commit(client, "main", "a.txt", b"all")
        client.post(f"{NET}/branch/secret", json={}).raise_for_status()
        commit(client, "secret", "b.txt", b"few")
        refs = client.get(f"{NET}/refs").json()["branches"]
    return {one["name"]: one["targetCommit"] for one in refs}


@pytest.fixture(scope="module")
def reader(service: RunningService, net: dict[str, str]) -> str:
    assert net, "it is there"
    return service.user("rea", Grant("ns", Action.READ, "heads/main"))


@pytest.fixture(scope="module")
def writer(service: RunningService, net: dict[str, str]) -> str:
    assert net, "it is there"
    return service.user("wes", Grant("ns", Action.WRITE))


@pytest.fixture(scope="module")
def stranger(service: RunningService, net: dict[str, str]) -> str:
    assert net, "it is there"
    return service.user("eve", Grant("other", Action.ADMIN))


def commit(client: httpx.Client, branch: str, path: str, content: bytes) -> httpx.Response:
    file = {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
    return send(client, branch, {"key": "file", "value": file})


def send(client: httpx.Client, branch: str, line: dict[str, Any]) -> httpx.Response:
    head = {"key": "header", "value": {"summary": "s"}}
    body = "\n".join(map(json.dumps, (head, line)))
    return client.post(f"{NET}/commit/{branch}", content=body)


def test_a_commit_that_names_no_parent_is_made_on_that_of_who_was_first(
    service: RunningService, net: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert net, "it is there"
    land, others = commits._land, iter(["c.txt", "d.txt"])

    def second(*given: Any) -> Any:
        path = next(others, None)
        if path is not None:
            with service.client() as other:
                assert commit(other, "late", path, b"first").status_code == 200
        return land(*given)

    with service.client() as client:
        client.post(f"{NET}/branch/late", json={}).raise_for_status()
        monkeypatch.setattr(commits, "_land", second)
        assert commit(client, "late", "e.txt", b"second").status_code == 200
        names = {one["path"] for one in client.get(f"{NET}/tree/late").json()}
        client.delete(f"{NET}/branch/late").raise_for_status()
    assert {"c.txt", "d.txt", "e.txt"} <= names


def test_a_card_is_checked_for_who_shows_no_token_and_less_of_it(service: RunningService) -> None:
    def told(front: str, size: int = 0) -> Any:
        body = {"content": f"---\n{front}\n---\n{'x' * size}"}
        return httpx.post(f"{service.url}/api/validate-yaml", json=body)

    assert "no YAML" in told("a: [").json()["errors"][0]["message"]
    assert told("a: 1").json() == {"errors": [], "warnings": []}
    assert "at most" in told("a: " + "x" * 70_000).json()["warnings"][0]["message"]
    assert told("a: 1", 3 << 20).status_code == 413


def test_a_branch_by_its_full_name_is_that_branch(
    service: RunningService, net: dict[str, str]
) -> None:
    with service.client() as client:
        client.post(f"{NET}/branch/refs/heads/full", json={}).raise_for_status()
        branches = {one["name"] for one in client.get(f"{NET}/refs").json()["branches"]}
        client.delete(f"{NET}/branch/refs/heads/full").raise_for_status()
    assert branches == net.keys() | {"full"}


def test_who_reads_one_branch_reads_it_by_name_and_by_commit(
    service: RunningService, net: dict[str, str], reader: str
) -> None:
    with service.client(reader) as client:
        for revision in ("main", net["main"], "refs%2Fheads%2Fmain"):
            answer = client.get(f"{NET}/revision/{revision}")
            assert (answer.status_code, answer.json()["sha"]) == (200, net["main"])


@pytest.mark.parametrize("which", ["name", "commit", "never was"])
def test_what_lies_on_another_branch_is_not_there(
    service: RunningService, net: dict[str, str], reader: str, which: str
) -> None:
    revision = {"name": "secret", "commit": net["secret"], "never was": "0" * 40}[which]
    with service.client(reader) as client:
        answer = client.get(f"/ns/net/resolve/{revision}/b.txt")
    assert (answer.status_code, answer.headers["x-error-code"]) == (404, "RevisionNotFound")
    assert [one["name"] for one in refs_of(service, reader)] == ["main"]


def refs_of(service: RunningService, token: str) -> Any:
    with service.client(token) as client:
        return client.get(f"{NET}/refs").json()["branches"]


@pytest.mark.parametrize(
    "path", ["/api/models/{}", "/{}/resolve/main/a.txt", "/api/models/{}/refs"]
)
def test_a_stranger_is_told_the_same_of_what_is_there_and_what_is_not(
    service: RunningService, stranger: str, path: str
) -> None:
    with service.client(stranger) as client:
        there, nowhere = (client.get(path.format(name)) for name in ("ns/net", "no/such"))
    assert (there.status_code, there.headers["x-error-code"]) == (404, "RepoNotFound")
    assert there.text.replace("ns/net", "") == nowhere.text.replace("no/such", "")


def test_the_audit_log_has_the_refusal(service: RunningService, stranger: str) -> None:
    with service.client(stranger) as client:
        client.get("/api/models/ns/net/auth-check")
    refused = [one for one in service.audited() if one["kind"] == "refusal"]
    assert {"eve"} <= {one["actor"] for one in refused}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{NET}/commit/main", None),
        ("POST", f"{NET}/branch/new", {}),
        ("POST", f"{NET}/tag/main", {"tag": "v1"}),
        ("POST", f"{NET}/super-squash/main", {}),
        ("PUT", f"{NET}/settings", {"private": True}),
        ("DELETE", f"{NET}/branch/main", None),
        ("DELETE", "/api/repos/delete", {"name": "ns/net"}),
        ("POST", "/api/repos/create", {"name": "ns/more"}),
        ("POST", "/ns/net.git/info/lfs/objects/batch", {"objects": []}),
        ("POST", f"{NET}/preupload/main", {"files": []}),
    ],
)
def test_who_reads_writes_nothing(
    service: RunningService, reader: str, method: str, path: str, body: Any
) -> None:
    with service.client(reader) as client:
        assert client.request(method, path, json=body).status_code == 403


def test_who_writes_does_not_squash(service: RunningService, writer: str) -> None:
    with service.client(writer) as client:
        answer = client.post(f"{NET}/super-squash/main", json={})
    assert answer.status_code == 403
    assert "wes may not administer heads/main of ns" in answer.json()["error"]


def upload(client: httpx.Client, data: bytes) -> dict[str, Any]:
    """Ask for an address of a file, and use it where there is one; gives what was asked."""
    asked = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    answer = client.post("/ns/net.git/info/lfs/objects/batch", json={"objects": [asked]}).json()
    (one,) = answer["objects"]
    if "actions" in one:
        httpx.put(one["actions"]["upload"]["href"], content=data).raise_for_status()
    return dict(one)


def test_a_hash_is_no_right_to_what_somebody_else_sent(
    service: RunningService, writer: str
) -> None:
    data = b"sent by the administrator"
    large = {"path": "c", "algo": "sha256", "oid": hashlib.sha256(data).hexdigest()}
    with service.client() as client:
        upload(client, data)
        assert "actions" not in upload(client, data)
    with service.client(writer) as client:
        assert send(client, "main", {"key": "lfsFile", "value": large}).status_code == 400
        assert "actions" in upload(client, data)
        assert send(client, "main", {"key": "lfsFile", "value": large}).status_code == 200


def test_a_copy_is_taken_of_what_the_caller_may_read_alone(
    service: RunningService, writer: str
) -> None:
    scoped = service.user("mia", Grant("ns", Action.WRITE, "heads/main"))
    large = {"path": "d", "algo": "sha256", "oid": hashlib.sha256(b"few").hexdigest()}
    line = {"key": "lfsFile", "value": large}
    with service.client(scoped) as client:
        assert send(client, "main", line).status_code == 400
    with service.client(writer) as client:
        assert send(client, "main", line).status_code == 200
