"""Tokens: what they are worth, and for how long."""

from __future__ import annotations

import pytest

from tensorrepo.api.access.accounts import Accounts
from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.access.tokens import make_token
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnauthenticatedError,
)
from tests.api.access.conftest import SECOND, Parts

GOOD = make_token()
MALFORMED = [
    "",
    "trp_",
    "Bearer",
    GOOD,  # well formed, and nobody's
    GOOD[:-1],
    GOOD + "0",
    GOOD.swapcase(),
    GOOD.replace("trp_", "trs_"),
    f" {GOOD}",
    GOOD[:10] + "\x00" + GOOD[11:],
    "' OR 1=1 --",
    "trp_" + "é" * 49,
    "trp_" + "0" * 10_000,
]
READ = Grant("team/photos", Action.READ)


def used(parts: Parts) -> int | None:
    (token,) = parts.accounts.tokens("ann")
    return token.used_ns


def caller_with(accounts: Accounts, *scope: Grant) -> Caller:
    return accounts.caller(accounts.add_token("ann", "t", scope=scope or None))


@pytest.mark.together
@pytest.mark.parametrize("token", MALFORMED, ids=map(str, range(len(MALFORMED))))
def test_what_is_no_token_of_ours_is_worth_nothing(parts: Parts, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_an_expired_token_is_worth_nothing(parts: Parts) -> None:
    token = parts.accounts.add_token("ann", "t", expires_ns=parts.clock.now + 60 * SECOND)
    assert parts.accounts.caller(token).name == "ann"
    parts.clock.wait(60)
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_a_revoked_token_is_worth_nothing_at_once(parts: Parts) -> None:
    token = parts.accounts.add_token("ann", "t")
    parts.accounts.caller(token)
    parts.accounts.revoke_id(None, parts.accounts.caller(token).token_id)
    assert parts.accounts.known(token) is None
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_another_process_refuses_it_after_a_second(parts: Parts) -> None:
    other = Accounts(parts.database, clock=parts.clock)
    token = other.add_token("ann", "t")
    parts.accounts.caller(token)
    other.revoke_id(None, other.caller(token).token_id)
    assert parts.accounts.known(token) is not None
    parts.clock.wait(1)
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_with_a_token_goes_what_it_made(parts: Parts) -> None:
    accounts = parts.accounts
    first = accounts.add_token("ann", "first")
    second = accounts.add_token_as(accounts.caller(first), "second")
    third = accounts.add_token_as(accounts.caller(second), "third")
    accounts.revoke_id(None, accounts.caller(first).token_id)
    with pytest.raises(UnauthenticatedError):
        accounts.caller(third)


def test_whose_account_is_disabled_has_no_tokens(parts: Parts) -> None:
    token = parts.accounts.add_token("ann", "t")
    parts.accounts.caller(token)
    parts.accounts.people.change_user("ann", is_disabled=True)
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_a_removed_user_leaves_no_token_behind(parts: Parts) -> None:
    token = parts.accounts.add_token("ann", "t")
    parts.accounts.people.remove_user("ann")
    parts.accounts.add_user("ann")
    with pytest.raises(UnauthenticatedError):
        parts.accounts.caller(token)


def test_the_last_use_is_written_once_a_minute(parts: Parts) -> None:
    token, began = parts.accounts.add_token("ann", "t"), parts.clock.now
    parts.accounts.caller(token)
    parts.clock.wait(59)
    parts.accounts.caller(token)
    assert used(parts) == began
    parts.clock.wait(2)
    parts.accounts.caller(token)
    assert used(parts) == parts.clock.now


@pytest.mark.parametrize(
    "wanted",
    [
        Grant("team/photos", Action.WRITE),
        Grant("team/*", Action.READ),
        Grant("*", Action.READ),
        Grant("team/photos2", Action.READ),
        Grant("team", Action.READ),
    ],
)
def test_no_token_does_more_than_its_maker_may(parts: Parts, wanted: Grant) -> None:
    parts.accounts.grant("ann", READ)
    with pytest.raises(PermissionDenied, match="may do no more"):
        parts.accounts.add_token_as(caller_with(parts.accounts), "t", scope=(wanted,))


@pytest.mark.parametrize("scope", [None, (Grant("team/photos", Action.READ),), (READ, READ)])
def test_nor_than_the_token_that_makes_it(parts: Parts, scope: tuple[Grant, ...] | None) -> None:
    parts.accounts.grant("ann", Grant("team/*", Action.ADMIN))
    maker = caller_with(parts.accounts, Grant("team/photos", Action.READ, "heads/dev/*"))
    with pytest.raises(PermissionDenied):
        parts.accounts.add_token_as(maker, "t", scope=scope)


def test_a_token_makes_narrower_ones(parts: Parts) -> None:
    parts.accounts.grant("ann", Grant("team/*", Action.ADMIN))
    maker = caller_with(parts.accounts, Grant("team/photos", Action.WRITE, "heads/dev*"))
    narrow = Grant("team/photos", Action.READ, "heads/dev/ann")
    made = parts.accounts.caller(parts.accounts.add_token_as(maker, "t", scope=(narrow,)))
    assert made.may(Action.READ, "team/photos", "heads/dev/ann")
    assert not made.may(Action.WRITE, "team/photos", "heads/dev/ann")


def test_a_token_outlives_none_that_made_it(parts: Parts) -> None:
    end = parts.clock.now + 60 * SECOND
    short = parts.accounts.caller(parts.accounts.add_token("ann", "t", expires_ns=end))
    parts.accounts.add_token_as(short, "longer", expires_ns=end + SECOND)
    assert {token.expires_ns for token in parts.accounts.tokens("ann")} == {end}


def test_a_token_that_is_over_is_not_made(parts: Parts) -> None:
    with pytest.raises(InvalidInputError, match="in the future"):
        parts.accounts.add_token_as(
            caller_with(parts.accounts), "t", expires_ns=parts.clock.now - 1
        )


def test_nobody_makes_or_revokes_a_token_of_another(parts: Parts) -> None:
    parts.accounts.add_token("root", "t")
    (theirs,) = parts.accounts.tokens("root")
    with pytest.raises(PermissionDenied):
        parts.accounts.add_token_as(caller_with(parts.accounts), "t", user="root")
    with pytest.raises(NotFoundError):
        parts.accounts.revoke_id("ann", theirs.id)


def test_a_list_of_tokens_shows_none(parts: Parts) -> None:
    token = parts.accounts.add_token("ann", "t")
    assert token not in repr(parts.accounts.tokens())


def test_what_a_group_may_do_its_members_may(parts: Parts) -> None:
    people = parts.accounts.people
    people.add_group("vision")
    people.grant("group", "vision", READ)
    token = parts.accounts.add_token("ann", "t")
    assert not parts.accounts.caller(token).may(Action.READ, "team/photos", None)
    people.set_members("vision", add=["ann"])
    assert parts.accounts.caller(token).may(Action.READ, "team/photos", None)
    people.set_members("vision", remove=["ann"])
    assert not parts.accounts.caller(token).may(Action.READ, "team/photos", None)
