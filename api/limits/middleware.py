"""Middleware that refuses who asks too often, for too much, or too slowly.

A caller is a token or a session, else an address. What is shown as a token and is none counts for
its address, too: else who makes up another one for each request would have no limit. Buckets are
each process's own: with several, each has its share of the rate.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorrepo.api.access.cookies import session_of
from tensorrepo.api.errors import problem
from tensorrepo.api.limits.bodies import bounded
from tensorrepo.api.limits.buckets import Rate, TokenBuckets
from tensorrepo.api.requests import CALLER, PROBES
from tensorrepo.api.service import Service
from tensorrepo.api.settings import Settings

MAX_RANGES: Final = 64


class Limits:
    """The middleware."""

    def __init__(
        self, app: ASGIApp, settings: Settings, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._app, self._settings, self._timer = app, settings, timer
        self._requests = _buckets(settings.requests_per_second, settings.workers, burst_seconds=5)
        self._bytes = _buckets(settings.bytes_per_second, settings.workers, burst_seconds=10)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_limited = self._requests is not None or self._bytes is not None
        proof = _proof(request, self._settings) if is_limited else ""
        key = _hashed(b"proof:" + proof.encode() if proof else _address(scope))
        if wait := self._wait(key, scope, proof):
            headers = {"Retry-After": str(max(1, math.ceil(wait)))}
            detail = "this caller asks for too much: wait as long as Retry-After says"
            refused = problem(request, 429, "rate-limited", detail, headers=headers)
            await refused(scope, receive, send)
            return
        if request.headers.get("range", "").count(",") >= MAX_RANGES:
            detail = f"a request asks for at most {MAX_RANGES} ranges: send several requests"
            await problem(request, 400, "invalid-input", detail)(scope, receive, send)
            return
        taken = bounded(
            scope,
            self._counted(key, receive),
            most_bytes=self._settings.max_body_bytes,
            idle_seconds=self._settings.idle_seconds,
            timer=self._timer,
        )
        await self._app(scope, taken, self._charged(key, self._refused(scope, proof, send)))

    def _wait(self, key: bytes, scope: Scope, proof: str) -> float:
        now = self._timer()
        requests = self._requests
        is_unproved = requests is not None and proof and not _is_known(scope, proof)
        if requests is not None and is_unproved:
            wait = requests.wait(_hashed(_address(scope)), 0, now)
            if wait:
                return wait
        if self._bytes is not None and (wait := self._bytes.wait(key, 1, now)):
            return wait
        return 0.0 if self._requests is None else self._requests.wait(key, 1, now)

    def _refused(self, scope: Scope, proof: str, send: Send) -> Send:
        """`send` that counts proofs that are worth nothing for the address."""
        buckets = self._requests
        if buckets is None or not proof:
            return send

        async def refused(message: Message) -> None:
            if message["type"] == "http.response.start" and CALLER not in scope:
                buckets.charge(_hashed(_address(scope)), 1, self._timer())
            await send(message)

        return refused

    def _charged(self, key: bytes, send: Send) -> Send:
        """`send` that counts bytes."""
        buckets = self._bytes
        if buckets is None:
            return send

        async def charged(message: Message) -> None:
            buckets.charge(key, len(message.get("body", b"")), self._timer())
            await send(message)

        return charged

    def _counted(self, key: bytes, receive: Receive) -> Receive:
        """`receive` that counts bytes."""
        buckets = self._bytes
        if buckets is None:
            return receive

        async def counted() -> Message:
            message = await receive()
            buckets.charge(key, len(message.get("body", b"")), self._timer())
            return message

        return counted


def _buckets(
    per_second: float | None, workers: int, *, burst_seconds: float
) -> TokenBuckets | None:
    if per_second is None:
        return None
    share = per_second / workers
    return TokenBuckets(Rate(share, max(1.0, share * burst_seconds)))


def _proof(request: Request, settings: Settings) -> str:
    """The token or session that a request shows, however it is written; "" is none."""
    told = request.headers.get("authorization")
    shown = session_of(request, settings) if told is None else told.partition(" ")[2].strip()
    return shown or ""


def _is_known(scope: Scope, proof: str) -> bool:
    service: Service = scope["app"].state.service
    return (service.accounts.known(proof) or service.sessions.known(proof)) is not None


def _address(scope: Scope) -> bytes:
    return b"address:" + (scope["client"][0].encode() if scope["client"] else b"")


def _hashed(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
