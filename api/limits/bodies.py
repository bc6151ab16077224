"""Limits of request bodies: how large, and how slow.

Every body is bounded by the setting `max_body_bytes`, whatever reads it, and by less where nobody
knows who sends it. A route that takes uploads
says so by `allow_upload` before it reads, and bounds them itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope

from tensorrepo.repo.deferred_dataclass import dataclass

_LIMIT: Final = "tensorrepo.body_limit"
MIN_BYTES_PER_SECOND: Final = 1024
MOST_UNPROVED_BYTES: Final = 256 << 10  # of who is unknown: a form, or what is asked of a card


@dataclass(slots=True)
class _Limit:
    most: int


def allow_upload(request: HTTPConnection, most_bytes: int) -> None:
    """Let the body of a request have so many bytes; to be called before it is read."""
    limit = request.scope.get(_LIMIT)
    if isinstance(limit, _Limit):
        limit.most = most_bytes


def limit_unproved(request: HTTPConnection) -> None:
    """Let a body be small whose sender nobody knows: the few routes that they may ask need no more.

    A route that takes more of them says so by `allow_upload`.
    """
    limit = request.scope.get(_LIMIT)
    if isinstance(limit, _Limit):
        limit.most = min(limit.most, MOST_UNPROVED_BYTES)


def bounded(
    scope: Scope,
    receive: Receive,
    *,
    most_bytes: int,
    idle_seconds: float,
    timer: Callable[[], float],
) -> Receive:
    """`receive` that raises HTTPException for a body that is too large (413) or too slow (408).

    Args:
        scope: scope of the request, where `allow_upload` finds the limit.
        receive: the server's.
        most_bytes: limit of this body, until the route says otherwise.
        idle_seconds: wait for each piece, and how far a body may be behind
            `MIN_BYTES_PER_SECOND` at any time. What came fast earns no longer wait: it is held.
        timer: seconds from any start.
    """
    limit = scope[_LIMIT] = _Limit(most_bytes)
    promised = _content_length(scope)
    seen, late_seconds, is_whole = 0, 0.0, False

    async def bounded_receive() -> Message:
        nonlocal seen, late_seconds, is_whole
        if is_whole:
            return await receive()
        if promised > limit.most:
            raise _too_large(limit.most)
        began = timer()  # what the service does between two pieces is not the client's time
        try:
            async with asyncio.timeout(idle_seconds):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, _SLOW) from None
        if message["type"] != "http.request":
            return message
        came = len(message.get("body", b""))
        seen += came
        late_seconds = max(0.0, late_seconds + timer() - began - came / MIN_BYTES_PER_SECOND)
        is_whole = not message.get("more_body", False)
        if seen > limit.most:
            raise _too_large(limit.most)
        if not is_whole and late_seconds > idle_seconds:
            raise HTTPException(408, _SLOW)
        return message

    return bounded_receive


_SLOW: Final = "the body of this request came too slowly: send it again, in smaller parts"


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body of this request has more than {most} bytes")


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:18])
    return 0
