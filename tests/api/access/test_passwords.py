"""Passwords: argon2id, growing waits, and answers that tell nobody who has an account."""

from __future__ import annotations

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.low_level import Type
from sqlalchemy import select

from tensorrepo.api.access import passwords as passwords_module
from tensorrepo.api.access.passwords import FORGOTTEN_NS, PAIR, Passwords, Waits
from tensorrepo.api.database import tables
from tensorrepo.repo.errors import InvalidInputError, RateLimitedError, UnauthenticatedError
from tests.api.access.conftest import SECOND, Parts

WORD = "correct horse battery"
HERE, THERE = "192.0.2.1", "198.51.100.7"


@pytest.fixture(autouse=True)
def _costs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hash takes a tenth of a second, but where a test is about just that."""
    if "argon2id" not in request.node.name:
        cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        monkeypatch.setattr(passwords_module, "_COSTS", cheap)


@pytest.fixture
def passwords(parts: Parts) -> Passwords:
    parts.passwords.set("ann", WORD)
    return parts.passwords


def refusal(passwords: Passwords, user: str, word: str, address: str = HERE) -> str:
    with pytest.raises(UnauthenticatedError) as caught:
        passwords.check(user, word, address)
    return str(caught.value)


def fail(passwords: Passwords, times: int, user: str = "ann", address: str = HERE) -> None:
    for _ in range(times):
        refusal(passwords, user, "wrong", address)


def wait_of(passwords: Passwords, user: str = "ann", address: str = HERE) -> float:
    with pytest.raises(RateLimitedError) as caught:
        passwords.check(user, WORD, address)
    return caught.value.retry_seconds


def test_the_right_password_signs_in(passwords: Passwords) -> None:
    assert passwords.check("ann", WORD, HERE) == "ann"


@pytest.mark.usefixtures("passwords")
def test_what_is_stored_is_argon2id(parts: Parts) -> None:
    with parts.database.read() as connection:
        asked = select(tables.users.c.password).where(tables.users.c.name == "ann")
        stored = connection.execute(asked).scalar_one()
    assert extract_parameters(stored).type is Type.ID
    assert extract_parameters(stored).memory_cost >= 46 << 10


def test_nobody_learns_who_has_an_account(passwords: Passwords, parts: Parts) -> None:
    parts.accounts.add_user("dan")
    parts.passwords.set("dan", WORD)
    parts.accounts.people.change_user("dan", is_disabled=True)
    answers = {
        refusal(passwords, "ann", "wrong"),
        refusal(passwords, "nobody", "wrong"),
        refusal(passwords, "root", "wrong"),  # has no password
        refusal(passwords, "dan", WORD),  # is disabled
    }
    assert len(answers) == 1


def test_each_refusal_costs_one_argon2id(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    verify = PasswordHasher.verify

    def counted(self: PasswordHasher, hashed: str, password: str) -> bool:
        asked.append(hashed.rsplit("$", 2)[0])
        return verify(self, hashed, password)

    refusal(passwords, "ann", "wrong")
    monkeypatch.setattr(PasswordHasher, "verify", counted)
    refusal(passwords, "ann", "wrong")
    refusal(passwords, "nobody", "wrong")
    refusal(passwords, "root", "wrong")
    assert len(asked) == 3
    assert len(set(asked)) == 1  # of the same costs


def test_waits_grow_to_their_longest() -> None:
    assert [Waits(2, 6).after(failures) for failures in range(8)] == [0, 0, 0, 1, 2, 4, 6, 6]


def test_after_some_failures_the_right_password_waits_too(
    passwords: Passwords, parts: Parts
) -> None:
    fail(passwords, PAIR.free + 1)
    assert wait_of(passwords) == 1
    parts.clock.wait(1)
    assert passwords.check("ann", WORD, HERE) == "ann"


def test_each_further_failure_waits_twice_as_long(passwords: Passwords, parts: Parts) -> None:
    fail(passwords, PAIR.free + 1)
    parts.clock.wait(1)
    fail(passwords, 1)
    assert wait_of(passwords) == 2


def test_an_unknown_user_waits_alike(passwords: Passwords) -> None:
    fail(passwords, PAIR.free + 1, "nobody")
    assert wait_of(passwords, "nobody") == 1


def test_attempts_that_are_refused_do_not_count(passwords: Passwords) -> None:
    fail(passwords, PAIR.free + 1)
    waits = [wait_of(passwords) for _ in range(5)]
    assert waits == [1] * 5


def test_others_do_not_lock_a_user_out(passwords: Passwords) -> None:
    fail(passwords, PAIR.free + 1, address=THERE)
    assert passwords.check("ann", WORD, HERE) == "ann"


def test_one_address_of_a_network_counts_as_the_others_of_it(passwords: Passwords) -> None:
    fail(passwords, PAIR.free, address="2001:db8::1")
    fail(passwords, 1, address="2001:db8::2")
    assert wait_of(passwords, address="2001:db8::3") == 1


def test_failures_are_forgotten_after_a_day(passwords: Passwords, parts: Parts) -> None:
    fail(passwords, PAIR.free)
    parts.clock.wait(FORGOTTEN_NS / SECOND + 1)
    fail(passwords, 1)
    assert passwords.check("ann", WORD, HERE) == "ann"


def test_a_new_password_signs_everybody_out(passwords: Passwords, parts: Parts) -> None:
    session = parts.sessions.begin("ann", HERE)
    passwords.set("ann", WORD.upper())
    with pytest.raises(UnauthenticatedError):
        parts.sessions.caller(session)


def test_half_a_character_is_no_password(passwords: Passwords) -> None:
    assert refusal(passwords, "ann", "\ud800") == refusal(passwords, "ann", "wrong")
    with pytest.raises(InvalidInputError, match="half a character"):
        passwords.check("\ud800", WORD, HERE)


@pytest.mark.parametrize(
    "word", ["", "short", "aaaaaaaaaaaaaaaa", "ann-ann-ann1", "x" * 2000, "sure and \ud800 long"]
)
def test_a_weak_password_is_refused_and_not_repeated(passwords: Passwords, word: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        passwords.set("ann", word)
    assert not word or word not in str(caught.value)
