"""Events of a repository over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.service import RunningService, running_service

EVENTS = "/api/v1/repositories/team/photos/-/events"


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
    _commit(service, "main", "first")  # branches are made of it
    return service


def _commit(running: RunningService, branch: str, name: str) -> None:
    repo = tr.open(running.service.directory.find("team/photos").url, author="Ann <a@example.org>")
    if branch not in (*repo.branches(), "main"):
        repo.create_branch(branch)
    with repo.transaction(branch, message=name) as tx:
        tx.create_dataset(name, {"x": [1]})


def _listen(stack: ExitStack, client: httpx.Client, **headers: str) -> Iterator[dict[str, str]]:
    """Events as they come: their fields, of those that have data."""
    answer = stack.enter_context(client.stream("GET", EVENTS, headers=headers))
    assert answer.status_code == 200
    lines = answer.iter_lines()
    assert next(lines).startswith("retry:")  # it listens from here on
    return _parse(lines)


def _parse(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            yield fields
            fields = {}


def test_a_commit_is_told_as_it_happens(photos: RunningService) -> None:
    with ExitStack() as stack:
        events = _listen(stack, stack.enter_context(photos.client()))
        _commit(photos, "main", "told")
        event = next(events)
    data = json.loads(event["data"])
    assert data["ref"] == "heads/main"
    assert event["id"] == data["id"]
    assert data["actor"] == "Ann <a@example.org>"


@pytest.mark.soak
def test_who_comes_back_misses_nothing(photos: RunningService) -> None:
    with ExitStack() as stack:
        events = _listen(stack, stack.enter_context(photos.client()))
        _commit(photos, "main", "before")
        last = next(events)["id"]
    _commit(photos, "main", "while_away_1")
    _commit(photos, "main", "while_away_2")
    with ExitStack() as stack:
        client = stack.enter_context(photos.client())
        events = _listen(stack, client, **{"Last-Event-ID": last})
        missed = [json.loads(next(events)["data"])["note"] for _ in range(2)]
        _commit(photos, "main", "live")
        live = json.loads(next(events)["data"])["note"]
    assert [*missed, live] == ["while_away_1", "while_away_2", "live"]


def test_a_reader_of_one_branch_hears_of_no_other(photos: RunningService) -> None:
    token = photos.user("listener", Grant("team/photos", Action.READ, "heads/main"))
    with ExitStack() as stack:
        events = _listen(stack, stack.enter_context(photos.client(token)))
        _commit(photos, "secret", "hidden")
        _commit(photos, "main", "open")
        assert json.loads(next(events)["data"])["note"] == "open"


@pytest.mark.parametrize(
    ("last", "status"), [("1", 400), ("x:y", 400), ("-1:0", 400), ("999999:0", 200)]
)
def test_ids_that_are_none_are_refused(photos: RunningService, last: str, status: int) -> None:
    headers = {"Last-Event-ID": last}
    with photos.client() as client, client.stream("GET", EVENTS, headers=headers) as answer:
        assert answer.status_code == status


def test_an_id_of_the_future_is_told_as_dropped(photos: RunningService) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(photos.client())
        event = next(_listen(stack, client, **{"Last-Event-ID": "999999:0"}))
    assert (event["event"], json.loads(event["data"])["kind"]) == ("dropped", "expired")


@pytest.mark.soak
def test_many_streams_hold_no_thread(photos: RunningService) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(photos.client())
        pool = httpx.Limits(max_connections=None)
        many = stack.enter_context(
            httpx.Client(base_url=photos.url, headers=client.headers, limits=pool, timeout=60)
        )
        before = threading.active_count()
        streams = [_listen(stack, many) for _ in range(100)]
        assert threading.active_count() <= before + photos.service.settings.threads
        assert client.get("/api/v1/repositories/team/photos").status_code == 200
        _commit(photos, "main", "for_all")
        told = {json.loads(next(events)["data"])["note"] for events in streams}
    assert told == {"for_all"}


def _revoke(photos: RunningService, token: str) -> None:
    photos.service.accounts.revoke_id(None, photos.service.accounts.caller(token).token_id)


def _take_back(photos: RunningService, token: str) -> None:
    name = photos.service.accounts.caller(token).name
    photos.service.people.ungrant("user", name, "team/photos")


def _disable(photos: RunningService, token: str) -> None:
    name = photos.service.accounts.caller(token).name
    photos.service.people.change_user(name, is_disabled=True)


@pytest.mark.parametrize(
    ("change", "kind"),
    [(_revoke, "unauthenticated"), (_take_back, "permission"), (_disable, "unauthenticated")],
)
def test_a_stream_ends_before_it_tells_what_its_caller_may_not_know_any_more(
    photos: RunningService, change: Callable[[RunningService, str], None], kind: str
) -> None:
    token = photos.user(f"leaving{change.__name__}", Grant("team/photos", Action.READ))
    with ExitStack() as stack:
        events = _listen(stack, stack.enter_context(photos.client(token)))
        change(photos, token)
        _commit(photos, "main", change.__name__)
        event = next(events)
    assert (event["event"], json.loads(event["data"])["kind"]) == ("dropped", kind)


def test_a_stream_of_a_session_ends_with_it(photos: RunningService) -> None:
    photos.user("visitor", Grant("team/photos", Action.READ))
    with ExitStack() as stack:
        events = _listen(stack, stack.enter_context(photos.browser("visitor")))
        photos.service.sessions.end_all("visitor")
        _commit(photos, "main", "signed_out")
        assert next(events)["event"] == "dropped"


def test_streams_end_when_the_service_does(tmp_path: Path) -> None:
    with ExitStack() as outer:
        with running_service(tmp_path) as running:
            outer.enter_context(client := running.client())
            made = client.post("/api/v1/repositories", json={"name": "team/photos"})
            made.raise_for_status()
            events = _listen(outer, client)
        assert next(events)["event"] == "dropped"
