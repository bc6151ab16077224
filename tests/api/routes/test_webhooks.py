"""Webhooks over HTTP: who may make them, and that they arrive."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator

import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.hostile_web import HOSTILE_URLS
from tests.support.servers.receiver import Receiver, receiver
from tests.support.servers.service import RunningService, running_service

HOOKS = "/api/v1/repositories/team/photos/-/webhooks"


@pytest.fixture(scope="module", name="hooked")
def _hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningService, Receiver]]:
    folder = tmp_path_factory.mktemp("service")
    with receiver() as receiving:
        allowed = receiving.url.removeprefix("http://").removesuffix("/hook")
        with running_service(folder, outbound_allow=[allowed]) as running:
            with running.client() as client:
                made = client.post("/api/v1/repositories", json={"name": "team/photos"})
                made.raise_for_status()
            yield running, receiving


@pytest.fixture(name="hook")
def _hook(hooked: tuple[RunningService, Receiver]) -> Iterator[dict[str, str]]:
    """A webhook of branches, as the answer that made it tells."""
    running, receiving = hooked
    with running.client() as client:
        new = {"url": receiving.url, "events": ["branch.*"]}
        made = client.post(HOOKS, json=new)
        made.raise_for_status()
        yield made.json()
        client.delete(f"{HOOKS}/{made.json()['id']}").raise_for_status()
    receiving.received.clear()


def _commit(running: RunningService, name: str) -> None:
    repo = tr.open(running.service.directory.find("team/photos").url, author="Ann <a@example.org>")
    with repo.transaction(message=name) as tx:
        tx.create_dataset(name, {"x": [1]})


def test_a_commit_arrives_signed(
    hooked: tuple[RunningService, Receiver], hook: dict[str, str]
) -> None:
    running, receiving = hooked
    _commit(running, "arrives")
    receiving.wait()
    headers, body = receiving.received[-1]
    seconds, told = headers["X-Tensorrepo-Signature"].removeprefix("t=").split(",v1=")
    signed = f"{seconds}.".encode() + body
    assert hmac.new(hook["secret"].encode(), signed, hashlib.sha256).hexdigest() == told
    event = json.loads(body)
    assert (event["repository"], event["note"]) == ("team/photos", "arrives")
    assert headers["X-Tensorrepo-Delivery"] == event["delivery"]


def test_a_redirect_is_not_followed_and_stands_in_the_log(
    hooked: tuple[RunningService, Receiver], hook: dict[str, str]
) -> None:
    running, receiving = hooked
    receiving.statuses.append(302)
    with running.client() as client:
        client.post(f"{HOOKS}/{hook['id']}/ping").raise_for_status()
        receiving.wait()
        log = _when_tried(running, hook)
    assert (log["status"], log["state"], log["attempts"]) == (302, "pending", 1)
    assert log["due_ns"] > log["tried_ns"]


def _when_tried(running: RunningService, hook: dict[str, str]) -> dict[str, int]:
    """The newest delivery, as soon as its attempt is written down."""
    with running.client() as client:
        while True:
            items = client.get(f"{HOOKS}/{hook['id']}/deliveries").json()["items"]
            if items[0]["tried_ns"] is not None:
                found: dict[str, int] = items[0]
                return found


def test_what_was_delivered_is_delivered_once_more_when_asked(
    hooked: tuple[RunningService, Receiver], hook: dict[str, str]
) -> None:
    running, receiving = hooked
    with running.client() as client:
        client.post(f"{HOOKS}/{hook['id']}/ping").raise_for_status()
        receiving.wait()
        first = _when_tried(running, hook)
        again = client.post(f"{HOOKS}/{hook['id']}/deliveries/{first['id']}/redeliver")
        receiving.wait()
    assert again.status_code == 202
    assert again.json()["id"] != first["id"]
    assert again.json()["body"] == first["body"]


def test_the_secret_is_told_once(
    hooked: tuple[RunningService, Receiver], hook: dict[str, str]
) -> None:
    running, _ = hooked
    with running.client() as client:
        shown = client.get(f"{HOOKS}/{hook['id']}")
        listed = client.get(HOOKS)
    assert hook["secret"] not in shown.text + listed.text


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_no_hostile_url_is_taken_or_asked(
    hooked: tuple[RunningService, Receiver], url: str
) -> None:
    running, _ = hooked
    with running.client() as client:
        answer = client.post(HOOKS, json={"url": url})
    assert answer.status_code in {400, 403}


def test_only_admins_have_webhooks(hooked: tuple[RunningService, Receiver]) -> None:
    running, receiving = hooked
    token = running.user("writer", Grant("team/photos", Action.WRITE))
    with running.client(token) as client:
        statuses = [
            client.get(HOOKS).status_code,
            client.post(HOOKS, json={"url": receiving.url}).status_code,
            client.delete(f"{HOOKS}/{'0' * 16}").status_code,
        ]
    assert statuses == [403, 403, 403]


@pytest.mark.soak
def test_one_that_is_off_gets_nothing_of_that_time(
    hooked: tuple[RunningService, Receiver], hook: dict[str, str]
) -> None:
    running, receiving = hooked
    with running.client() as client:
        client.patch(f"{HOOKS}/{hook['id']}", json={"active": False}).raise_for_status()
        _commit(running, "unheard")
        client.patch(f"{HOOKS}/{hook['id']}", json={"active": True}).raise_for_status()
        _commit(running, "heard")
    receiving.wait()
    assert [json.loads(body)["note"] for _, body in receiving.received] == ["heard"]
