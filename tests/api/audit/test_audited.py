"""What a service writes into its audit log, and what it never does."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.audit import anchors as anchors_module
from tensorrepo.api.audit.anchors import Anchors, anchors_of
from tensorrepo.api.audit.events import AuditEvent, verify
from tensorrepo.api.server import first_code
from tensorrepo.repo.errors import StorageError
from tests.support.servers.service import RunningService, running_service

WORD = "correct horse battery"
ERIC = {"name": "eric", "password": WORD}


@pytest.fixture(scope="module")
def used(service: RunningService) -> RunningService:
    """A service of which something was asked, allowed and not; no thread of it writes the head."""
    service.service.anchors.close()
    eve = service.user("eve")
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        client.get("/api/v1/repositories/team/photos/-/refs").raise_for_status()
        client.post("/api/v1/users", json=ERIC, headers={"X-Request-Id": "r-1"}).raise_for_status()
        grant = {"holder": "eve", "action": "read", "refs": "heads/main"}
        client.put("/api/v1/repositories/team/photos/-/grants", json=grant).raise_for_status()
    with service.client(eve) as client:
        client.put("/api/v1/repositories/team/photos/-/grants", json=grant)
    with service.client("trp_" + "0" * 49) as client:
        for _ in range(20):
            client.get("/api/v1/me?token=trp_in_a_query")
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
        client.post("/api/v1/session", json={"user": "eric", "password": "wrong" * 5})
        client.post("/api/v1/session", json={"user": "eric", "password": WORD})
        client.post("/login/code", data={"code": str(first_code(service.service))})
    return service


def of_kind(service: RunningService, kind: str, **members: Any) -> list[dict[str, Any]]:
    return [
        event
        for event in service.audited()
        if event["kind"] == kind
        and all(event.get(name) == value for name, value in members.items())
    ]


def test_a_write_names_who_what_and_where_from(used: RunningService) -> None:
    (made,) = of_kind(used, "account", detail="make user eric")
    assert (made["actor"], made["address"], made["request_id"]) == ("admin", "127.0.0.1", "r-1")
    assert (made["method"], made["paths"], made["status"]) == ("POST", ["/api/v1/users"], 201)
    assert len(made["token"]) == 12


def test_grants_name_what_was_granted_to_whom(used: RunningService) -> None:
    (grant,) = of_kind(used, "grant")
    assert grant["detail"] == "read heads/main of team/photos to user eve"
    assert grant["repository"] == "team/photos"


def test_sign_ins_are_written_down_and_failures_too(used: RunningService) -> None:
    assert [one["actor"] for one in of_kind(used, "sign-in")] == ["eric", "admin"]
    (failed,) = of_kind(used, "refusal", detail="password of eric")
    assert (failed["status"], failed.get("actor")) == (401, None)


def test_refusals_name_who_was_refused(used: RunningService) -> None:
    (refused,) = of_kind(used, "refusal", actor="eve")
    assert (refused["status"], refused["repository"]) == (403, "team/photos")


def test_a_flood_of_refusals_is_few_events(used: RunningService) -> None:
    flood = of_kind(used, "refusal", paths=["/api/v1/me"])
    assert sum(one.get("count", 1) for one in flood) == 20
    assert all(one["token"] for one in flood)


def test_reading_what_there_is_is_no_event(used: RunningService) -> None:
    assert [one for one in used.audited() if "/-/refs" in str(one)] == []


def test_operators_export_it_and_the_export_is_proved(used: RunningService) -> None:
    with used.client() as client:
        answer = client.get("/api/v1/audit")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert len(answer.text.splitlines()) >= 7
    assert verify(used.service.audit.blocks()).problems == ()


def test_the_head_goes_into_the_logs_of_repositories(used: RunningService) -> None:
    service = used.service
    access = service.directory.open("team/photos")
    before = access.view.state.refs
    anchors = Anchors(service.audit, service.database, service.directory, every_seconds=3600)
    service.audit.record(_write("team/photos"))
    service.audit.flush()
    assert anchors.write_due() == ["team/photos"]
    service.audit.record(_write("team/photos"))
    assert anchors.write_due() == []  # not again within the hour
    found = list(anchors_of(access.core))
    report = verify(service.audit.blocks(), found)
    assert (len(found), report.problems) == (1, ())
    assert access.view.state.refs == before
    number, _ = found[0]
    forged = verify((one for one in service.audit.blocks()), [(number, "f" * 64)])
    assert forged.problems == (f"block {number} is not what a repository's log says it was",)


def test_a_head_that_a_log_could_not_be_told_is_told_when_its_turn_comes_again(
    used: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise StorageError("no answer")

    service, now = used.service, [time.time_ns()]
    service.audit.record(_write("team/photos"))
    service.audit.flush()
    hour = 3600
    anchors = Anchors(
        service.audit, service.database, service.directory, every_seconds=hour, clock=lambda: now[0]
    )
    now[0] += 2 * hour * 10**9
    with monkeypatch.context() as patched:
        patched.setattr(anchors_module, "write_anchor", refuse)
        assert anchors.write_due() == []
    now[0] += 2 * hour * 10**9
    assert anchors.write_due() == ["team/photos"]


def _write(repository: str) -> Any:
    return AuditEvent(1, "write", repository=repository)


def test_no_secret_gets_into_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    word = "a password nobody else has"
    with running_service(tmp_path) as running:
        code = str(first_code(running.service))
        secrets = {running.token, word, code}
        running.service.accounts.grant("admin", Grant("team/*", Action.ADMIN))
        with running.client() as client:
            client.post("/api/v1/users", json={"name": "ann", "password": word})
            client.post("/api/v1/users", json={"name": "UPPER", "password": word})
            client.put("/api/v1/users/ann/password", json={"password": word, "old": 7})
            made = client.post("/api/v1/tokens", json={"label": "t"}).json()
            client.get(f"/api/v1/tokens/{running.token}")
            client.delete(f"/api/v1/tokens/{running.token}")
            client.get("/api/v1/me", params={"token": running.token})
        with running.client(made["token"][:-1]) as client:
            client.get("/api/v1/me")
        with httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client:
            client.get("/login/code", params={"code": code})
            client.post("/login/code", data={"code": code})
            client.post("/login", data={"user": "ann", "password": word})
            client.post("/login", data={"user": word, "password": running.token})
            secrets |= {made["token"], *client.cookies.values()}
        audit = str(running.audited())
    own = [
        one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))
    ]
    said = audit + "".join(own)
    assert [secret for secret in secrets if secret in said] == []
