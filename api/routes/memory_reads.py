"""Reads that are answered from memory before the routes are asked: versions, aliases, names.

The framework's matching of routes and solving of dependencies costs several times what such an
answer does. So what every deployment asks for a thousand times a second has a short way: the same
caller, the same gate, the same functions. Whatever is not in memory, is refused or is asked with
parameters takes the long way, which answers it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import REPOSITORY_NAME
from tensorrepo.api.content import registry
from tensorrepo.api.requests import EntryNameConvertor, caller_of
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.service import Service
from tensorrepo.repo.errors import Error

_NAME: Final = EntryNameConvertor.regex
_PATH: Final = re.compile(
    rf"/api/v1/repositories/(?P<repository>{REPOSITORY_NAME})/-/registry/(?P<name>{_NAME})"
    r"(?:/-/(?:versions|aliases)/(?P<which>[^/]+))?"
)


class MemoryReads:
    """Middleware in front of the routes, behind all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = _read_of(scope)
        body = None
        if read is not None:
            request = Request(scope)
            try:
                body = await _answer(request, *read)
            except Error:  # the long way says what is wrong
                body = None
        if body is None:
            await self._app(scope, receive, send)
            return
        await answer_json(request, body)(scope, receive, send)


Read = Callable[[RepositoryAccess], BaseModel | None]


def _read_of(scope: Scope) -> tuple[str, Read] | None:
    """The repository that is asked, and for what; None: nothing of memory."""
    if scope["type"] != "http" or scope["method"] != "GET" or scope["query_string"]:
        return None
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    parts = _PATH.fullmatch(path) if "/-/registry/" in path else None
    if parts is None:
        return None
    repository, name, which = parts["repository"], parts["name"], parts["which"]
    if which is None:
        return repository, lambda access: registry.known_model(access, name)
    return repository, lambda access: registry.known_version(access, name, which)


async def _answer(request: Request, repository: str, read: Read) -> BaseModel | None:
    service: Service = request.app.state.service
    if service.directory.known(repository) is None:
        return None
    caller = await caller_of(request)
    return read(service.enter(caller, repository))
