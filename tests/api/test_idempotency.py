"""Idempotency keys: a write that is sent again is carried out once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.idempotency import KeptAnswers
from tests.support.servers.service import RunningService

PATH = "/api/v1/repositories"


def _key(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


def test_a_write_that_is_sent_again_is_answered_the_same(service: RunningService) -> None:
    with service.client() as client:
        first, again = (
            client.post(PATH, json={"name": "once"}, headers=_key("a")) for _ in range(2)
        )
        without = client.post(PATH, json={"name": "once"})
    assert (first.status_code, again.status_code, without.status_code) == (201, 201, 409)
    assert again.content == first.content
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_key_is_for_one_request(service: RunningService) -> None:
    with service.client() as client:
        client.post(PATH, json={"name": "one"}, headers=_key("b")).raise_for_status()
        other = client.post(PATH, json={"name": "two"}, headers=_key("b"))
        there = client.get(f"{PATH}/two")
    assert (other.status_code, there.status_code) == (422, 404)


def test_keys_of_others_are_others(service: RunningService) -> None:
    token = service.user("kim", Grant("kim/*", Action.ADMIN))
    with service.client() as client, service.client(token) as other:
        client.post(PATH, json={"name": "mine"}, headers=_key("c")).raise_for_status()
        refused = other.post(PATH, json={"name": "mine"}, headers=_key("c"))
        made = other.post(PATH, json={"name": "kim/own"}, headers=_key("c"))
    assert (refused.status_code, made.status_code) == (403, 201)


def test_a_token_for_less_gets_no_answer_of_one_for_more(service: RunningService) -> None:
    user = service.user("kay", Grant("kay/*", Action.ADMIN))
    scope = (Grant("kay/other", Action.READ),)
    narrow = service.service.accounts.add_token("kay", "narrow", scope=scope)
    with service.client(user) as client, service.client(narrow) as other:
        client.post(PATH, json={"name": "kay/own"}, headers=_key("n")).raise_for_status()
        answer = other.post(PATH, json={"name": "kay/own"}, headers=_key("n"))
    assert answer.status_code == 422
    assert "Idempotent-Replayed" not in answer.headers


def test_who_is_called_as_somebody_who_was_removed_gets_no_answers_of_theirs(
    service: RunningService,
) -> None:
    grant = Grant("max/*", Action.ADMIN)
    with service.client(service.user("max", grant)) as client:
        client.post(PATH, json={"name": "max/own"}, headers=_key("m")).raise_for_status()
    service.service.people.remove_user("max")
    with service.client(service.user("max", grant)) as client:
        answer = client.post(PATH, json={"name": "max/own"}, headers=_key("m"))
    assert answer.status_code == 409
    assert "Idempotent-Replayed" not in answer.headers


def test_what_is_refused_may_be_tried_again(service: RunningService) -> None:
    token = service.user("lea")
    with service.client(token) as client:
        before = client.post(PATH, json={"name": "lea/own"}, headers=_key("d"))
        service.service.accounts.grant("lea", Grant("lea/*", Action.ADMIN))
        after = client.post(PATH, json={"name": "lea/own"}, headers=_key("d"))
    assert (before.status_code, after.status_code) == (403, 201)


def test_who_has_the_answer_finds_it_kept(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("end", "forget"):
        monkeypatch.setattr(KeptAnswers, name, _late(getattr(KeptAnswers, name)))
    with service.client() as client, service.client(service.user("liv")) as other:
        first, again = (client.post(PATH, json={"name": "late"}, headers=_key("k")) for _ in "12")
        refused = [
            other.post(PATH, json={"name": name}, headers=_key("k")).status_code for name in "ab"
        ]
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert refused == [403, 403]


def _late(method: Callable[..., None]) -> Callable[..., None]:
    def late(*words: Any, **values: Any) -> None:
        time.sleep(0.2)
        method(*words, **values)

    return late


def test_a_secret_is_not_kept(service: RunningService) -> None:
    with service.client() as client:
        client.post(PATH, json={"name": "hooked"})
        hook = {"url": "https://example.org/", "secret": "s" * 32}
        first, again = (
            client.post(f"{PATH}/hooked/-/webhooks", json=hook, headers=_key("e")) for _ in range(2)
        )
        listed = client.get(f"{PATH}/hooked/-/webhooks").json()["items"]
    assert (first.status_code, again.status_code) == (201, 409)
    assert "s" * 32 not in again.text
    assert len(listed) == 1


def test_who_sends_it_while_the_first_runs_is_told_to_wait(service: RunningService) -> None:
    answers = KeptAnswers(service.service.database)
    assert answers.begin("admin", "f", "x") is None
    known = answers.begin("admin", "f", "x")
    assert known is not None
    assert known.state == "running"


def test_what_a_killed_process_left_is_not_carried_out_again(service: RunningService) -> None:
    database = service.service.database
    assert KeptAnswers(database, lambda: 10**18).begin("admin", "g", "x") is None
    known = KeptAnswers(database, lambda: 10**18 + 3600 * 10**9).begin("admin", "g", "x")
    assert known is not None
    assert known.state == "unknown"


def test_a_key_is_forgotten_after_a_day(service: RunningService) -> None:
    database = service.service.database
    assert KeptAnswers(database, lambda: 10**18).begin("admin", "h", "x") is None
    later = KeptAnswers(database, lambda: 10**18 + 90000 * 10**9)
    assert later.begin("admin", "h", "x") is None


def test_of_many_at_once_one_is_carried_out(service: RunningService) -> None:
    statuses: list[int] = []

    def send() -> None:
        with service.client() as client:
            answer = client.post(PATH, json={"name": "many"}, headers=_key("i"))
            statuses.append(answer.status_code)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {201, 409}
    assert 201 in statuses


@pytest.mark.parametrize("key", ["", "a b", "x" * 201])
def test_what_is_no_key_is_refused(service: RunningService, key: str) -> None:
    with service.client() as client:
        assert client.post(PATH, json={"name": "n"}, headers=_key(key)).status_code == 400


def test_without_a_token_nothing_is_kept(service: RunningService) -> None:
    with service.client("") as client:
        assert client.post(PATH, json={"name": "n"}, headers=_key("j")).status_code == 401
