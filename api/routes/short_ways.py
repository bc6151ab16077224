"""What is answered before the routes are asked: versions, aliases, stored objects, and appends.

The framework's matching of routes and solving of dependencies costs several times what such an
answer does. So what every deployment asks for a thousand times a second has a short way: the same
caller, the same gate, the same functions. A read that is not in memory, is refused or is asked with
parameters takes the long way, which answers it. Of objects that lie in a store afar only the size
must be known: their bytes come from there. An append takes the short way if its caller, by a token,
and the repository are known; once its body is read there is no way back, and errors are told here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorrepo.api.access.callers import NOBODY, Caller
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import REPOSITORY_NAME
from tensorrepo.api.content import registry
from tensorrepo.api.errors import answer_error, answer_gone, answer_http
from tensorrepo.api.requests import CALLER, EntryNameConvertor, caller_of
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.routes.store import LONGEST_RANGE, STORE_PATH, answer_value
from tensorrepo.api.routes.transfers import APPEND_PATH, append_entries
from tensorrepo.api.service import Service
from tensorrepo.api.transfer.reading import known_value
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error

_NAME: Final = EntryNameConvertor.regex
_PATH: Final = re.compile(
    rf"/api/v1/repositories/(?P<repository>{REPOSITORY_NAME})/-/registry/(?P<name>{_NAME})"
    r"(?:/-/(?:versions|aliases)/(?P<which>[^/]+))?"
)
_REGISTRY_PATH: Final = "/api/v1/repositories/{repository:repository}/-/registry"
_OBJECT: Final = re.compile(
    rf"/api/v1/repositories/(?P<repository>{REPOSITORY_NAME})/-/store/"
    r"(?P<key>objects/[0-9a-f]{2}/[0-9a-z.-]+)"
)


_APPEND: Final = re.compile(rf"/api/v1/repositories/(?P<repository>{REPOSITORY_NAME})/-/append")


class ShortWays:
    """Middleware in front of the routes, behind all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        way = _way_of(scope)
        answer = None
        if way is not None:
            request = Request(scope, receive)
            with suppress(Error):  # the long way says what is wrong
                answer = await _answer(request, way)
        if way is None or answer is None:
            await self._app(scope, receive, send)
            return
        # What the router would have noted: metrics and the audit log go by it.
        scope["route"], scope["path_params"] = way, {"repository": way.repository}
        response = answer if isinstance(answer, Response) else await _told(request, answer)
        await response(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _ShortWay:
    """A request about a repository: what answers it, and path of the route that would.

    `answer` gives the answer, or what makes it by reading the body; None: the long way.
    """

    repository: str
    path: str
    answer: Callable[[RepositoryAccess, Request], Response | Awaitable[Response] | None]


def _way_of(scope: Scope) -> _ShortWay | None:
    """What is asked for; None: nothing that has a short way."""
    if scope["type"] != "http" or scope["query_string"]:
        return None
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    if scope["method"] == "POST":
        parts = _APPEND.fullmatch(path) if path.endswith("/-/append") else None
        return None if parts is None else _ShortWay(parts["repository"], APPEND_PATH, _append)
    if scope["method"] != "GET":
        return None
    if "/-/store/objects/" in path and (parts := _OBJECT.fullmatch(path)) is not None:
        return _ShortWay(parts["repository"], STORE_PATH, partial(_object, parts["key"]))
    if "/-/registry/" in path and (parts := _PATH.fullmatch(path)) is not None:
        read = partial(_registered, parts["name"], parts["which"])
        return _ShortWay(parts["repository"], _REGISTRY_PATH, read)
    return None


def _registered(
    name: str, which: str | None, access: RepositoryAccess, request: Request
) -> Response | None:
    if which is None:
        body: BaseModel | None = registry.known_model(access, name)
    else:
        body = registry.known_version(access, name, which)
    return None if body is None else answer_json(request, body)


def _object(key: str, access: RepositoryAccess, request: Request) -> Response | None:
    value, asked = known_value(access, key), request.headers.get("range")
    if value is None or len(asked or "") > LONGEST_RANGE:
        return None
    return answer_value(value, request.app.state.service, request, asked)


def _append(access: RepositoryAccess, request: Request) -> Awaitable[Response]:
    return append_entries(access, request.app.state.service, request)


async def _answer(request: Request, way: _ShortWay) -> Response | Awaitable[Response] | None:
    service: Service = request.app.state.service
    if service.directory.known(way.repository) is None:
        return None
    caller: Caller = request.scope.get(CALLER, NOBODY)
    if request.method == "POST" and caller.kind != "token":
        return None  # a session's request is proved by its body
    caller = await caller_of(request)
    return way.answer(service.enter(caller, way.repository), request)


async def _told(request: Request, answer: Awaitable[Response]) -> Response:
    """The answer, or what the application would say of the error that it ends with."""
    try:
        return await answer
    except Error as error:
        return answer_error(request, error)
    except HTTPException as error:
        return answer_http(request, error)
    except ClientDisconnect as error:
        return answer_gone(request, error)
