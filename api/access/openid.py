"""Sign-in by OpenID Connect: the authorization code flow with PKCE, state and nonce.

A user is known by issuer and subject, which a provider never gives to another person. Names and
addresses may be changed there by anybody, so nobody becomes a user here by having theirs.

Source:
    OpenID Connect Core 1.0, sections 3.1.2 and 3.1.3; RFC 7636 (PKCE); RFC 9207 (issuer in the
    answer); RFC 9700 (what attacks on OAuth there are).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlencode

from sqlalchemy import insert, select

from tensorrepo.api.access.people import NAME, People, is_email
from tensorrepo.api.access.tickets import Tickets
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    PermissionDenied,
    StorageError,
    UnauthenticatedError,
)

if TYPE_CHECKING:  # 60 ms, for whoever signs in so
    from joserfc.jwk import KeySet

PURPOSE: Final = "openid"
STATE_SECONDS: Final = 600
ALGORITHMS: Final = ("RS256", "PS256", "ES256", "RS384", "ES384", "RS512", "ES512", "EdDSA")
_SKEW_SECONDS: Final = 60
_KNOWN_SECONDS: Final = 3600.0  # of the provider's configuration and keys
_OLDEST_KEYS_SECONDS: Final = 60.0  # asked again for an unknown key, but no more often than this
_STRANGE = re.compile(r"[^a-z0-9._-]+")


class Answer(Protocol):
    """What somebody answered."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...


class Asks(Protocol):
    """The part of the outbound client that sign-in uses: bounded, without redirects."""

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Provider:
    """Who is asked, and as whom."""

    issuer: str
    client_id: str
    client_secret: str | None
    creates_users: bool = False


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that waits for the provider: where the browser goes, and what it keeps."""

    url: str
    state: str


class OpenIdSignIn:
    """Sign-in by one provider. Thread-safe."""

    def __init__(
        self,
        provider: Provider,
        database: Database,
        people: People,
        outbound: Asks,
        *,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.provider = provider
        self._database, self._people, self._outbound = database, people, outbound
        self._tickets = Tickets(database, clock=clock)
        self._clock, self._timer = clock, timer
        self._configuration: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._lock = threading.Lock()

    def begin(self, callback: str, then: str) -> PendingSignIn:
        """Begin a sign-in.

        Args:
            callback: URL of the service that the provider sends the browser back to.
            then: path of the service that the user wanted.
        """
        verifier, nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        kept = {"verifier": verifier, "nonce": nonce, "callback": callback, "then": then}
        state = self._tickets.make(PURPOSE, kept, seconds=STATE_SECONDS)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": callback,
            "scope": "openid profile email",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        address = self._endpoint("authorization_endpoint")
        return PendingSignIn(f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}", state)

    def finish(self, state: str, code: str, issuer: str | None) -> tuple[str, str]:
        """Name of the user whom the provider let in, and the path that they wanted.

        Raises:
            UnauthenticatedError: the answer is none to a question of ours, or was used, or is old,
                or its token does not hold.
            PermissionDenied: this person has no account here.
        """
        kept = self._tickets.take(PURPOSE, state)
        if kept is None or (issuer is not None and issuer != self.provider.issuer):
            raise UnauthenticatedError("this sign-in is over, or was none of ours: begin again")
        claims = self._claims(self._exchange(code, kept), kept["nonce"])
        return self._user_of(claims), kept["then"]

    def _exchange(self, code: str, kept: Mapping[str, str]) -> str:
        """The ID token that a code is worth."""
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": kept["callback"],
            "client_id": self.provider.client_id,
            "code_verifier": kept["verifier"],
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self.provider.client_secret is not None:
            pair = f"{quote(self.provider.client_id, '')}:{quote(self.provider.client_secret, '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = self._outbound.request(
            "POST",
            self._endpoint("token_endpoint"),
            headers=headers,
            content=urlencode(fields).encode(),
        )
        token = _document(answer).get("id_token") if answer.status == 200 else None
        if not isinstance(token, str):
            raise UnauthenticatedError("the provider does not confirm this sign-in: begin again")
        return token

    def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """What an ID token says, once all about it holds."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        refused = UnauthenticatedError("the provider's token does not hold: begin again")
        try:
            decoded = jwt.decode(token, self._key_set(token), algorithms=list(ALGORITHMS))
        # A header may nest too deep, and joserfc takes it for granted that its "crit" is a list.
        except (JoseError, ValueError, RecursionError, TypeError) as error:
            raise refused from error
        claims, now = decoded.claims, self._clock() / 1e9
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        own = self.provider.client_id
        if (
            claims.get("iss") != self.provider.issuer
            or not isinstance(audiences, list)
            or own not in audiences
            or (claims.get("azp", own) != own or (len(audiences) > 1 and "azp" not in claims))
            or not secrets.compare_digest(str(claims.get("nonce", "")), nonce)
            or not _is_time(claims.get("exp"), above=now - _SKEW_SECONDS)
            or not _is_time(claims.get("iat"), above=0, below=now + _SKEW_SECONDS)
            or not isinstance(claims.get("sub"), str)
            or not 0 < len(claims["sub"]) <= 255
        ):
            raise refused
        return claims

    def _key_set(self, token: str) -> KeySet:
        """The provider's keys, asked for again where `token` names one that is not known."""
        header = json.loads(base64.urlsafe_b64decode(token.partition(".")[0] + "=="))
        with self._lock:
            wanted = header.get("kid") if isinstance(header, dict) else None
            now = self._timer()
            if self._keys is not None:
                read_at, keys = self._keys
                is_known = wanted is None or any(key.kid == wanted for key in keys.keys)
                age = now - read_at
                if age < (_KNOWN_SECONDS if is_known else _OLDEST_KEYS_SECONDS):
                    return keys
            answer = self._outbound.request("GET", self._endpoint("jwks_uri"))
            keys = _usable_keys(_document(answer).get("keys"))
            self._keys = (now, keys)
            return keys

    def _endpoint(self, name: str) -> str:
        known = self._configuration
        if known is None or self._timer() - known[0] >= _KNOWN_SECONDS:
            base = self.provider.issuer.rstrip("/")
            answer = self._outbound.request("GET", f"{base}/.well-known/openid-configuration")
            found = _document(answer)
            if found.get("issuer") != self.provider.issuer:
                raise StorageError(
                    f"the provider of sign-in calls itself {found.get('issuer')!r:.120}, and the "
                    f"settings {self.provider.issuer!r}: correct the setting oidc_issuer"
                )
            known = self._configuration = (self._timer(), found)
        address = known[1].get(name)
        if not isinstance(address, str) or not address.startswith(("https://", "http://")):
            raise StorageError(f"the provider of sign-in tells no {name}")
        return address

    def _user_of(self, claims: Mapping[str, Any]) -> str:
        table = tables.identities
        is_it = (table.c.issuer == claims["iss"]) & (table.c.subject == claims["sub"])
        with self._database.read() as connection:
            row = connection.execute(select(table.c.user).where(is_it)).first()
        if row is not None:
            if self._people.user(row.user).is_disabled:
                raise PermissionDenied(f"the account {row.user!r} is disabled: ask who runs this")
            return str(row.user)
        if not self.provider.creates_users:
            raise PermissionDenied(
                f"you have no account here: ask whoever runs this service to link the subject "
                f"{claims['sub']!r} to one"
            )
        return self._create(claims)

    def _create(self, claims: Mapping[str, Any]) -> str:
        told = str(claims.get("email", "")) if claims.get("email_verified") is True else ""
        email = told if is_email(told) else ""
        wanted = str(claims.get("preferred_username") or email or "user").partition("@")[0]
        base = _STRANGE.sub("-", wanted.lower()).strip("._-")[:50]
        base = base if re.fullmatch(NAME, base) else "user"
        for name in [base, *(f"{base}-{secrets.token_hex(3)}" for _ in range(3))]:
            try:
                self._people.add_user(name, email=email)
            except ConflictError:
                continue
            self.link(name, str(claims["sub"]))
            return name
        raise StorageError(f"no free name like {base!r} for a new account: try again")

    def link(self, user: str, subject: str) -> None:
        """Let who the provider calls `subject` sign in as a user."""
        table, issuer = tables.identities, self.provider.issuer
        self._people.user(user)
        with self._database.write() as connection:
            same = table.delete().where(table.c.issuer == issuer, table.c.subject == subject)
            connection.execute(same)
            connection.execute(insert(table).values(issuer=issuer, subject=subject, user=user))


def _is_time(value: Any, *, above: float, below: float = float("inf")) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and above < value < below


def _usable_keys(told: Any) -> KeySet:
    """The keys of a JWK set; those that we cannot use are passed over, as RFC 7517 asks for."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    usable = []
    for key in told if isinstance(told, list) else ():
        # joserfc looks up curves that it does not know, and believes that "kty" is a text.
        with suppress(JoseError, ValueError, TypeError, LookupError):
            usable += KeySet.import_key_set({"keys": [key]}).keys
    if not usable:
        raise StorageError("the provider of sign-in tells no key that this service can use")
    return KeySet(usable)


def _document(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if answer.status != 200 or not isinstance(found, dict):
        raise StorageError(
            f"the provider of sign-in answers {answer.status}, not what OpenID Connect expects"
        )
    return found
