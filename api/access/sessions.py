"""Sessions: browsers that are signed in, known by a cookie.

The cookie holds 256 random bits; the database their hash. What a form of a page must bring along
(against CSRF) is made of the same bits, so that it is stored nowhere and no other site can know it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import RowMapping, Select, delete, insert, select, update

from tensorrepo.api.access.callers import Caller, KnownCallers
from tensorrepo.api.access.people import grants_of
from tensorrepo.api.access.tokens import token_hash, token_id
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.errors import UnauthenticatedError

SECOND_NS: Final = 10**9
LONGEST_SECONDS: Final = 30 * 24 * 3600
IDLE_SECONDS: Final = 7 * 24 * 3600
_USED_NS: Final = 60 * SECOND_NS  # the last use is written once in that time
PREFIX: Final = "trs_"
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


class Sessions:
    """Sessions of a service. Thread-safe."""

    def __init__(
        self,
        database: Database,
        callers: KnownCallers,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database, self._callers, self._clock = database, callers, clock

    def begin(self, user: str, address: str) -> str:
        """A new session of a user who has proved who they are: what the cookie holds."""
        session, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        table = tables.sessions
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.expires_ns <= now))
            connection.execute(
                insert(table).values(
                    hash=token_hash(session),
                    user=user,
                    created_ns=now,
                    expires_ns=now + LONGEST_SECONDS * SECOND_NS,
                    used_ns=now,
                    address=address,
                )
            )
        return session

    def end(self, session: str) -> None:
        """Sign one browser out."""
        table = tables.sessions
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.hash == token_hash(session)))
        self._callers.forget()

    def end_all(self, user: str) -> int:
        """Sign a user out everywhere; gives of how many browsers."""
        table = tables.sessions
        with self._database.write() as connection:
            ended = connection.execute(delete(table).where(table.c.user == user)).rowcount
        self._callers.forget()
        return ended

    def caller(self, session: str) -> Caller:
        """Whose session that is. Raises UnauthenticatedError where it is over."""
        hashed = token_hash(session)
        return self._callers.look_up(hashed, lambda: self._look_up(session, hashed))

    def known(self, session: str) -> Caller | None:
        """As `caller`, where that needs no reading; None: it does."""
        return self._callers.get(token_hash(session))

    def _look_up(self, session: str, hashed: str) -> Caller:
        over = UnauthenticatedError("you are not signed in, or no longer: sign in again")
        if not _FORM.fullmatch(session):
            raise over
        now = self._clock()
        with self._database.read() as connection:
            row = connection.execute(_session_and_user(hashed)).mappings().first()
            if row is None or row["is_disabled"] or _is_over(row, now):
                raise over
            grants = grants_of(connection, row)
        if row["used_ns"] + _USED_NS <= now:
            with self._database.write() as connection:
                own = update(tables.sessions).where(tables.sessions.c.hash == hashed)
                connection.execute(own.values(used_ns=now))
        return Caller(
            "session",
            row["user"],
            row["email"],
            grants,
            is_operator=row["is_operator"],
            token_id=token_id(session),
            csrf=csrf_of(session),
        )


def csrf_of(session: str) -> str:
    """What a form of a page, or the header ``X-CSRF-Token``, brings along in a session."""
    return hmac.new(session.encode(), b"csrf", hashlib.sha256).hexdigest()


def _session_and_user(hashed: str) -> Select[Any]:
    table = tables.sessions
    both = select(table, tables.users).join(tables.users, table.c.user == tables.users.c.name)
    return both.where(table.c.hash == hashed)


def _is_over(row: RowMapping, now: int) -> bool:
    return bool(row["expires_ns"] <= now or row["used_ns"] + IDLE_SECONDS * SECOND_NS <= now)
