"""Sign-in to the web pages: by password, by OpenID Connect, and by the code of a first start.

All end in a session. Whoever calls writes down in the audit log what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from tensorrepo.api.access.callers import KnownCallers
from tensorrepo.api.access.openid import Asks, OpenIdSignIn, Provider
from tensorrepo.api.access.passwords import Passwords
from tensorrepo.api.access.people import People
from tensorrepo.api.access.sessions import Sessions
from tensorrepo.api.access.tickets import Tickets
from tensorrepo.api.database.connection import Database
from tensorrepo.api.settings import Settings
from tensorrepo.repo.errors import (
    NotFoundError,
    PermissionDenied,
    UnauthenticatedError,
)

CODE: Final = "code"
CODE_SECONDS: Final = 600


class SignIn:
    """How a service's users sign in. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        callers: KnownCallers,
        people: People,
        outbound: Asks,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._people = people
        self.sessions = Sessions(database, callers, clock=clock)
        self.passwords = Passwords(database, callers, clock=clock)
        self.tickets = Tickets(database, clock=clock)
        provider = _provider(settings)
        self.openid = (
            None
            if provider is None
            else OpenIdSignIn(provider, database, people, outbound, clock=clock)
        )

    def require_openid(self) -> OpenIdSignIn:
        """Raises NotFoundError where no provider is set."""
        if self.openid is None:
            raise NotFoundError("this service has no provider of sign-in: set oidc_issuer")
        return self.openid

    def by_password(self, user: str, password: str, address: str) -> str:
        """A session. Raises as `Passwords.check`."""
        return self.sessions.begin(self.passwords.check(user, password, address), address)

    def make_code(self, user: str) -> str:
        """A code that signs a user in once, from this machine, within ten minutes."""
        return self.tickets.make(CODE, {"user": user}, seconds=CODE_SECONDS)

    def by_code(self, code: str, address: str) -> tuple[str, str]:
        """Name of the user of a code, and a session.

        Raises:
            PermissionDenied: the browser is not on this machine; the code stays good.
            UnauthenticatedError: it is none, or was used, or is too old.
        """
        if not _is_loopback(address):
            raise PermissionDenied(
                "a code of the start works in a browser on the server's own machine alone: sign in "
                "with the token, `tensorrepo login URL`, or give users passwords"
            )
        known = self.tickets.take(CODE, code)
        if known is None or self._people.user(known["user"]).is_disabled:
            raise UnauthenticatedError(
                "this code was used, or is older than ten minutes: start the service again for "
                "another one"
            )
        return known["user"], self.sessions.begin(known["user"], address)


def _provider(settings: Settings) -> Provider | None:
    if settings.oidc_issuer is None:
        return None
    secret = settings.oidc_client_secret
    return Provider(
        settings.oidc_issuer,
        settings.oidc_client_id,
        None if secret is None else secret.get_secret_value(),
        settings.oidc_create_users,
    )


def _is_loopback(address: str) -> bool:
    try:
        known = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(known, "ipv4_mapped", None)
    return (mapped or known).is_loopback
