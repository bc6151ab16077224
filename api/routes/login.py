"""The pages of signing in: by password, by a provider, and by the code of a first start.

Nothing that a page shows changes anything: what does is a POST of a form. They stand alone, with
no script, so that they work before anybody is known.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tensorrepo.api.access.cookies import (
    STATE_COOKIE,
    drop_session,
    require_own_page,
    session_of,
    set_session,
    set_state,
)
from tensorrepo.api.access.openid import STATE_SECONDS
from tensorrepo.api.access.sign_in import CODE_SECONDS
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.errors import HTTP_STATUSES
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.service import Service
from tensorrepo.repo.errors import Error, RateLimitedError, UnauthenticatedError

if TYPE_CHECKING:  # loaded with the first page
    from jinja2 import Environment

router: Final = deferred_router(include_in_schema=False)
CALLBACK: Final = "/login/openid/callback"
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:24rem;margin:12vh auto;padding:0 1rem;"
    "color:#1c2024;background:#fff}h1{font-size:1.4rem}label{display:block;margin:.8rem 0 .2rem}"
    "input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;border:1px solid #767b80;"
    "border-radius:6px;background:inherit;color:inherit}button,a.b{font:inherit;display:block;"
    "width:100%;box-sizing:border-box;text-align:center;text-decoration:none;margin:1.2rem 0;"
    "padding:.6rem;border:0;border-radius:6px;background:#0b5cad;color:#fff;cursor:pointer}"
    ".e{padding:.6rem;border-left:4px solid #b3261e}"
    "@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#15181b}}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    # Not "no-referrer": with it a form's request would say that it comes from nowhere.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_FRAME: Final = (
    """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>{{ title }}</title>
{% if to %}<meta http-equiv="refresh" content="0;url={{ to }}">{% endif %}
<style>"""
    + _STYLE
    + """</style></head><body><main><h1>{{ title }}</h1>
{% if error %}<p class="e" role="alert">{{ error }}</p>{% endif %}
{% block body %}{% endblock %}</main></body></html>"""
)
_TEMPLATES: Final = {
    "frame": _FRAME,
    "login": """{% extends "frame" %}{% block body %}
<form method="post" action="{{ base }}/login"><input type="hidden" name="next" value="{{ then }}">
<label for="user">User</label><input id="user" name="user" autocomplete="username" required
 autofocus maxlength="100"><label for="password">Password</label><input id="password"
 name="password" type="password" autocomplete="current-password" required maxlength="1024">
<button>Sign in</button></form>
{% if provider %}<a class="b" href="{{ base }}/login/openid?next={{ then | urlencode }}">
Sign in with {{ provider }}</a>{% endif %}
<p>Programs use a token: <code>tensorrepo login {{ url }}</code></p>{% endblock %}""",
    "code": """{% extends "frame" %}{% block body %}
<p>This signs this browser in as whoever runs the service. The code is good once.</p>
<form method="post" action="{{ base }}/login/code"><input type="hidden" name="code"
 value="{{ code }}"><input type="hidden" name="next" value="{{ then }}">
<button autofocus>Sign in</button></form>{% endblock %}""",
    "gone": """{% extends "frame" %}{% block body %}
<p><a class="b" href="{{ to }}">Go on</a></p>{% endblock %}""",
}
Next = Annotated[str, Query(max_length=2000)]
User = Annotated[str, Form(max_length=100)]
Password = Annotated[str, Form(max_length=1024)]
Code = Annotated[str, Form(max_length=200)]


@router.get("/login")
def show_login(request: Request, service: ServiceOf, next: Next = "/") -> HTMLResponse:  # noqa: A002
    """The form of a user and password, and the way to the provider."""
    return _login_page(request, service, next)


@router.post("/login")
def login(
    request: Request,
    service: ServiceOf,
    user: User,
    password: Password,
    next: Annotated[str, Form(max_length=2000)] = "/",  # noqa: A002
) -> Response:
    """Sign in by password."""
    require_own_page(request, service.settings)
    note(request, "sign-in", service.people.sign_in_detail(user))
    try:
        session = service.sign_in.by_password(user, password, _address(request))
    except (UnauthenticatedError, RateLimitedError) as error:
        return _login_page(request, service, next, error)
    note(request, "sign-in", "password", actor=user)
    return _signed_in(request, service, session, next)


@router.get("/login/code")
def show_code(
    request: Request,
    code: Annotated[str, Query(max_length=200)] = "",
    next: Next = "/",  # noqa: A002
) -> HTMLResponse:
    """The button that uses a code; looking at it does not."""
    return _page(request, "code", "Sign in to tensorrepo", code=code, then=_local(next))


@router.post("/login/code")
def use_code(
    request: Request,
    service: ServiceOf,
    code: Code,
    next: Annotated[str, Form(max_length=2000)] = "/",  # noqa: A002
) -> Response:
    """Sign in by the code of a first start."""
    require_own_page(request, service.settings)
    note(request, "sign-in", "code")
    try:
        user, session = service.sign_in.by_code(code, _address(request))
    except Error as error:
        return _login_page(request, service, "/", error)
    note(request, "sign-in", "code", actor=user)
    return _signed_in(request, service, session, next)


@router.get("/login/openid")
def begin_openid(request: Request, service: ServiceOf, next: Next = "/") -> Response:  # noqa: A002
    """Send the browser to the provider."""
    callback = f"{_own_url(request, service)}{CALLBACK}"
    begun = service.sign_in.require_openid().begin(callback, _local(next))
    response = RedirectResponse(begun.url, HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))
    set_state(response, begun.state, service.settings, STATE_SECONDS)
    return response


@router.get(CALLBACK)
def finish_openid(
    request: Request,
    service: ServiceOf,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=4096)] = "",
    iss: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    """Where the provider sends the browser back to, with the code that proves who it let in."""
    note(request, "sign-in", "openid")
    try:
        own = request.cookies.get(STATE_COOKIE, "")
        if not state or not secrets.compare_digest(own.encode(), state.encode()):
            raise UnauthenticatedError("this sign-in was begun in another browser: begin again")
        user, then = service.sign_in.require_openid().finish(state, code, iss)
    except Error as error:
        return _login_page(request, service, "/", error)
    note(request, "sign-in", "openid", actor=user)
    session = service.sessions.begin(user, _address(request))
    # No redirect: its request would count as the provider's, and come without the strict cookie.
    to = f"{_base(request)}{then}"
    response = _page(request, "gone", "You are signed in", to=to)
    set_session(response, session, service.settings)
    response.delete_cookie(STATE_COOKIE, path="/")
    return response


@router.post("/logout")
def logout(request: Request, service: ServiceOf, caller: CallerOf) -> Response:
    """Sign this browser out."""
    note(request, "sign-out")
    session = session_of(request, service.settings)
    if session is not None and caller.kind == "session":
        service.sessions.end(session)
    response = RedirectResponse(f"{_base(request)}/login", HTTPStatus.SEE_OTHER)
    drop_session(response, service.settings)
    return response


def code_url(url: str, code: str, then: str = "") -> str:
    """Where a browser shows the button that uses a code, and leads to `then`, a path."""
    assert CODE_SECONDS <= 600, "the code stands in an address, which browsers remember"
    return f"{url}/login/code?code={code}" + (f"&next={quote(then)}" if then else "")


def _signed_in(request: Request, service: Service, session: str, then: str) -> Response:
    response = RedirectResponse(f"{_base(request)}{_local(then)}", HTTPStatus.SEE_OTHER)
    response.headers["Cache-Control"] = "no-store"
    set_session(response, session, service.settings)
    return response


def _login_page(
    request: Request, service: Service, then: str, error: Error | None = None
) -> HTMLResponse:
    response = _page(
        request,
        "login",
        "Sign in to tensorrepo",
        error=error,
        then=_local(then),
        provider="" if service.sign_in.openid is None else service.settings.oidc_name,
        url=_own_url(request, service),
    )
    if error is not None:
        response.status_code = HTTP_STATUSES[error.kind]
    if isinstance(error, RateLimitedError):
        response.headers["Retry-After"] = str(max(1, round(error.retry_seconds)))
    return response


@cache
def _pages() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    return Environment(loader=DictLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)


def _page(request: Request, name: str, title: str, **values: object) -> HTMLResponse:
    told = {"error": None, "to": None, "title": title, "base": _base(request), **values}
    return HTMLResponse(_pages().get_template(name).render(**told), headers=_HEADERS)


def _local(path: str) -> str:
    """`path` when it is one of this service; else its first page: no way to another site."""
    parts = urlsplit(path)
    is_plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_plain and not parts.netloc and "\\" not in path else "/"


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _own_url(request: Request, service: Service) -> str:
    told = service.settings.public_url
    return told or f"{request.url.scheme}://{request.url.netloc}{_base(request)}"


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
