"""People: users, groups, and what both may do, in the service's database.

Who removes a user gives the name free, and commits keep it: to disable an account is the safer way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, Table, delete, func, insert, select, update

from tensorrepo.api.access.callers import KnownCallers
from tensorrepo.api.access.grants import EVERY, Action, Grant
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError

NAME: Final = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"
MAX_EMAIL_CHARACTERS: Final = 320
_NAME = re.compile(NAME)
_EMAIL = re.compile(r"[^\s<>@,\x00-\x1f\x7f]+@[^\s<>@,\x00-\x1f\x7f]+")
HolderKind = Literal["user", "group"]


@dataclass(frozen=True, slots=True)
class User:
    """One account."""

    name: str
    email: str
    is_operator: bool
    is_disabled: bool
    has_password: bool = False
    created_ns: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Some users who may do the same."""

    name: str
    description: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldGrant:
    """A grant, and the user or group who holds it."""

    kind: HolderKind
    holder: str
    grant: Grant


class People:
    """Users and groups of a service. Thread-safe. Whoever calls has asked who may do this."""

    def __init__(
        self,
        database: Database,
        callers: KnownCallers,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database, self._callers, self._clock = database, callers, clock

    def has_users(self) -> bool:
        with self._database.read() as connection:
            return connection.execute(select(tables.users.c.name).limit(1)).first() is not None

    def users(self) -> list[User]:
        """By name."""
        with self._database.read() as connection:
            rows = connection.execute(select(tables.users).order_by(tables.users.c.name))
            return [_user(row) for row in rows.mappings()]

    def user(self, name: str) -> User:
        """Raises NotFoundError."""
        with self._database.read() as connection:
            return _user(_found(connection, tables.users, name))

    def sign_in_detail(self, name: str) -> str:
        """What the audit log says of a sign-in by password before it is known to hold.

        A name that nobody has is not repeated: people type their password in its place.
        """
        table = tables.users
        with self._database.read() as connection:
            known = connection.execute(select(table.c.name).where(table.c.name == name)).first()
        return "password of somebody unknown" if known is None else f"password of {name}"

    def add_user(self, name: str, *, email: str = "", is_operator: bool = False) -> User:
        """A new account without grants. Raises ConflictError when the name is taken."""
        check_name(name, "user")
        _check_email(email)
        made = User(name, email, is_operator, is_disabled=False, created_ns=self._clock())
        with self._database.write() as connection:
            _refuse_taken(connection, tables.users, name)
            values = {"name": name, "email": email, "is_operator": is_operator}
            connection.execute(insert(tables.users).values(**values, created_ns=made.created_ns))
        return made

    def change_user(
        self,
        name: str,
        *,
        email: str | None = None,
        is_operator: bool | None = None,
        is_disabled: bool | None = None,
    ) -> User:
        """Change what is not None. Who is disabled is signed out, and their tokens are worthless.

        Raises:
            ConflictError: nobody would be left to run the service.
        """
        wanted = {"email": email, "is_operator": is_operator, "is_disabled": is_disabled}
        values = {key: value for key, value in wanted.items() if value is not None}
        if email is not None:
            _check_email(email)
        with self._database.write() as connection:
            _found(connection, tables.users, name)
            if values:
                own = tables.users.c.name == name
                connection.execute(update(tables.users).where(own).values(**values))
            if is_disabled:
                connection.execute(delete(tables.sessions).where(tables.sessions.c.user == name))
            _require_operator_left(connection)
            changed = _user(_found(connection, tables.users, name))
        self._callers.forget()
        return changed

    def remove_user(self, name: str) -> None:
        """Remove an account with its tokens, sessions and grants."""
        with self._database.write() as connection:
            _found(connection, tables.users, name)
            connection.execute(delete(tables.users).where(tables.users.c.name == name))
            kept = tables.idempotent_answers  # whoever is called so next gets no answers of theirs
            connection.execute(delete(kept).where(kept.c.user == name))
            _require_operator_left(connection)
        self._callers.forget()

    def groups(self) -> list[Group]:
        """By name."""
        with self._database.read() as connection:
            rows = connection.execute(select(tables.groups).order_by(tables.groups.c.name))
            return [_group(connection, row) for row in rows.mappings().all()]

    def group(self, name: str) -> Group:
        """Raises NotFoundError."""
        with self._database.read() as connection:
            return _group(connection, _found(connection, tables.groups, name))

    def groups_of(self, user: str) -> list[str]:
        """Names of the groups that somebody is in."""
        table = tables.group_members
        with self._database.read() as connection:
            asked = select(table.c.group).where(table.c.user == user).order_by(table.c.group)
            return [row.group for row in connection.execute(asked)]

    def add_group(self, name: str, *, description: str = "") -> Group:
        """A group without members. Raises ConflictError when the name is taken."""
        check_name(name, "group")
        with self._database.write() as connection:
            _refuse_taken(connection, tables.groups, name)
            values = {"name": name, "description": description, "created_ns": self._clock()}
            connection.execute(insert(tables.groups).values(**values))
        return Group(name, description, ())

    def remove_group(self, name: str) -> None:
        """Remove a group with its grants; its members stay."""
        with self._database.write() as connection:
            _found(connection, tables.groups, name)
            connection.execute(delete(tables.groups).where(tables.groups.c.name == name))
        self._callers.forget()

    def set_members(
        self, group: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> Group:
        """Let users join or leave a group. Raises NotFoundError for an unknown one."""
        table = tables.group_members
        with self._database.write() as connection:
            row = _found(connection, tables.groups, group)
            for user in [*remove, *add]:
                is_it = (table.c.group == group) & (table.c.user == user)
                connection.execute(delete(table).where(is_it))
            for user in add:
                _found(connection, tables.users, user)
                connection.execute(insert(table).values(group=group, user=user))
            changed = _group(connection, row)
        self._callers.forget()
        return changed

    def held_grants(self, repository: str | None = None) -> list[HeldGrant]:
        """Grants of users and groups; with `repository` those that are about it."""
        with self._database.read() as connection:
            held = [
                HeldGrant(kind, row[kind], _grant(row))
                for kind, table in _TABLES.items()
                for row in connection.execute(select(table)).mappings()
            ]
        about = [one for one in held if repository is None or one.grant.is_for(repository)]
        return sorted(about, key=lambda one: (one.kind, one.holder, one.grant.repository))

    def grant(self, kind: HolderKind, holder: str, grant: Grant) -> None:
        """Let somebody do something; what stood for the same refs is replaced."""
        if grant.action is Action.MIRROR:
            raise InvalidInputError("mirror is for the scope of a token: grant write, and make one")
        table = _TABLES[kind]
        with self._database.write() as connection:
            _found(connection, tables.users if kind == "user" else tables.groups, holder)
            connection.execute(_ungrant(table, kind, holder, grant.repository, grant.refs))
            connection.execute(
                insert(table).values(
                    **{kind: holder},
                    repository=grant.repository,
                    refs=grant.refs,
                    action=grant.action.name,
                )
            )
        self._callers.forget()

    def ungrant(self, kind: HolderKind, holder: str, repository: str, refs: str = EVERY) -> None:
        """Take a grant back. Raises NotFoundError where there is none."""
        with self._database.write() as connection:
            done = connection.execute(_ungrant(_TABLES[kind], kind, holder, repository, refs))
            if not done.rowcount:
                raise NotFoundError(f"{kind} {holder!r} has no grant for {refs} of {repository}")
        self._callers.forget()


_TABLES: Final[dict[HolderKind, Table]] = {"user": tables.grants, "group": tables.group_grants}


def grants_of(connection: Connection, user: RowMapping) -> tuple[Grant, ...]:
    """What a user may do, by own grants and those of groups; who runs the service may do all."""
    if user["is_operator"]:
        return (Grant(EVERY, Action.ADMIN),)
    name, member, shared = user["name"], tables.group_members, tables.group_grants
    own = select(tables.grants).where(tables.grants.c.user == name)
    by_group = select(shared).join(member, member.c.group == shared.c.group)
    found = [
        *connection.execute(own).mappings(),
        *connection.execute(by_group.where(member.c.user == name)).mappings(),
    ]
    return tuple(_grant(row) for row in found)


def check_name(name: str, what: str) -> str:
    """`name`, when a user or group may be called that. Raises InvalidInputError."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"a {what} is called by up to 63 of a-z, 0-9, '.', '_' and '-', and begins and ends "
            f"with a letter or digit, not {name!r:.120}"
        )
    return name


def is_email(text: str) -> bool:
    return _EMAIL.fullmatch(text) is not None and len(text) <= MAX_EMAIL_CHARACTERS


def _check_email(email: str) -> None:
    if email and not is_email(email):
        raise InvalidInputError(f"expected an address such as ann@example.org, not {email!r:.120}")


def _found(connection: Connection, table: Table, name: str) -> RowMapping:
    row = connection.execute(select(table).where(table.c.name == name)).mappings().first()
    if row is None:
        raise NotFoundError(f"there is no {table.name.removesuffix('s')} {name!r:.120}")
    return row


def _refuse_taken(connection: Connection, table: Table, name: str) -> None:
    if connection.execute(select(table.c.name).where(table.c.name == name)).first() is not None:
        what = table.name.removesuffix("s")
        raise ConflictError(f"there is a {what} {name!r} already; choose another name")


def _require_operator_left(connection: Connection) -> None:
    table = tables.users
    able = table.c.is_operator.is_(True) & table.c.is_disabled.is_(False)
    if not connection.execute(select(func.count()).select_from(table).where(able)).scalar():
        raise ConflictError(
            "nobody would be left who runs the service: make somebody else an operator first"
        )


def _ungrant(table: Table, kind: HolderKind, holder: str, repository: str, refs: str) -> Any:
    return delete(table).where(
        table.c[kind] == holder, table.c.repository == repository, table.c.refs == refs
    )


def _user(row: RowMapping) -> User:
    return User(
        row["name"],
        row["email"],
        row["is_operator"],
        row["is_disabled"],
        row["password"] is not None,
        row["created_ns"],
    )


def _group(connection: Connection, row: RowMapping) -> Group:
    table = tables.group_members
    asked = select(table.c.user).where(table.c.group == row["name"]).order_by(table.c.user)
    members = tuple(one.user for one in connection.execute(asked))
    return Group(row["name"], row["description"], members)


def _grant(row: RowMapping) -> Grant:
    return Grant(row["repository"], Action[row["action"]], row["refs"])
