"""Merge requests over HTTP: the whole way, and who may go it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.changes import rules
from tensorrepo.repo.log.branch_rules import BranchRule
from tests.support.servers.service import RunningService

PATH = "/api/v1/repositories/team/photos"
REQUESTS = f"{PATH}/-/requests"
CAN_DEV = (
    Grant("team/photos", Action.READ, "heads/main"),
    Grant("team/photos", Action.WRITE, "heads/dev/*"),
)


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
    repo = _repo(service)
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": [1, 2, 3]})
    return service


def _repo(running: RunningService) -> tr.Repository:
    url = running.service.directory.find("team/photos").url
    return tr.open(url, author="Ann <a@example.org>")


def _proposed(running: RunningService, client: httpx.Client, name: str) -> dict[str, Any]:
    """A request of a branch of that name, which has one more dataset."""
    repo = _repo(running)
    repo.create_branch(f"dev/{name}")
    with repo.transaction(f"dev/{name}", message=name) as tx:
        tx.create_dataset(name, {"x": [4]})
    new = {"source": f"dev/{name}", "target": "main", "title": f"Add {name}"}
    made = client.post(REQUESTS, json=new)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def test_a_branch_is_proposed_talked_about_approved_and_merged(photos: RunningService) -> None:
    dev = photos.user("dev1", *CAN_DEV)
    with photos.client(dev) as author, photos.client() as admin:
        made = _proposed(photos, author, "whole")
        at = f"{REQUESTS}/{made['number']}"
        changes = author.get(f"{at}/changes").json()
        author.post(f"{at}/comments", json={"text": "Look at this.", "path": "datasets/whole"})
        approved = admin.post(
            f"{at}/reviews", json={"verdict": "approve", "commit": made["head"]}
        ).json()
        ready = admin.get(f"{at}/mergeable").json()
        merged = admin.post(f"{at}/merge", json={"head": made["head"]})
        listed = author.get(REQUESTS, params={"state": "merged"}).json()["items"]
        again = admin.post(f"{at}/merge", json={})
    assert [one["path"] for one in changes["items"]] == ["datasets/whole"]
    assert approved["reviews"][0]["current"]
    assert approved["comments"][0]["author"] == "dev1 <dev1@users.invalid>"
    assert ready["ready"]
    assert (merged.status_code, merged.json()["state"]) == (200, "merged")
    assert merged.json()["number"] in {one["number"] for one in listed}
    assert again.status_code == 409
    assert {*_repo(photos).datasets()} == {"numbers", "whole"}


def test_who_may_only_propose_neither_merges_nor_approves_nor_reports(
    photos: RunningService,
) -> None:
    dev = photos.user("dev2", *CAN_DEV)
    with photos.client(dev) as author:
        made = _proposed(photos, author, "mine")
        at = f"{REQUESTS}/{made['number']}"
        verdict = {"verdict": "approve", "commit": made["head"]}
        report = {"state": "passed", "commit": made["head"]}
        statuses = [
            author.post(f"{at}/merge", json={}).status_code,
            author.post(f"{at}/reviews", json=verdict).status_code,
            author.put(f"{at}/checks/quality", json=report).status_code,
        ]
        closed = author.post(f"{at}/close")
    assert statuses == [403, 403, 403]
    assert closed.json()["state"] == "closed"


def test_nobody_approves_of_their_own(photos: RunningService) -> None:
    with photos.client() as admin:
        made = _proposed(photos, admin, "own")
        verdict = {"verdict": "approve", "commit": made["head"]}
        answer = admin.post(f"{REQUESTS}/{made['number']}/reviews", json=verdict)
    assert answer.status_code == 403


def test_a_proposal_of_a_hidden_branch_is_not_there_for_others(photos: RunningService) -> None:
    reader = photos.user("reader", Grant("team/photos", Action.READ, "heads/main"))
    with photos.client() as admin, photos.client(reader) as other:
        made = _proposed(photos, admin, "hidden")
        at = f"{REQUESTS}/{made['number']}"
        hidden, missing = other.get(at), other.get(f"{REQUESTS}/99999")
        listed = other.get(REQUESTS).json()["items"]
        unwritten = other.post(f"{at}/comments", json={"text": "x"})
    assert (hidden.status_code, missing.status_code, unwritten.status_code) == (404, 404, 404)
    assert (
        hidden.json()["detail"].replace(str(made["number"]), "99999") == (missing.json()["detail"])
    )
    assert listed == []


def test_a_check_is_reported_by_a_token_for_requests_alone(photos: RunningService) -> None:
    photos.user("ci", Grant("team/photos", Action.WRITE))
    scope = (
        Grant("team/photos", Action.READ, "heads/*"),
        Grant("team/photos", Action.WRITE, "requests/*"),
    )
    token = photos.service.accounts.add_token("ci", "checks", scope=scope)
    core = photos.service.directory.open("team/photos").core
    with photos.client() as admin, photos.client(token) as bot:
        made = _proposed(photos, admin, "checked")
        at = f"{REQUESTS}/{made['number']}"
        rules.set_rule(core, BranchRule("main", checks=("quality",)), actor="Ann <a@x>")
        try:
            early = admin.post(f"{at}/merge", json={})
            report = {"state": "passed", "commit": made["head"]}
            reported = bot.put(f"{at}/checks/quality", json=report)
            by_bot = bot.post(f"{at}/merge", json={})
            merged = admin.post(f"{at}/merge", json={})
        finally:
            rules.remove_rule(core, "main", actor="Ann <a@x>")
    assert early.status_code == 403
    assert reported.json()["checks"][0]["reporter"] == "ci <ci@users.invalid>"
    assert by_bot.status_code == 403
    assert merged.status_code == 200


def test_lists_begin_with_the_newest_and_go_on(photos: RunningService) -> None:
    with photos.client() as admin:
        numbers = [_proposed(photos, admin, f"listed{at}")["number"] for at in range(3)]
        first = admin.get(REQUESTS, params={"limit": 2}).json()
        second = admin.get(REQUESTS, params={"limit": 2, "cursor": first["next"]}).json()
    found = [one["number"] for one in first["items"] + second["items"]]
    assert found[:3] == sorted(numbers, reverse=True)


def test_a_signed_target_is_not_merged_by_the_server(photos: RunningService) -> None:
    core = photos.service.directory.open("team/photos").core
    with photos.client() as admin:
        made = _proposed(photos, admin, "signed")
        with _repo(photos).transaction(message="meanwhile") as tx:
            tx.create_dataset("meanwhile", {"x": [1]})
        rules.set_rule(core, BranchRule("main", signed=True), actor="Ann <a@x>")
        try:
            answer = admin.post(f"{REQUESTS}/{made['number']}/merge", json={})
        finally:
            rules.remove_rule(core, "main", actor="Ann <a@x>")
    assert answer.status_code == 409
    assert core.log.refresh().state.refs["heads/main"] in answer.json()["detail"]
