"""Signing in and out of the web pages, for programs; `login` has the pages of it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field, SecretStr

from tensorrepo.api.access.cookies import (
    drop_session,
    require_own_page,
    session_of,
    set_session,
)
from tensorrepo.api.access.sessions import csrf_of
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import CallerOf, ServiceOf

router: Final = deferred_router(prefix="/api/v1/session", tags=["accounts"])


class Login(BaseModel):
    """Who signs in, by password."""

    user: str = Field(max_length=100, examples=["ann"])
    password: SecretStr = Field(max_length=1024)


class SessionInfo(BaseModel):
    """A session; the cookie of the answer is what proves it."""

    user: str
    csrf: str = Field(description="What `X-CSRF-Token` says in each request that changes anything.")


@router.post("", summary="Sign in by password")
def sign_in(request: Request, response: Response, service: ServiceOf, login: Login) -> SessionInfo:
    """Sets the cookie of a session. After some failures there are waits, which grow."""
    require_own_page(request, service.settings)
    note(request, "sign-in", service.people.sign_in_detail(login.user))
    address = request.client.host if request.client else ""
    session = service.sign_in.by_password(login.user, login.password.get_secret_value(), address)
    note(request, "sign-in", "password", actor=login.user)
    set_session(response, session, service.settings)
    response.headers["Cache-Control"] = "no-store"
    return SessionInfo(user=login.user, csrf=csrf_of(session))


@router.get("", summary="Who is signed in")
def get_session(response: Response, caller: CallerOf) -> SessionInfo:
    """The user of the session, and what the pages send along."""
    caller.require_known()
    response.headers["Cache-Control"] = "no-store"
    return SessionInfo(user=caller.name, csrf=caller.csrf)


@router.delete("", status_code=204, summary="Sign out")
def sign_out(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    everywhere: Annotated[bool, Query(description="Every browser of this user.")] = False,
) -> Response:
    """This browser, or all of the user's. Tokens stay."""
    caller.require_known()
    note(request, "sign-out", "everywhere" if everywhere else "")
    session = session_of(request, service.settings)
    if everywhere:
        caller.require_unscoped("sign its user out")
        service.sessions.end_all(caller.name)
    elif session is not None:
        service.sessions.end(session)
    response = Response(status_code=204)
    drop_session(response, service.settings)
    return response
