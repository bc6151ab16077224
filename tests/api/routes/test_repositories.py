"""Repositories, refs and commits over HTTP."""

from __future__ import annotations

import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.changes.revisions import base_name
from tests.support.servers.service import RunningService

ONE_BRANCH = Grant("team/photos", Action.READ, "heads/main")


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    """A repository with two branches, of which one is secret."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
    url = service.service.directory.find("team/photos").url
    repo = tr.open(url, author="Ann <ann@example.org>")
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": [1, 2, 3]})
    repo.create_branch("secret")
    with repo.transaction("secret", message="hidden") as tx:
        tx.create_dataset("hidden", {"x": [4]})
    return service


def test_who_is_unknown_sees_nothing(photos: RunningService) -> None:
    with photos.client("") as client:
        answer = client.get("/api/v1/repositories/team/photos")
    assert answer.status_code == 401
    assert answer.json()["kind"] == "unauthenticated"


def test_a_reader_of_one_branch_sees_no_other(photos: RunningService) -> None:
    token = photos.user("bob", ONE_BRANCH)
    with photos.client(token) as client:
        refs = client.get("/api/v1/repositories/team/photos/-/refs").json()["items"]
        main = client.get("/api/v1/repositories/team/photos/-/commits/main")
        secret = client.get("/api/v1/repositories/team/photos/-/commits/secret")
    assert [ref["name"] for ref in refs] == ["heads/main"]
    assert main.json()["message"] == "first"
    assert secret.status_code == 404


def test_a_digest_is_no_capability(photos: RunningService) -> None:
    token = photos.user("carl", ONE_BRANCH)
    with photos.client() as client:
        found = client.get("/api/v1/repositories/team/photos/-/commits/secret").json()
    with photos.client(token) as client:
        answer = client.get(f"/api/v1/repositories/team/photos/-/commits/{found['digest']}")
    assert answer.status_code == 404


def test_others_repositories_answer_as_those_that_are_not_there(photos: RunningService) -> None:
    token = photos.user("dora", Grant("dora/*", Action.ADMIN))
    with photos.client(token) as client:
        there = client.get("/api/v1/repositories/team/photos")
        nowhere = client.get("/api/v1/repositories/team/nothing")
    assert (there.status_code, nowhere.status_code) == (403, 403)
    assert there.json()["detail"].replace("photos", "nothing") == nowhere.json()["detail"]


def test_lists_go_on_where_their_cursor_says(photos: RunningService) -> None:
    with photos.client() as client:
        path = "/api/v1/repositories/team/photos/-/refs"
        first = client.get(path, params={"limit": 1}).json()
        second = client.get(path, params={"limit": 1, "cursor": first["next"]}).json()
    assert [one["name"] for one in first["items"] + second["items"]] == [
        "heads/main",
        "heads/secret",
    ]
    assert second["next"] is None


@pytest.mark.parametrize("name", ["secre", "heads/secret", "secret~0", "secret@{0}", "a" * 64])
def test_what_is_hidden_is_answered_as_what_is_not_there(photos: RunningService, name: str) -> None:
    with photos.client(photos.user(f"u{len(name)}{name[:2]}", ONE_BRANCH)) as client:
        hidden = client.get(f"/api/v1/repositories/team/photos/-/commits/{name}")
        nowhere = client.get(f"/api/v1/repositories/team/photos/-/commits/{name[::-1]}")
    assert hidden.status_code == nowhere.status_code == 404
    assert "secret" not in hidden.json()["detail"].replace(base_name(name), "")


def test_short_digests_tell_nothing_to_who_may_not_read_all(photos: RunningService) -> None:
    with photos.client() as client:
        found = client.get("/api/v1/repositories/team/photos/-/commits/secret").json()["digest"]
    with photos.client(photos.user("eve", ONE_BRANCH)) as client:
        path = "/api/v1/repositories/team/photos/-/commits/"
        details = [client.get(path + name).json()["detail"] for name in (found[:9], "0123456ab")]
    assert details[0].replace(found[:9], "0123456ab") == details[1]
