"""Sessions and tickets: what is good for a while, and what is good once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorrepo.api.access.sessions import IDLE_SECONDS, LONGEST_SECONDS, csrf_of
from tensorrepo.repo.errors import UnauthenticatedError
from tests.api.access.conftest import Parts


def test_a_session_is_its_users(parts: Parts) -> None:
    session = parts.sessions.begin("ann", "192.0.2.1")
    caller = parts.sessions.caller(session)
    assert (caller.kind, caller.name, caller.csrf) == ("session", "ann", csrf_of(session))


def test_a_session_that_is_not_used_ends(parts: Parts) -> None:
    session = parts.sessions.begin("ann", "")
    parts.clock.wait(IDLE_SECONDS)
    with pytest.raises(UnauthenticatedError):
        parts.sessions.caller(session)


def test_a_session_that_is_used_ends_too(parts: Parts) -> None:
    session = parts.sessions.begin("ann", "")
    half = IDLE_SECONDS / 2
    for _ in range(int(LONGEST_SECONDS / half) - 1):
        parts.clock.wait(half)
        parts.sessions.caller(session)
    parts.clock.wait(2 * half - 1)
    with pytest.raises(UnauthenticatedError):
        parts.sessions.caller(session)


def test_signing_out_everywhere_ends_all(parts: Parts) -> None:
    sessions = [parts.sessions.begin("ann", "") for _ in range(3)]
    other = parts.sessions.begin("root", "")
    assert parts.sessions.end_all("ann") == 3
    assert parts.sessions.caller(other).name == "root"
    with pytest.raises(UnauthenticatedError):
        parts.sessions.caller(sessions[0])


@pytest.mark.parametrize("session", ["", "trs_", "trs_" + "a" * 43, "trp_" + "a" * 49, "\x00"])
def test_what_is_no_session_is_worth_nothing(parts: Parts, session: str) -> None:
    with pytest.raises(UnauthenticatedError):
        parts.sessions.caller(session)


def test_a_ticket_is_good_once_among_many_at_once(parts: Parts) -> None:
    ticket = parts.tickets.make("code", {"user": "ann"}, seconds=600)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: parts.tickets.take("code", ticket), range(16)))
    assert [one for one in taken if one is not None] == [{"user": "ann"}]


def test_a_ticket_is_good_for_its_purpose_alone(parts: Parts) -> None:
    ticket = parts.tickets.make("code", {"user": "ann"}, seconds=600)
    assert parts.tickets.take("openid", ticket) is None
    assert parts.tickets.take("code", ticket) == {"user": "ann"}


def test_a_ticket_ends(parts: Parts) -> None:
    ticket = parts.tickets.make("code", {"user": "ann"}, seconds=600)
    parts.clock.wait(600)
    assert parts.tickets.take("code", ticket) is None
