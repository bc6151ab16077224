"""Accounts: tokens, and whose each is, in the service's database.

A token is looked up by its hash. What a caller may do is read with it, and known for a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Update, insert, select, update

from tensorrepo.api.access.callers import Caller, KnownCallers
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.access.people import People, User, grants_of
from tensorrepo.api.access.tokens import is_token, make_token, token_hash, token_id, token_id_of
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnauthenticatedError,
)

USED_NS: Final = 60 * 10**9  # the last use of a token is written once in that time
MAX_LABEL_CHARACTERS: Final = 200
MAX_SCOPE: Final = 100  # grants


@dataclass(frozen=True, slots=True)
class StoredToken:
    """What is known of a token, without itself. Times are UTC; None: never."""

    id: str
    user: str
    label: str
    scope: tuple[Grant, ...] | None
    created_ns: int
    expires_ns: int | None
    used_ns: int | None
    revoked_ns: int | None


class Accounts:
    """Tokens of a service. Thread-safe."""

    def __init__(
        self,
        database: Database,
        callers: KnownCallers | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database, self._clock = database, clock
        self._callers = callers or KnownCallers()
        self.people = People(database, self._callers, clock=clock)

    def caller(self, token: str) -> Caller:
        """Whose token that is.

        Raises:
            UnauthenticatedError: it is none, or expired, or revoked, or its user is disabled.
        """
        hashed = token_hash(token)
        return self._callers.look_up(hashed, lambda: self._look_up(token, hashed))

    def known(self, token: str) -> Caller | None:
        """As `caller`, where that needs no reading; None: it does."""
        return self._callers.get(token_hash(token))

    def _look_up(self, token: str, hashed: str) -> Caller:
        refused = UnauthenticatedError(
            "this token is not known here, has expired or was revoked: `tensorrepo login URL` "
            "gets another"
        )
        if not is_token(token):
            raise refused
        now = self._clock()
        with self._database.read() as connection:
            row = _token_and_user(connection, hashed)
            if row is None or row["revoked_ns"] is not None or row["is_disabled"]:
                raise refused
            if row["expires_ns"] is not None and row["expires_ns"] <= now:
                raise refused
            grants = grants_of(connection, row)
        if row["used_ns"] is None or row["used_ns"] + USED_NS <= now:
            with self._database.write() as connection:
                own = update(tables.tokens).where(tables.tokens.c.hash == hashed)
                connection.execute(own.values(used_ns=now))
        return Caller(
            "token",
            row["user"],
            row["email"],
            grants,
            _scope(row["scope"]),
            row["is_operator"],
            token_id(token),
            row["expires_ns"],
        )

    def has_users(self) -> bool:
        return self.people.has_users()

    def add_user(self, name: str, *, email: str = "", is_operator: bool = False) -> User:
        """See `People.add_user`."""
        return self.people.add_user(name, email=email, is_operator=is_operator)

    def grant(self, user: str, grant: Grant) -> None:
        """See `People.grant`."""
        self.people.grant("user", user, grant)

    def add_token(
        self,
        user: str,
        label: str,
        *,
        scope: Iterable[Grant] | None = None,
        expires_ns: int | None = None,
        made_by: str | None = None,
    ) -> str:
        """A new token of a user, told this once.

        Args:
            user: whose it is.
            label: what it is for, in the user's words.
            scope: what it allows of all that the user may do; None: all of it.
            expires_ns: when it ends, UTC; None: never.
            made_by: hash of the token that made it, with which it is revoked.

        Raises:
            NotFoundError: there is no such user.
        """
        token = make_token()
        with self._database.write() as connection:
            known = select(tables.users.c.name).where(tables.users.c.name == user)
            if connection.execute(known).first() is None:
                raise NotFoundError(f"there is no user {user!r:.120}")
            connection.execute(
                insert(tables.tokens).values(
                    hash=token_hash(token),
                    user=user,
                    label=label,
                    scope=None if scope is None else [_written(one) for one in scope],
                    created_ns=self._clock(),
                    expires_ns=expires_ns,
                    made_by=made_by,
                )
            )
        return token

    def add_token_as(
        self,
        caller: Caller,
        label: str,
        *,
        scope: tuple[Grant, ...] | None = None,
        expires_ns: int | None = None,
        user: str | None = None,
    ) -> str:
        """A token that a caller asks for: it allows no more, and lasts no longer, than theirs.

        Raises:
            PermissionDenied: the scope is beyond what the caller may do; or `user` is another one,
                and the caller does not run the service.
        """
        caller.require_known()
        if user is not None and user != caller.name:
            caller.require_operator()
        if len(label) > MAX_LABEL_CHARACTERS or len(scope or ()) > MAX_SCOPE:
            raise InvalidInputError(
                f"a token has a label of up to {MAX_LABEL_CHARACTERS} characters, and up to "
                f"{MAX_SCOPE} parts of a scope"
            )
        _require_inside(caller, scope)
        parent = None if caller.kind != "token" else self._hash_of(caller.name, caller.token_id)
        return self.add_token(
            user or caller.name,
            label,
            scope=scope,
            expires_ns=_earlier(expires_ns, caller.expires_ns, self._clock()),
            made_by=parent,
        )

    def tokens(self, user: str | None = None) -> list[StoredToken]:
        """Tokens of a user, or of all; by user, the oldest first."""
        table = tables.tokens
        asked = select(table).order_by(table.c.user, table.c.created_ns, table.c.hash)
        if user is not None:
            asked = asked.where(table.c.user == user)
        with self._database.read() as connection:
            return [_stored(row) for row in connection.execute(asked).mappings()]

    def revoke_id(self, user: str | None, wanted: str) -> None:
        """Make a token worthless, and all that it made, by its public id; `user` None: anybody's.

        Raises NotFoundError.
        """
        table, hashes = tables.tokens, [self._hash_of(user, wanted)]
        with self._database.write() as connection:
            while hashes:  # downwards: a token is made by an older one
                connection.execute(self._revoked().where(table.c.hash.in_(hashes)))
                made = select(table.c.hash).where(table.c.made_by.in_(hashes))
                hashes = [row.hash for row in connection.execute(made)]
        self._callers.forget()

    def _revoked(self) -> Update:
        table = tables.tokens
        return update(table).where(table.c.revoked_ns.is_(None)).values(revoked_ns=self._clock())

    def _hash_of(self, user: str | None, wanted: str) -> str:
        table = tables.tokens
        asked = select(table.c.hash, table.c.user).where(
            table.c.hash.startswith(wanted, autoescape=True)
        )
        with self._database.read() as connection:
            found = [
                row.hash
                for row in connection.execute(asked)
                if token_id_of(row.hash) == wanted and user in {None, row.user}
            ]
        if len(found) != 1:
            raise NotFoundError(
                f"there is no token {wanted!r:.40}: `tensorrepo token ls` lists them"
            )
        return str(found[0])


def _require_inside(caller: Caller, scope: tuple[Grant, ...] | None) -> None:
    if scope is None:
        caller.require_unscoped("make one that may do all")
        return
    beyond = [one for one in scope if not caller.may_give(one)]
    if beyond:
        one = beyond[0]
        raise PermissionDenied(
            f"a token may do no more than who makes it, and {caller.name} may not "
            f"{one.action.word} {one.refs} of {one.repository}"
        )


def _earlier(wanted: int | None, own: int | None, now: int) -> int | None:
    if wanted is not None and wanted <= now:
        raise InvalidInputError("a token expires in the future: this time is over")
    return min((one for one in (wanted, own) if one is not None), default=None)


def _token_and_user(connection: Connection, hashed: str) -> RowMapping | None:
    both = select(tables.tokens, tables.users).join(
        tables.users, tables.tokens.c.user == tables.users.c.name
    )
    return connection.execute(both.where(tables.tokens.c.hash == hashed)).mappings().first()


def _scope(stored: Any) -> tuple[Grant, ...] | None:
    return None if stored is None else tuple(Grant(at, Action[do], refs) for at, do, refs in stored)


def _written(grant: Grant) -> list[str]:
    return [grant.repository, grant.action.name, grant.refs]


def _stored(row: RowMapping) -> StoredToken:
    return StoredToken(
        token_id_of(row["hash"]),
        row["user"],
        row["label"],
        _scope(row["scope"]),
        row["created_ns"],
        row["expires_ns"],
        row["used_ns"],
        row["revoked_ns"],
    )
