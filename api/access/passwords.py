"""Passwords of local users: argon2id, and growing waits where they are guessed.

An attempt counts before it is checked, so that a thousand at once gain nothing over one after the
other. An unknown user, one without a password and a wrong password take the same time and give the
same answer; so do the right and the wrong one while a wait lasts.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from functools import cached_property
from ipaddress import ip_address, ip_network
from typing import Any, Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from tensorrepo.api.access.callers import KnownCallers
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    RateLimitedError,
    UnauthenticatedError,
)

MIN_CHARACTERS: Final = 12
MAX_BYTES: Final = 1024
SECOND_NS: Final = 10**9
FORGOTTEN_NS: Final = 24 * 3600 * SECOND_NS  # after which failures count no more
# OWASP's second choice of argon2id's costs: 46 MiB and one pass, on one lane.
_COSTS: Final = PasswordHasher(time_cost=1, memory_cost=47104, parallelism=1)
_AT_ONCE: Final = 2  # of which each takes 46 MiB
_UNKNOWN: Final = "a password that nobody has"


@dataclass(frozen=True, slots=True)
class Waits:
    """How long one source of failures waits.

    Attributes:
        free: failures without a wait; the next waits a second, each after it twice as long.
        most_seconds: the longest wait.
    """

    free: int
    most_seconds: int

    def after(self, failures: int) -> int:
        """Seconds to wait after so many failures."""
        over = failures - self.free
        return 0 if over <= 0 else min(self.most_seconds, 1 << min(over - 1, 30))


# Who guesses one user's password from one place waits long. What others do to a user's name from
# anywhere makes that user wait a minute at most; whoever tries many names from one place is slowed.
PAIR: Final = Waits(free=5, most_seconds=900)
NAME: Final = Waits(free=20, most_seconds=60)
ADDRESS: Final = Waits(free=50, most_seconds=900)


class Passwords:
    """Passwords of a service's users. Thread-safe."""

    def __init__(
        self,
        database: Database,
        callers: KnownCallers,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database, self._callers, self._clock = database, callers, clock
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    def set(self, user: str, password: str) -> None:
        """Give a user a password; whoever was signed in with the old one is signed out."""
        hashed = self._hash(check_password(user, password))
        with self._database.write() as connection:
            own = update(tables.users).where(tables.users.c.name == user)
            if not connection.execute(own.values(password=hashed)).rowcount:
                raise NotFoundError(f"there is no user {user!r:.120}")
            connection.execute(delete(tables.sessions).where(tables.sessions.c.user == user))
        self._callers.forget()

    def check(self, user: str, password: str, address: str) -> str:
        """Name of the user, when that is their password.

        Raises:
            UnauthenticatedError: it is not, or there is no such user, or they are disabled.
            RateLimitedError: too many attempts failed.
        """
        sources = _sources(user, address)
        self._count(sources)
        stored, is_disabled = self._stored(user)
        right = self._verify(stored or self._nobodys, password[: MAX_BYTES + 1])
        if not right or stored is None or is_disabled:
            raise UnauthenticatedError("this user or password is wrong, or the account is disabled")
        renewed = self._hash(password) if _COSTS.check_needs_rehash(stored) else stored
        pair, name, address = sources
        with self._database.write() as connection:
            table = tables.sign_in_failures
            connection.execute(delete(table).where(table.c.source.in_([pair, name])))
            self._uncount(connection, address)
            is_it = (tables.users.c.name == user) & (tables.users.c.password == stored)
            connection.execute(update(tables.users).where(is_it).values(password=renewed))
        return user

    def _stored(self, user: str) -> tuple[str | None, bool]:
        table = tables.users
        with self._database.read() as connection:
            asked = select(table.c.password, table.c.is_disabled).where(table.c.name == user)
            row = connection.execute(asked).first()
        return (None, False) if row is None else (row.password, row.is_disabled)

    def _count(self, sources: dict[str, Waits]) -> None:
        """Count a failure, which a success takes back. Raises RateLimitedError."""
        table, now = tables.sign_in_failures, self._clock()
        refused_ns = 0
        with self._database.write() as connection:
            asked = select(table).where(table.c.source.in_(list(sources)))
            known = {row["source"]: row for row in connection.execute(asked).mappings()}
            until = [row["until_ns"] for row in known.values()]
            refused_ns = max(until, default=0) - now
            if refused_ns <= 0:
                connection.execute(delete(table).where(table.c.source.in_(list(sources))))
                connection.execute(delete(table).where(table.c.last_ns < now - FORGOTTEN_NS))
                counted = [
                    _counted(source, waits, known.get(source), now)
                    for source, waits in sources.items()
                ]
                connection.execute(insert(table), counted)
        if refused_ns > 0:
            seconds = -(-refused_ns // SECOND_NS)
            raise RateLimitedError(
                f"too many attempts to sign in failed: wait {seconds} seconds",
                retry_seconds=seconds,
            )

    def _uncount(self, connection: Connection, source: str) -> None:
        """Take one failure back: who signs in must not clear the way for guesses of others."""
        table = tables.sign_in_failures
        connection.execute(
            update(table)
            .where(table.c.source == source)
            .values(failures=table.c.failures - 1, until_ns=0)
        )

    @cached_property
    def _nobodys(self) -> str:
        """What the passwords of unknown users are checked against."""
        return self._hash(_UNKNOWN)

    def _hash(self, password: str) -> str:
        with self._turns:
            return _COSTS.hash(password)

    def _verify(self, hashed: str, password: str) -> bool:
        self._nobodys  # noqa: B018  made at the first sign-in, whoever it is for
        with self._turns:
            try:
                return _COSTS.verify(hashed, password)
            except (VerificationError, InvalidHashError, UnicodeEncodeError):
                return False


def _counted(source: str, waits: Waits, row: RowMapping | None, now: int) -> dict[str, Any]:
    """The row of a source of failures, with one more."""
    is_old = row is None or row["last_ns"] < now - FORGOTTEN_NS
    failures = 1 if row is None or is_old else row["failures"] + 1
    until_ns = now + waits.after(failures) * SECOND_NS
    return {"source": source, "failures": failures, "last_ns": now, "until_ns": until_ns}


def check_password(user: str, password: str) -> str:
    """`password`, when it may be one. Raises InvalidInputError, without repeating it."""
    try:
        is_short, is_long = len(password) < MIN_CHARACTERS, len(password.encode()) > MAX_BYTES
    except UnicodeEncodeError:
        raise InvalidInputError("a password is text: this one has half a character") from None
    if is_short or is_long:
        raise InvalidInputError(
            f"a password has {MIN_CHARACTERS} characters or more, and at most {MAX_BYTES} bytes"
        )
    if user.lower() in password.lower() and len(password) < len(user) + MIN_CHARACTERS:
        raise InvalidInputError("this password is little more than the user's name")
    if len(set(password)) < MIN_CHARACTERS // 2:
        raise InvalidInputError("this password has too few different characters")
    return password


def _sources(user: str, address: str) -> dict[str, Waits]:
    """What an attempt counts for, in the order pair, name, address."""
    place = _place(address)
    return {
        _source("pair", user, place): PAIR,
        _source("name", user): NAME,
        _source("address", place): ADDRESS,
    }


def _place(address: str) -> str:
    """Where an address is: of IPv6 the network, for one machine has 2**64 addresses there."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    return str(known if known.version == 4 else ip_network(f"{known}/64", strict=False))


def _source(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
