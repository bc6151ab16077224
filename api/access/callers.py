"""Callers: who asks, proved by a token or a session, and what both allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import field
from typing import Final, Literal

from tensorrepo.api.access.grants import Action, Grant, allows, most
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import PermissionDenied, UnauthenticatedError

KNOWN_SECONDS: Final = 1.0
_MOST_KNOWN: Final = 10_000
CallerKind = Literal["anonymous", "token", "session"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever makes one request.

    Attributes:
        kind: how they are known.
        name: name of the user; empty for nobody.
        email: address that their commits name.
        grants: what the user may do.
        scope: what the token allows of that; None: all of it.
        is_operator: whether the user runs the service: accounts, repositories, audit.
        token_id: public id of the token or session, for the audit log.
        expires_ns: when the token ends, UTC; None: never.
        csrf: what a form of a page has to bring along where a session asks.
        address: where the request came from.
        request_id: what logs and answers call the request.
    """

    kind: CallerKind
    name: str = ""
    email: str = ""
    grants: tuple[Grant, ...] = ()
    scope: tuple[Grant, ...] | None = None
    is_operator: bool = False
    token_id: str = ""
    expires_ns: int | None = None
    csrf: str = field(default="", compare=False, repr=False)
    address: str = ""
    request_id: str = field(default="", compare=False)

    @property
    def author(self) -> str:
        """``Name <email>`` as commits and the log have it."""
        return f"{self.name} <{self.email or self.name + '@users.invalid'}>"

    def may(self, action: Action, repository: str, ref: str | None) -> bool:
        """Whether both user and token allow it; `ref` None asks for every ref."""
        if not allows(self.grants, action, repository, ref):
            return False
        return self.scope is None or allows(self.scope, action, repository, ref)

    def may_give(self, grant: Grant) -> bool:
        """Whether this caller may do all that `grant` allows; an operator, for `MIRROR`."""
        if grant.action is Action.MIRROR and not (self.is_operator and self.scope is None):
            return False
        return any(own.includes(grant) for own in self.grants) and (
            self.scope is None or any(own.includes(grant) for own in self.scope)
        )

    def mirrors(self, repository: str, ref: str) -> bool:
        """Whether the token is for setting a ref that else the service alone sets."""
        named = [one for one in self.scope or () if one.action is Action.MIRROR]
        may_write = self.may(Action.WRITE, repository, ref)
        return may_write and allows(named, Action.MIRROR, repository, ref)

    def level(self, repository: str) -> Action | None:
        """The most that this caller may do with any ref of a repository; None: nothing."""
        own = most(self.grants, repository)
        if own is None or self.scope is None:
            return own
        scoped = most(self.scope, repository)
        return None if scoped is None else min(own, scoped)

    def require_known(self) -> None:
        """Raises UnauthenticatedError for nobody."""
        if self.kind == "anonymous":
            raise UnauthenticatedError(
                "this needs a token: `tensorrepo login URL` gets one. It goes as 'Authorization: "
                "Bearer trp_...'; that of TENSORREPO_TOKEN to the server of TENSORREPO_SERVER alone"
            )

    def require_operator(self) -> None:
        """Raises PermissionDenied unless the user runs the service, by a token without a scope."""
        self.require_known()
        if not self.is_operator or self.scope is not None:
            raise PermissionDenied(
                f"{self.name} does not run this service, or the token is for less. Ask whoever "
                "started it."
            )

    def require_unscoped(self, what: str) -> None:
        """Raises PermissionDenied for a token that is for less than its user may do."""
        self.require_known()
        if self.scope is not None:
            raise PermissionDenied(f"this token may not {what}: that takes one without a scope")


NOBODY: Final = Caller("anonymous")


class KnownCallers:
    """Callers by the hash of what proved them, each for a second. Thread-safe.

    What was revoked anywhere is refused everywhere after that; in the process that revoked it, at
    once.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._known: dict[str, tuple[float, Caller]] = {}  # hash: (until, caller)
        self._lock = threading.Lock()
        self._forgotten = 0  # times

    def get(self, hashed: str) -> Caller | None:
        known = self._known.get(hashed)
        return known[1] if known is not None and self._timer() < known[0] else None

    def look_up(self, hashed: str, read: Callable[[], Caller]) -> Caller:
        """The caller as `read` finds it, unless it is known."""
        known = self.get(hashed)
        if known is not None:
            return known
        before = self._forgotten
        found = read()
        with self._lock:
            if before == self._forgotten:  # else it may have been revoked since it was read
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[hashed] = (self._timer() + KNOWN_SECONDS, found)
        return found

    def forget(self) -> None:
        """Ask again from now on: something was changed here."""
        with self._lock:
            self._forgotten += 1
            self._known.clear()
