"""Tokens that `tensorrepo login` keeps, and which URLs get one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring

from tensorrepo.connect import Machine
from tensorrepo.credentials import (
    credentials_file,
    forget_token,
    server_url,
    store_token,
    stored_logins,
    stored_token,
)
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, StorageError

SERVER = "https://example.org/data"


class _Kept(KeyringBackend):
    """A keyring in memory."""

    priority = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


class _Locked(_Kept):
    """One that its user did not unlock."""

    def get_password(self, service: str, username: str) -> str | None:
        raise keyring.errors.KeyringLocked("locked")

    def set_password(self, service: str, username: str, password: str) -> None:
        raise keyring.errors.KeyringLocked("locked")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine without a keyring."""
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())
    yield Machine({}, tmp_path, tmp_path)
    keyring.set_keyring(before)


@pytest.mark.parametrize(
    "url",
    [
        SERVER,
        "https://example.org/data/",
        "HTTPS://EXAMPLE.ORG:443/data/team/photos",
        "https://example.org/data/team/photos",
    ],
)
def test_a_token_is_sent_below_the_url_that_it_was_kept_for(machine: Machine, url: str) -> None:
    store_token(machine, SERVER, "ann", "trp_1")
    assert stored_token(machine, url) == "trp_1"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/data",
        "https://example.org:8443/data",
        "https://example.org/database",
        "https://example.org/",
        f"https://{'example.org'}.example.com/data",
        f"https://{'www'}.example.org/data",
    ],
)
def test_a_token_is_sent_nowhere_else(machine: Machine, url: str) -> None:
    store_token(machine, SERVER, "ann", "trp_1")
    assert stored_token(machine, url) is None


def test_the_nearest_server_above_a_url_counts(machine: Machine) -> None:
    store_token(machine, "https://example.org", "ann", "trp_1")
    store_token(machine, SERVER, "ann", "trp_2")
    assert stored_token(machine, f"{SERVER}/team") == "trp_2"


def test_nobody_else_may_read_the_file(machine: Machine) -> None:
    store_token(machine, SERVER, "ann", "trp_1")
    assert credentials_file(machine).stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_read_is_refused(machine: Machine) -> None:
    store_token(machine, SERVER, "ann", "trp_1")
    credentials_file(machine).chmod(0o640)
    with pytest.raises(PermissionDenied, match="chmod 600"):
        stored_token(machine, SERVER)


def test_a_damaged_file_is_told_of_without_its_words(machine: Machine) -> None:
    store_token(machine, SERVER, "ann", "trp_1")
    credentials_file(machine).write_text('{"https://example.org": "trp_secret"}')
    with pytest.raises(InvalidInputError, match="log in again") as caught:
        stored_token(machine, SERVER)
    assert "trp_secret" not in str(caught.value)


def test_the_environment_has_a_token_for_the_server_that_it_names_alone(machine: Machine) -> None:
    told = Machine(
        {"TENSORREPO_TOKEN": "trp_3", "TENSORREPO_SERVER": SERVER}, machine.home, machine.cwd
    )
    assert stored_token(told, f"{SERVER}/team/photos") == "trp_3"
    assert stored_token(told, "https://example.com") is None


def test_a_keyring_has_the_token_and_the_file_has_not(machine: Machine) -> None:
    keyring.set_keyring(_Kept())
    where = store_token(machine, SERVER, "ann", "trp_4")
    assert where == "the system's keyring"
    assert b"trp_4" not in credentials_file(machine).read_bytes()
    assert stored_token(machine, SERVER) == "trp_4"


def test_a_keyring_that_is_locked_leaves_it_to_the_file(machine: Machine) -> None:
    keyring.set_keyring(_Locked())
    store_token(machine, SERVER, "ann", "trp_5")
    assert stored_token(machine, SERVER) == "trp_5"


def test_a_keyring_that_was_locked_since_is_told_of(machine: Machine) -> None:
    keyring.set_keyring(_Kept())
    store_token(machine, SERVER, "ann", "trp_6")
    keyring.set_keyring(_Locked())
    with pytest.raises(StorageError, match="Unlock it"):
        stored_token(machine, SERVER)


def test_what_is_forgotten_is_nowhere(machine: Machine) -> None:
    kept = _Kept()
    keyring.set_keyring(kept)
    store_token(machine, SERVER, "ann", "trp_7")
    forgotten = forget_token(machine, SERVER)
    assert forgotten is not None
    assert forgotten.token == "trp_7"
    assert (kept.held, stored_logins(machine)) == ({}, {})
    assert forget_token(machine, SERVER) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        "ftp://example.org",
        "https://",
        "https://a:b@example.org",
        "http://host:x",
    ],
)
def test_what_is_no_server_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        server_url(text)
    assert "a:b" not in str(caught.value)
