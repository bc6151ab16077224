"""Requests: an id for each, who makes it, and what each route gets of the service.

A route takes `CallerOf`, `ServiceOf` or `AccessOf` as a parameter. The routes of pages take
`tensorrepo.api.access` by their own door, which redirects to the login instead.
"""

from __future__ import annotations

import random
import re
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Depends, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrepo.api.access.callers import NOBODY, Caller
from tensorrepo.api.access.cookies import require_intended
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import REPOSITORY_NAME
from tensorrepo.api.observing.logs import redacted
from tensorrepo.api.service import Service
from tensorrepo.repo.errors import NotFoundError, PermissionDenied

# What a request is known by to middleware around it, in its scope.
PROBES: Final = frozenset({"/health", "/health/ready"})  # answered whoever asks
CALLER: Final = "tensorrepo.caller"
TOKEN_ID: Final = "tensorrepo.token_id"  # noqa: S105  a name
REQUEST_ID: Final = "X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _RepositoryConvertor(Convertor[str]):
    """``team/photos`` in a URL. What follows it is set off by ``/-/``."""

    regex = REPOSITORY_NAME

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class EntryNameConvertor(Convertor[str]):
    """``vision/net`` in a URL: the path of an entry. What follows it is set off by ``/-/``."""

    regex = r"(?!-(?:/|$))[^/]+(?:/(?!-(?:/|$))[^/]+)*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _RowsConvertor(Convertor[str]):
    """What has rows: no other noun, so that routes of others stay theirs."""

    regex = "datasets|views"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("repository", _RepositoryConvertor())
register_url_convertor("rows", _RowsConvertor())
register_url_convertor("entry", EntryNameConvertor())


class RequestIds:
    """Middleware that gives each request an id, the caller's own where it has a plain form."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(REQUEST_ID.lower().encode(), b"").decode("latin-1")
        is_plain = _ID.fullmatch(told) and redacted(told) == told  # it is logged as it is
        # No secret. The system's own chance gives the interpreter away, and waits for it again.
        request_id = told if is_plain else f"{random.getrandbits(64):016x}"
        scope["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        await self._app(scope, receive, send_with_id)


async def service_of(request: Request) -> Service:
    """The service behind a request. Not on a thread: every request asks for it."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


# These three ask for nothing but the request: the framework looks at each dependency of a
# dependency anew for each of the routes, which was a third of the time that the service took to
# start.


async def caller_of(request: Request) -> Caller:
    """Who makes a request, as `authentication` found out; `NOBODY` where that is open to all.

    Raises:
        PermissionDenied: a session's browser may have been led here by another site.
    """
    caller: Caller = request.scope.get(CALLER, NOBODY)
    if caller.kind == "session":
        service = await service_of(request)
        await require_intended(request, caller, service.settings)
    return caller


CallerOf = Annotated[Caller, Depends(caller_of)]


async def access_of(
    request: Request,
    repository: Annotated[str, Path(description="Name of a repository: `name` or `team/name`.")],
) -> RepositoryAccess:
    """The gate of the repository that a route names; see `access.gate.enter`."""
    service, caller = await service_of(request), await caller_of(request)
    if service.directory.known(repository) is not None:
        return service.enter(caller, repository)
    try:
        return await run_in_threadpool(service.enter, caller, repository)
    except (NotFoundError, PermissionDenied):
        new = await run_in_threadpool(service.directory.renamed, repository)
        if new is None or caller.level(new) is None:
            raise
    told = {"Location": _renamed_path(request, repository, new)}
    raise HTTPException(308, f"this repository is called {new} now", told)


def _renamed_path(request: Request, old: str, new: str) -> str:
    """Path and query of a request, with another repository's name, as a header may say them.

    A path comes decoded: what it has of line ends, of "?" and of letters is escaped once more.
    """
    path, query = request.scope["path"], request.url.query
    route: str = request.scope["route"].path
    before = request.scope.get("root_path", "") + route.partition("{repository")[0]
    moved = quote(f"{before}{new}{path[len(before) + len(old) :]}")
    return f"{moved}?{query}" if query else moved


AccessOf = Annotated[RepositoryAccess, Depends(access_of)]
