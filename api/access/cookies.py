"""Cookies of sessions, and proof that a request of a browser comes from a page of our own."""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import urlsplit

from fastapi import Request, Response

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.sessions import LONGEST_SECONDS
from tensorrepo.api.settings import Settings
from tensorrepo.repo.errors import PermissionDenied

CSRF_HEADER: Final = "X-CSRF-Token"
CSRF_FIELD: Final = "csrf"
STATE_COOKIE: Final = "tensorrepo_sign_in"
_COOKIE: Final = "tensorrepo_session"
_HOST_COOKIE: Final = f"__Host-{_COOKIE}"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


def session_of(request: Request, settings: Settings) -> str | None:
    """What the cookie of a session holds; None: there is none."""
    return request.cookies.get(_name(settings)) or None


def set_session(response: Response, session: str, settings: Settings) -> None:
    """Let the browser keep a session: no script reads it, no other site's request carries it."""
    response.set_cookie(
        _name(settings),
        session,
        max_age=LONGEST_SECONDS,
        path="/",
        secure=is_https(settings),
        httponly=True,
        samesite="strict",
    )


def drop_session(response: Response, settings: Settings) -> None:
    """Let the browser forget it."""
    response.delete_cookie(
        _name(settings), path="/", secure=is_https(settings), httponly=True, samesite="strict"
    )


def set_state(response: Response, state: str, settings: Settings, seconds: int) -> None:
    """Bind a sign-in that another site continues to this browser.

    It is lax, not strict, for the provider sends the browser back from its own site.
    """
    response.set_cookie(
        STATE_COOKIE,
        state,
        max_age=seconds,
        path="/",
        secure=is_https(settings),
        httponly=True,
        samesite="lax",
    )


def is_https(settings: Settings) -> bool:
    return (settings.public_url or "").startswith("https://")


def require_own_page(request: Request, settings: Settings) -> None:
    """Raises PermissionDenied where a page of another site made the request.

    Browsers say so in ``Sec-Fetch-Site``, older ones in ``Origin``; programs say neither.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    own = settings.public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"
    is_foreign = (
        site not in {"same-origin", "none"}
        if site is not None
        else origin is not None and not _is_same(origin, own)
    )
    if is_foreign:
        raise PermissionDenied(
            "a page of another site made this request: open the page of this service, and repeat "
            "it there. Behind a proxy, the setting public_url says what its address is."
        )


async def require_intended(request: Request, caller: Caller, settings: Settings) -> None:
    """Raises PermissionDenied where a session's browser may have been led to a request (CSRF).

    What changes anything brings along what only our own pages know: as the header
    ``X-CSRF-Token``, or as the field ``csrf`` of a form.
    """
    if request.method in _SAFE:
        return
    require_own_page(request, settings)
    sent = request.headers.get(CSRF_HEADER) or await _field(request, settings)
    if not secrets.compare_digest(sent.encode(), caller.csrf.encode()):
        raise PermissionDenied(
            "this request does not come from a page of this service, or from one that was opened "
            "before you signed in: reload the page, and repeat it"
        )


async def _field(request: Request, settings: Settings) -> str:
    size = request.headers.get("content-length", "")
    is_form = request.headers.get("content-type", "").startswith(_FORMS)
    if not is_form or not size.isascii() or not size.isdigit():
        return ""
    if int(size) > settings.max_body_bytes:
        return ""
    found = (await request.form()).get(CSRF_FIELD)
    return found if isinstance(found, str) else ""


def _is_same(origin: str, own: str) -> bool:
    return urlsplit(origin)[:2] == urlsplit(own)[:2]


def _name(settings: Settings) -> str:
    # The prefix lets no other host, nor a page without TLS, set the cookie.
    return _HOST_COOKIE if is_https(settings) else _COOKIE
