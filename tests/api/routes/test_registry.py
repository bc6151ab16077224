"""Registered models over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.service import RunningService

BASE = "/api/v1/repositories/team/nets/-/registry"


@pytest.fixture(scope="module")
def nets(service: RunningService) -> RunningService:
    """Two registered models: `net` with two versions and an alias, `secret/net` with one."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/nets"}).raise_for_status()
    repo = tr.open(service.service.directory.find("team/nets").url, author="Ann <ann@example.org>")
    for number in (1, 2):
        with repo.transaction(message=f"net {number}") as tx:
            weights = np.full((64, 64), number, np.float32)
            tx.save_model("net", {"weight": weights}, metrics={"accuracy": number / 4})
        repo.registry.register("net", "main:models/net", message=f"the {number}th")
    repo.registry.alias("net", "best", 2)
    repo.registry.describe("net", description="# A net", labels={"task": "segmentation"})
    repo.registry.register("secret/net", "main:models/net")
    return service


def test_a_version_is_found_by_its_number_and_by_an_alias(nets: RunningService) -> None:
    with nets.client() as client:
        by_number = client.get(f"{BASE}/net/-/versions/2").json()
        by_alias = client.get(f"{BASE}/net/-/aliases/best").json()
        again = client.get(f"{BASE}/net/-/aliases/best").json()
    assert by_number == by_alias == again
    assert (by_number["number"], by_number["aliases"]) == (2, ["best"])
    assert by_number["metrics"] == {"accuracy": 0.5}
    assert by_number["message"] == "the 2th"


def test_a_model_tells_its_versions_aliases_and_words(nets: RunningService) -> None:
    with nets.client() as client:
        found = client.get(f"{BASE}/net").json()
    assert found == {
        "name": "net",
        "versions": 2,
        "latest": 2,
        "aliases": {"best": 2},
        "protected": [],
        "description": "# A net",
        "labels": {"task": "segmentation"},
    }


def test_who_has_the_newest_answer_gets_no_body(nets: RunningService) -> None:
    with nets.client() as client:
        first = client.get(f"{BASE}/net/-/versions/1")
        second = client.get(
            f"{BASE}/net/-/versions/1", headers={"If-None-Match": first.headers["ETag"]}
        )
    assert (second.status_code, second.content) == (304, b"")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({}, ["net", "secret/net"]),
        ({"text": "SECRET"}, ["secret/net"]),
        ({"label": "task=segmentation"}, ["net"]),
        ({"label": "task"}, ["net"]),
        ({"label": "task=other"}, []),
        ({"alias": "best"}, ["net"]),
        ({"metric": "accuracy>0.6"}, []),
        ({"metric": ["accuracy>=0.5", "accuracy<1"]}, ["net", "secret/net"]),
    ],
)
def test_models_are_searched(nets: RunningService, query: dict[str, str], names: list[str]) -> None:
    with nets.client() as client:
        found = client.get(BASE, params=query).json()
    assert [one["name"] for one in found["items"]] == names


@pytest.mark.parametrize("metric", ["accuracy", "accuracy>much", ">1", "accuracy>nan"])
def test_a_metric_filter_that_is_none_is_refused(nets: RunningService, metric: str) -> None:
    with nets.client() as client:
        answer = client.get(BASE, params={"metric": metric})
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid-input")


def test_a_reader_of_one_model_sees_no_other(nets: RunningService) -> None:
    token = nets.user("eve", Grant("team/nets", Action.READ, "registry/net/*"))
    with nets.client(token) as client:
        listed = client.get(BASE).json()["items"]
        own = client.get(f"{BASE}/net/-/versions/1")
        secret = client.get(f"{BASE}/secret/net")
        version = client.get(f"{BASE}/secret/net/-/versions/1")
    assert [one["name"] for one in listed] == ["net"]
    assert own.status_code == 200
    assert (secret.status_code, version.status_code) == (404, 404)


@pytest.fixture(scope="module")
def reader(nets: RunningService) -> str:
    """A token of who may read all."""
    return nets.user("rita", Grant("team/nets", Action.READ))


@pytest.fixture
def writer(nets: RunningService) -> Iterator[httpx.Client]:
    """Who may change all."""
    token = nets.service.accounts.add_token("admin", "writer")
    with nets.client(token) as client:
        yield client


def _registered(client: httpx.Client, name: str, times: int = 1) -> None:
    for _ in range(times):
        client.post(f"{BASE}/{name}/-/versions", json={"path": "net"}).raise_for_status()


def test_a_version_is_registered_by_whoever_asked(writer: httpx.Client) -> None:
    body = {"path": "models/net", "message": "first", "alias": "new"}
    made = writer.post(f"{BASE}/own/one/-/versions", json=body)
    found = writer.get(f"{BASE}/own/one/-/aliases/new").json()
    assert made.status_code == 201
    assert made.json() == found
    assert (found["number"], found["author"]) == (1, "admin <admin@users.invalid>")


def test_a_model_has_a_name_before_its_first_version(writer: httpx.Client) -> None:
    new = {"name": "own/named", "description": "soon", "labels": {"team": "vision"}}
    made = writer.post(BASE, json=new)
    twice = writer.post(BASE, json=new)
    found = writer.get(f"{BASE}/own/named").json()
    assert (made.status_code, twice.status_code) == (201, 409)
    assert (found["versions"], found["latest"], found["labels"]) == (0, None, {"team": "vision"})


def test_what_is_said_about_a_version_is_said_anew(writer: httpx.Client) -> None:
    _registered(writer, "own/said")
    path = f"{BASE}/own/said/-/versions/1"
    writer.patch(path, json={"description": "good", "labels": {"a": "1", "b": "2"}})
    changed = writer.patch(path, json={"labels": {"a": None}}).json()
    assert (changed["description"], changed["labels"]) == ("good", {"b": "2"})


def test_an_alias_moves_and_tells_where_it_was(writer: httpx.Client) -> None:
    _registered(writer, "own/moved", 2)
    path = f"{BASE}/own/moved/-/aliases/live"
    writer.put(path, json={"version": 1})
    moved = writer.put(path, json={"version": 2}).json()
    history = writer.get(f"{path}/history").json()["items"]
    assert moved["aliases"] == ["live"]
    assert [one["version"] for one in history] == [2, 1]


def test_a_protected_alias_neither_moves_nor_goes(writer: httpx.Client) -> None:
    _registered(writer, "own/kept", 2)
    path = f"{BASE}/own/kept/-/aliases/live"
    writer.put(path, json={"version": 1})
    protected = writer.put(f"{path}/protection", json={"protected": True}).json()
    answers = [
        writer.put(path, json={"version": 2}),
        writer.delete(path),
        writer.delete(f"{BASE}/own/kept"),
    ]
    assert protected["protected"] == ["live"]
    assert [one.status_code for one in answers] == [409, 409, 409]
    assert writer.get(path).json()["number"] == 1


def test_a_number_is_given_once(writer: httpx.Client) -> None:
    _registered(writer, "own/counted", 2)
    gone = writer.delete(f"{BASE}/own/counted/-/versions/2")
    made = writer.post(f"{BASE}/own/counted/-/versions", json={"path": "net"}).json()
    assert (gone.status_code, made["number"]) == (204, 3)


def test_a_removed_model_is_gone(writer: httpx.Client) -> None:
    _registered(writer, "own/gone", 2)
    removed = writer.delete(f"{BASE}/own/gone")
    assert removed.json() == {"versions": 2}
    assert writer.get(f"{BASE}/own/gone").status_code == 404


def test_a_stage_archives_the_version_that_had_it(writer: httpx.Client) -> None:
    _registered(writer, "own/staged", 2)
    path = f"{BASE}/own/staged/-/versions"
    writer.put(f"{path}/1/stage", json={"stage": "Production"})
    writer.put(f"{path}/2/stage", json={"stage": "Production", "archive_existing": True})
    stages = [one["stage"] for one in writer.get(path).json()["items"]]
    assert stages == ["Production", "Archived"]


def test_versions_are_listed_page_by_page(writer: httpx.Client) -> None:
    _registered(writer, "own/many", 3)
    path = f"{BASE}/own/many/-/versions"
    first = writer.get(path, params={"limit": 2}).json()
    second = writer.get(path, params={"limit": 2, "cursor": first["next"]}).json()
    assert [one["number"] for one in first["items"] + second["items"]] == [3, 2, 1]
    assert second["next"] is None


def test_versions_are_compared(nets: RunningService) -> None:
    with nets.client() as client:
        found = client.get(f"{BASE}/net/-/compare", params={"version": ["1", "best"]}).json()
    assert found["metrics"] == {"accuracy": [0.25, 0.5]}
    assert found["changes"] == ["1 tensor unchanged", "1 tensor changed"]
    assert found["bytes"] == [64 * 64 * 4] * 2


def test_a_card_is_shown_without_what_runs(writer: httpx.Client) -> None:
    text = "# Net\n\n<script>alert(1)</script><b onclick='x()'>bold</b>"
    writer.post(BASE, json={"name": "own/card", "description": text})
    raw = writer.get(f"{BASE}/own/card/-/card")
    html = writer.get(f"{BASE}/own/card/-/card", params={"format": "html"})
    assert raw.text == text
    assert raw.headers["Content-Type"].startswith("text/markdown")
    assert html.text.strip() == "<h1>Net</h1>\n<b>bold</b>"
    assert html.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "", {"name": "net2"}),
        ("PATCH", "/net", {"description": "mine"}),
        ("DELETE", "/net", None),
        ("POST", "/net/-/versions", {"path": "net"}),
        ("PATCH", "/net/-/versions/1", {"description": "mine"}),
        ("DELETE", "/net/-/versions/1", None),
        ("PUT", "/net/-/versions/1/stage", {"stage": "Production"}),
        ("PUT", "/net/-/aliases/best", {"version": 1}),
        ("DELETE", "/net/-/aliases/best", None),
        ("PUT", "/net/-/aliases/best/protection", {"protected": True}),
    ],
)
def test_who_may_read_changes_nothing(
    nets: RunningService, reader: str, method: str, path: str, body: object
) -> None:
    with nets.client(reader) as client:
        answer = client.request(method, BASE + path, json=body)
    assert (answer.status_code, answer.json()["kind"]) == (403, "permission")


def test_a_source_that_the_caller_may_not_read_is_not_registered(nets: RunningService) -> None:
    token = nets.user("frank", Grant("team/nets", Action.WRITE, "registry/frank/*"))
    with nets.client(token) as client:
        answer = client.post(f"{BASE}/frank/net/-/versions", json={"path": "net", "ref": "main"})
    assert answer.status_code == 404


@pytest.mark.together
@pytest.mark.parametrize(
    "name", ["..%2Fx", "a%00b", "con", "a.json/b", "x" * 300, "%E2%80%AE", "a//b", "-/x"]
)
def test_hostile_names_are_refused(writer: httpx.Client, name: str) -> None:
    answer = writer.post(f"{BASE}/{name}/-/versions", json={"path": "net"})
    assert answer.status_code in {400, 404}
    assert answer.headers["Content-Type"] == "application/problem+json"
