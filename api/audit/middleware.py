"""Middleware of the audit log: around all routes, so that none can forget it.

Written down are writes that succeeded, refusals (401, 403, 429) and downloads of data. What a route
knows better it says by `note`: that its POST only asks, or that its answer is data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrepo.api.access.callers import NOBODY, Caller
from tensorrepo.api.audit.events import AuditEvent, EventKind
from tensorrepo.api.audit.writer import AuditLog
from tensorrepo.api.requests import CALLER, TOKEN_ID
from tensorrepo.repo.deferred_dataclass import dataclass

REFUSALS: Final = frozenset({401, 403, 429})
_NOTE: Final = "tensorrepo.audit"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Answers that are about data rather than data: what else comes of a repository is a download.
_WORDS: Final = (
    "application/json",
    "application/problem+json",
    "text/html",
    "text/css",
    "text/javascript",
    "text/event-stream",
)


@dataclass(frozen=True, slots=True)
class AuditNote:
    """What a route says of its request.

    Attributes:
        kind: what it is; None: nothing that is written down.
        detail: more, in a few words without secrets.
        actor: name of whom it is about, where that is not who asks.
        paths: what was asked for, where the request's own path does not say it.
    """

    kind: EventKind | None
    detail: str = ""
    actor: str = ""
    paths: tuple[str, ...] = ()


def note(
    request: HTTPConnection,
    kind: EventKind | None,
    detail: str = "",
    actor: str = "",
    paths: Iterable[str] = (),
) -> None:
    """Say what the audit log calls a request, instead of what its method and answer suggest."""
    request.scope[_NOTE] = AuditNote(kind, detail, actor, tuple(paths))


class Auditing:
    """The middleware. `app.state.service` has the log."""

    def __init__(self, app: ASGIApp, clock: Callable[[], int] = time.time_ns) -> None:
        self._app, self._clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, sent, media = 500, 0, ""

        async def watch(message: Message) -> None:
            nonlocal status, sent, media
            if message["type"] == "http.response.start":
                status = message["status"]
                media = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
            elif message["type"] == "http.response.body":
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            self._record(scope, status, sent, media)

    def _record(self, scope: Scope, status: int, sent: int, media: str) -> None:
        told = _said(scope, status, media)
        if told.kind is None:
            return
        event = _event(scope, told, self._clock(), status, sent)
        audit: AuditLog = scope["app"].state.service.audit
        audit.record(event, _key(scope, event))


def _said(scope: Scope, status: int, media: str) -> AuditNote:
    """What is written down of a request."""
    said: AuditNote | None = scope.get(_NOTE)
    if status in REFUSALS:
        detail, actor = ("", "") if said is None else (said.detail, said.actor)
        return AuditNote("refusal", detail, actor)
    if status >= 400:  # a refusal may be told as something else, such as "not there"
        return said if said is not None and said.kind == "refusal" else AuditNote(None)
    if said is not None:
        return said
    if scope["method"] not in _SAFE:
        return AuditNote("write")
    is_data = bool(_repository(scope)) and status != 304 and not media.startswith(_WORDS)
    return AuditNote("download" if is_data and scope["method"] == "GET" and media else None)


def _event(scope: Scope, told: AuditNote, now: int, status: int, sent: int) -> AuditEvent:
    caller: Caller = scope.get(CALLER, NOBODY)
    client = scope.get("client")
    return AuditEvent(
        now,
        told.kind or "write",
        actor=told.actor or caller.name,
        token=caller.token_id or scope.get(TOKEN_ID, ""),
        address=client[0] if client else "",
        request_id=scope.get("request_id", ""),
        repository=_repository(scope),
        method=scope["method"],
        paths=told.paths or (scope["path"],),
        status=status,
        bytes=sent if told.kind == "download" else 0,
        detail=told.detail,
    )


def _key(scope: Scope, event: AuditEvent) -> Hashable | None:
    """What makes requests of one second one event: a transfer in parts, a flood of refusals."""
    if event.kind not in {"download", "refusal"}:
        return None
    route = getattr(scope.get("route"), "path", "")
    who = (event.actor, event.token, event.address)
    return (event.kind, who, event.repository, event.method, route, event.status, event.detail)


def _repository(scope: Scope) -> str:
    return str(scope.get("path_params", {}).get("repository", ""))
