"""Commands that work with a server: logins, tokens, accounts, grants, the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from tensorrepo.api.server import first_token
from tests.support.processes.shell import Shell
from tests.support.servers.service import RunningService, running_service

WORD = b"correct horse battery\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def no_keyring() -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())
    yield
    keyring.set_keyring(before)


@pytest.fixture
def admin(empty: Shell, service: RunningService, no_keyring: None) -> Shell:  # noqa: ARG001
    """A shell that is logged in as whoever runs the service."""
    logged_in = replace(empty, piped=service.token.encode() + b"\n")
    logged_in("login", service.url)
    return empty


@pytest.fixture
def ann(admin: Shell) -> str:
    """A user with a password."""
    admin.run("user", "add", "ann", "--email", "ann@example.org")
    replace(admin, piped=WORD)("user", "password", "ann")
    return "ann"


def test_a_login_keeps_a_token_that_works_and_shows_none(
    admin: Shell, service: RunningService
) -> None:
    kept = json.loads((admin.home / "config/tensorrepo/credentials.json").read_text())
    assert kept[service.url] == {"user": "admin", "token": service.token}
    assert admin.records("user", "ls")[0]["name"] == "admin"


@pytest.mark.usefixtures("no_keyring")
def test_a_token_that_is_worth_nothing_is_not_kept(empty: Shell, service: RunningService) -> None:
    piped = replace(empty, piped=b"trp_nothing\n")
    assert "not known here" in piped.fails(6, "login", service.url)
    assert "not logged in" in empty.fails(6, "user", "ls", "--server", service.url)


def test_a_password_makes_a_token(admin: Shell, service: RunningService, ann: str) -> None:
    typed = replace(admin, piped=WORD)
    answer = typed.json("login", service.url, "--user", ann, "--expires", "1d")
    (token,) = admin.records("token", "ls")
    assert (answer["user"], token["label"].startswith("login on ")) == (ann, True)
    assert token["expires_ns"] is not None


def test_a_logout_revokes_a_token_that_was_given_when_told_to(
    admin: Shell, service: RunningService
) -> None:
    made = admin.json("token", "create", "short", "--expires", "1h")
    piped = replace(admin, piped=made["token"].encode())
    piped("login", service.url, "--with-token")
    assert admin.json("logout", service.url)["revoked"] is False
    piped("login", service.url, "--with-token")
    assert admin.json("logout", service.url, "--revoke")["revoked"] is True
    piped.fails(6, "login", service.url)


def test_a_logout_revokes_the_token_that_the_login_made(
    admin: Shell, service: RunningService, ann: str
) -> None:
    replace(admin, piped=WORD)("login", service.url, "--user", ann)
    assert admin.json("logout", service.url)["revoked"] is True


def test_a_token_has_the_scope_that_was_asked_for(admin: Shell) -> None:
    scope = ("--scope", "team/photos=read", "--scope", "team/net=write@heads/bot/*")
    made = admin.json("token", "create", "bot", *scope)
    (listed,) = [one for one in admin.records("token", "ls", "--all") if one["id"] == made["id"]]
    assert listed["scope"] == [
        {"repository": "team/photos", "action": "read", "refs": "*"},
        {"repository": "team/net", "action": "write", "refs": "heads/bot/*"},
    ]
    assert admin.json("token", "revoke", made["id"])["revoked"] is True


def test_groups_and_grants_are_made_and_taken_back(admin: Shell, ann: str) -> None:
    admin("group", "add", "vision", "--description", "Who trains on photos")
    assert admin.json("group", "join", "vision", ann)["members"] == [ann]
    admin("grant", "set", "vision", "read", "team/*", "--group")
    admin("grant", "set", ann, "write", "team/photos", "--refs", "heads/dev/*")
    held = {(one["holder"], one["action"], one["refs"]) for one in admin.records("grant", "ls")}
    assert {("vision", "read", "*"), (ann, "write", "heads/dev/*")} <= held
    assert admin.json("grant", "rm", ann, "team/photos", "--refs", "heads/dev/*")["removed"]
    assert admin.json("group", "leave", "vision", ann)["members"] == []
    assert admin.records("group", "ls")[0]["name"] == "vision"
    assert admin.json("group", "rm", "vision")["removed"]


def test_an_account_is_disabled_and_removed(admin: Shell) -> None:
    assert admin.json("user", "add", "dan")["name"] == "dan"
    assert admin.json("user", "change", "dan", "--disable")["is_disabled"] is True
    assert admin.json("user", "change", "dan", "--enable")["is_disabled"] is False
    assert admin.json("user", "rm", "dan")["removed"] is True
    assert "no user" in admin.fails(3, "user", "rm", "dan")


def test_the_last_who_runs_the_server_stays(admin: Shell) -> None:
    assert "nobody would be left" in admin.fails(4, "user", "change", "admin", "--disable")


def test_an_exported_audit_log_is_proved(admin: Shell, tmp_path: Path) -> None:
    admin("token", "create", "for the log")
    exported = tmp_path / "audit.jsonl"
    exported.write_text(admin("audit", "export"))
    assert admin.json("audit", "verify", str(exported))["problems"] == []
    exported.write_text(exported.read_text().replace('"actor":"admin"', '"actor":"nobody"', 1))
    assert admin.json_of_failure(5, "audit", "verify", str(exported))["problems"] != []


def test_the_log_of_a_service_is_proved_where_it_lies(
    admin: Shell, service: RunningService
) -> None:
    admin("token", "create", "for the log")
    service.service.audit.flush()
    data = str(service.service.settings.data)
    assert admin.json("audit", "verify", "--data", data)["problems"] == []


def test_there_is_one_first_token(service: RunningService) -> None:
    assert first_token(service.service.accounts) is None
