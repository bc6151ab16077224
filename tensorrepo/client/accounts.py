"""Users, groups and grants of a service, by a client.

Most of it is for who runs the service, grants of a repository are for its admins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from tensorrepo.client.answers import GrantAnswer, GroupAnswer, MeAnswer, UserAnswer
from tensorrepo.client.connection import Connection, one_segment
from tensorrepo.repo.deferred_dataclass import dataclass

HolderKind = Literal["user", "group"]
Action = Literal["read", "write", "admin"]


@dataclass(frozen=True, slots=True)
class AccountsClient:
    """See `Client.accounts`. Raises PermissionDenied for who does not run the service."""

    connection: Connection

    def me(self) -> MeAnswer:
        """Who the token is. For everybody who is known."""
        return self.connection.get("/me", MeAnswer)

    def users(self) -> Iterator[UserAnswer]:
        """All users, by name."""
        return self.connection.pages("/users", UserAnswer, limit=1000)

    def user(self, name: str) -> UserAnswer:
        """One user. For that user, too."""
        return self.connection.get(self._user(name), UserAnswer)

    def create_user(
        self, name: str, *, email: str = "", is_operator: bool = False, password: str | None = None
    ) -> UserAnswer:
        """Make an account, which may do nothing yet. Raises ConflictError for a taken name.

        Args:
            name: what they are called.
            email: for commits in their name.
            is_operator: whether they run the service.
            password: None: no sign-in by password.
        """
        body = {"name": name, "email": email, "is_operator": is_operator, "password": password}
        return self.connection.send("POST", "/users", UserAnswer, body)

    def change_user(
        self,
        name: str,
        *,
        email: str | None = None,
        is_operator: bool | None = None,
        is_disabled: bool | None = None,
    ) -> UserAnswer:
        """Change what is not None. Who is disabled is signed out, and their tokens stop."""
        body = {"email": email, "is_operator": is_operator, "is_disabled": is_disabled}
        return self.connection.send("PATCH", self._user(name), UserAnswer, body)

    def remove_user(self, name: str) -> None:
        """Remove an account. Its name becomes free, so disabling it is the safer way."""
        self.connection.call("DELETE", self._user(name))

    def set_password(self, name: str, password: str, *, old: str | None = None) -> None:
        """Set a password; who sets their own tells the old one."""
        body = {"password": password, "old": old}
        self.connection.call("PUT", f"{self._user(name)}/password", body)

    def end_sessions(self, name: str) -> None:
        """Sign a user out everywhere. Tokens stay."""
        self.connection.call("DELETE", f"{self._user(name)}/sessions")

    def groups(self) -> Iterator[GroupAnswer]:
        """All groups, by name."""
        return self.connection.pages("/groups", GroupAnswer, limit=1000)

    def group(self, name: str) -> GroupAnswer:
        return self.connection.get(self._group(name), GroupAnswer)

    def create_group(self, name: str, *, description: str = "") -> GroupAnswer:
        """Make a group without members. Raises ConflictError for a taken name."""
        body = {"name": name, "description": description}
        return self.connection.send("POST", "/groups", GroupAnswer, body)

    def remove_group(self, name: str) -> None:
        """Remove a group: its grants go with it, its members stay."""
        self.connection.call("DELETE", self._group(name))

    def add_member(self, group: str, user: str) -> GroupAnswer:
        return self.connection.send("PUT", self._member(group, user), GroupAnswer)

    def remove_member(self, group: str, user: str) -> GroupAnswer:
        return self.connection.send("DELETE", self._member(group, user), GroupAnswer)

    def grants(self) -> Iterator[GrantAnswer]:
        """All grants of the service."""
        return self.connection.pages("/grants", GrantAnswer, limit=1000)

    def grant(
        self,
        repository: str,
        holder: str,
        action: Action,
        *,
        refs: str = "*",
        kind: HolderKind = "user",
    ) -> GrantAnswer:
        """Let a user or group do something with repositories. Replaces what they had for `refs`.

        Args:
            repository: a name, or a pattern: ``team/*`` or ``*``.
            holder: name of the user or group.
            action: each includes those before it.
            refs: what it is about, such as ``heads/dev/*``.
            kind: what `holder` is.
        """
        body = {
            "kind": kind, "holder": holder, "repository": repository, "action": action,
            "refs": refs,
        }  # fmt: skip
        return self.connection.send("PUT", "/grants", GrantAnswer, body)

    def take_back(
        self, repository: str, holder: str, *, refs: str = "*", kind: HolderKind = "user"
    ) -> None:
        """Take a grant back, named as it was given."""
        query = {"repository": repository, "holder": holder, "refs": refs, "kind": kind}
        self.connection.call("DELETE", "/grants", **query)

    def _user(self, name: str) -> str:
        return f"/users/{one_segment(name)}"

    def _group(self, name: str) -> str:
        return f"/groups/{one_segment(name)}"

    def _member(self, group: str, user: str) -> str:
        return f"{self._group(group)}/members/{one_segment(user)}"


@dataclass(frozen=True, slots=True)
class GrantsClient:
    """See `RepositoryClient.grants`: those about one repository, for its admins."""

    connection: Connection
    base: str

    def all(self) -> Iterator[GrantAnswer]:
        """Who may do what, grants by patterns included."""
        return self.connection.pages(self.base, GrantAnswer, limit=1000)

    def set(
        self, holder: str, action: Action, *, refs: str = "*", kind: HolderKind = "user"
    ) -> GrantAnswer:
        """Let a user or group do something. Arguments as of `AccountsClient.grant`."""
        body = {"kind": kind, "holder": holder, "action": action, "refs": refs}
        return self.connection.send("PUT", self.base, GrantAnswer, body)

    def remove(self, holder: str, *, refs: str = "*", kind: HolderKind = "user") -> None:
        """Take a grant back, named as it was given."""
        self.connection.call("DELETE", self.base, holder=holder, refs=refs, kind=kind)
