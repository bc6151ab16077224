"""Idempotency keys: a write that is sent again is carried out once, and answered the same.

`Idempotency-Key` is the client's word for one write. The first answer is kept for a day in the
service's database, by user and key, so that any process gives it again. The same key with another
request is refused (422); while the first one runs, the second is told to wait (409). An answer with
a secret in it (`Cache-Control: no-store`) is not kept, only that there was one.

What failed in a way that is worth another try (429, 5xx) is forgotten; what nobody knows the
outcome of stays unknown, and is never carried out again under that key. Appends to a log have an
idempotency of their own, the transaction's name.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.tokens import sent_token
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.api.errors import answer_error, answer_http, problem
from tensorrepo.api.service import Service
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, UnauthenticatedError

HEADER: Final = "Idempotency-Key"
KEPT_SECONDS: Final = 86400
MAX_ANSWER_BYTES: Final = 256 << 10
_RUNNING_SECONDS: Final = 600  # after which who ran it is believed dead
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORGOTTEN: Final = frozenset({401, 403, 408, 429, 500, 502, 503})
_SECOND_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What is known of a key. `state` is running, done or unknown; `body` None was not kept."""

    request: str
    state: str
    status: int | None
    media: str
    body: bytes | None
    created_ns: int


class KeptAnswers:
    """Answers by user and key. Thread-safe."""

    def __init__(self, database: Database, clock: Callable[[], int] = time.time_ns) -> None:
        self._database, self._clock = database, clock

    def begin(self, user: str, key: str, request: str) -> KeptAnswer | None:
        """None: the request is to be carried out. Else what is known of the one before it."""
        table, now = tables.idempotent_answers, self._clock()
        values = {"user": user, "key": key, "request": request, "state": "running"}
        try:
            with self._database.write() as connection:
                old = table.c.created_ns < now - KEPT_SECONDS * _SECOND_NS
                connection.execute(delete(table).where(old))
                connection.execute(insert(table).values(**values, created_ns=now))
        except IntegrityError:
            return self._known(user, key)
        return None

    def _known(self, user: str, key: str) -> KeptAnswer | None:
        table = tables.idempotent_answers
        with self._database.read() as connection:
            asked = select(table).where(table.c.user == user, table.c.key == key)
            row = connection.execute(asked).mappings().first()
        if row is None:  # it ended, and was forgotten, in between
            return KeptAnswer("", "unknown", None, "", None, 0)
        names = ("request", "state", "status", "media", "body", "created_ns")
        found = KeptAnswer(*(row[name] for name in names))
        is_dead = found.created_ns < self._clock() - _RUNNING_SECONDS * _SECOND_NS
        if found.state == "running" and is_dead:
            return KeptAnswer(found.request, "unknown", None, "", None, found.created_ns)
        return found

    def end(self, user: str, key: str, state: str, **values: Any) -> None:
        """Keep what became of it."""
        table = tables.idempotent_answers
        with self._database.write() as connection:
            connection.execute(
                update(table)
                .where(table.c.user == user, table.c.key == key)
                .values(state=state, **values)
            )

    def forget(self, user: str, key: str) -> None:
        """Let it be tried again."""
        table = tables.idempotent_answers
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.user == user, table.c.key == key))


class Idempotency:
    """The middleware, within `Limits`. The audit log has a write once, and no replay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WRITES:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key, request = headers.get(HEADER), Request(scope)
        caller = None if key is None else await _caller(request, headers)
        if key is None or caller is None:  # who is unknown is refused further in
            await self._app(scope, receive, send)
            return
        if not _KEY.fullmatch(key):
            detail = f"{HEADER} has 1 to 200 printable characters, without spaces"
            await problem(request, 400, "invalid-input", detail)(scope, receive, send)
            return
        try:
            await self._run(request, caller, key, receive, send)
        except HTTPException as error:
            await answer_http(request, error)(scope, receive, send)
        except Error as error:
            await answer_error(request, error)(scope, receive, send)

    async def _run(
        self, request: Request, caller: Caller, key: str, receive: Receive, send: Send
    ) -> None:
        user = caller.name
        service: Service = request.app.state.service
        answers = KeptAnswers(service.database)
        body = await _whole(receive)
        hashed = _hash(request, body, caller)
        known = await run_in_threadpool(answers.begin, user, key, hashed)
        if known is not None:
            note(request, None)
            await _again(request, known, hashed)(request.scope, receive, send)
            return

        async def end() -> None:
            if watched.status in _FORGOTTEN:
                await run_in_threadpool(answers.forget, user, key)
                return
            kept = {"status": watched.status, "media": watched.media, "body": watched.kept()}
            await run_in_threadpool(lambda: answers.end(user, key, "done", **kept))

        watched = _Watched(send, end)
        try:
            await self._app(request.scope, _given(body, receive), watched)
        except BaseException:
            if not watched.ended:
                await run_in_threadpool(answers.end, user, key, "unknown")
            raise


async def _caller(request: Request, headers: Headers) -> Caller | None:
    """Whose token the request carries; None: nobody's."""
    token = sent_token(headers.get("authorization", ""))
    if token is None:
        return None
    service: Service = request.app.state.service
    try:
        known = service.accounts.known(token)
        if known is None:
            known = await run_in_threadpool(service.accounts.caller, token)
    except UnauthenticatedError:
        return None
    return known


async def _whole(receive: Receive) -> bytes:
    """The body; `Limits` bounds it."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HTTPException(400, "the request ended before its body did")
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _given(body: bytes, receive: Receive) -> Receive:
    """`receive` that has the body, and then whatever comes."""
    rest = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return rest.pop() if rest else await receive()

    return give


def _hash(request: Request, body: bytes, caller: Caller) -> str:
    # A token for less gets no answer that was given to one for more.
    head = f"{request.method}\n{request.url.path}\n{request.url.query}\n{caller.scope}\n".encode()
    return hashlib.sha256(head + body).hexdigest()


def _again(request: Request, known: KeptAnswer, hashed: str) -> Response:
    """What a second request with the same key is answered."""
    if known.state == "unknown":
        detail = "what became of the first request is not known: look, and use another key"
        return problem(request, 504, "outcome-unknown", detail)
    if known.request != hashed:
        detail = f"this {HEADER} was used for another request: use a key of its own"
        return problem(request, 422, "invalid-input", detail)
    if known.state == "running":
        detail = "the first request with this key is under way: ask again"
        return problem(request, 409, "conflict", detail, headers={"Retry-After": "1"})
    if known.body is None:
        detail = "this was carried out, and its answer was not kept: look what it did"
        return problem(request, 409, "conflict", detail)
    headers = {"Idempotent-Replayed": "true"}
    if known.media:
        headers["Content-Type"] = known.media
    return Response(known.body, known.status or 200, headers)


class _Watched:
    """`send` that keeps what is sent, as long as that is small and no secret.

    Before the last of it goes out, `end` is waited for: who has the whole answer and asks again is
    told what became of the first request, not that it is under way.
    """

    def __init__(self, send: Send, end: Callable[[], Awaitable[None]]) -> None:
        self._send, self._end = send, end
        self._body: bytearray | None = bytearray()
        self.ended = False
        self.status = 500
        self.media = ""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            self.status, self.media = message["status"], headers.get("content-type", "")
            if "no-store" in headers.get("cache-control", ""):
                self._body = None
        elif self._body is not None:
            self._body += message.get("body", b"")
            if len(self._body) > MAX_ANSWER_BYTES:
                self._body = None
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        self.ended = True
        try:
            await self._end()
        finally:
            await self._send(message)

    def kept(self) -> bytes | None:
        return None if self._body is None else bytes(self._body)
