"""Authentication: who makes a request, found out before anything else of it is looked at.

A middleware around all routes, so that none is open by being forgotten: whoever is unknown gets no
further than the few paths that are listed here, whatever the method, and however a path is spelled.
Neither is a body of theirs read. What callers may do is decided behind it, see `access.gate`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from tensorrepo.api.access.callers import NOBODY, Caller
from tensorrepo.api.access.cookies import session_of
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.tokens import sent_token, token_id
from tensorrepo.api.errors import answer_error
from tensorrepo.api.limits.bodies import limit_unproved
from tensorrepo.api.requests import CALLER, PROBES, TOKEN_ID
from tensorrepo.api.service import Service
from tensorrepo.repo.errors import Error, PermissionDenied, UnauthenticatedError

# Of the API. Pages have a door of their own, which leads to the login.
OPEN: Final = frozenset(
    {
        ("GET", "/api/v1"),
        ("HEAD", "/api/v1"),
        ("POST", "/api/v1/session"),
        ("POST", "/api/validate-yaml"),  # clients of Hugging Face ask it without their token
    }
)
# Of the service, of OCI registries, and what MLflow's client asks of a repository.
_API: Final = re.compile(r"/+(?:(?:api|v2)(?:/|\Z)|[^/]+/+(?:[^/]+/+)?api/+\d)", re.IGNORECASE)

# What takes tokens of its own, which are proved by the routes.
_BY_TICKET: Final = "/cas/"


class Authentication:
    """The middleware. `app.state.service` knows tokens and sessions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there are none, and none shall be open by mistake
            await WebSocketClose(1008)(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            caller = await _proved(request, scope["app"].state.service)
            _require_known(caller, request)
        except Error as error:
            await answer_error(request, error)(scope, receive, send)
            return
        if caller is NOBODY:
            limit_unproved(request)
        else:
            address = request.client.host if request.client else ""
            request_id = scope.get("request_id", "")
            scope[CALLER] = replace(caller, address=address, request_id=request_id)
        await self._app(scope, receive, send)


async def require_unchanged(request: Request, access: RepositoryAccess) -> None:
    """What a long answer asks again and again: its caller is who it was, and may what they might.

    Raises:
        UnauthenticatedError: the token was revoked, or the session ended, within the last second.
        PermissionDenied: what the caller may do has changed.
        NotFoundError: the repository has gone, or has another name.
    """
    service: Service = request.app.state.service
    caller, before = await _proved(request, service), access.caller
    caller.require_known()
    if (caller.name, caller.grants, caller.scope) != (before.name, before.grants, before.scope):
        raise PermissionDenied("what this caller may do has changed: connect anew")
    if service.directory.known(access.name) is None:
        await run_in_threadpool(service.directory.open, access.name)


def _require_known(caller: Caller, request: Request) -> None:
    path = _path(request)
    if _API.match(path) and (request.method, path) not in OPEN:
        caller.require_known()


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


async def _proved(request: Request, service: Service) -> Caller:
    """Who a request is by its token, else by the cookie of a session.

    Raises:
        UnauthenticatedError: a token came, but it is worth nothing.
    """
    path = _path(request)
    if path in PROBES or path.startswith(_BY_TICKET):
        return NOBODY
    header = request.headers.get("authorization", "")
    if not header:
        return await _signed_in(request, service)
    token = sent_token(header)
    if token is None:
        raise UnauthenticatedError("expected 'Authorization: Bearer trp_...'")
    known = service.accounts.known(token)
    if known is not None:
        return known
    request.scope[TOKEN_ID] = token_id(token)  # of a token that turns out to be worth nothing
    return await run_in_threadpool(service.accounts.caller, token)


async def _signed_in(request: Request, service: Service) -> Caller:
    """Whose session the cookie is of; nobody where it is over, so that one can sign in anew."""
    session = session_of(request, service.settings)
    if session is None:
        return NOBODY
    known = service.sessions.known(session)
    if known is not None:
        return known
    try:
        return await run_in_threadpool(service.sessions.caller, session)
    except UnauthenticatedError:
        return NOBODY
