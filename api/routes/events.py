"""Events of a repository, as they happen (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Annotated, Final

import msgspec
from fastapi import Header, Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.authentication import require_unchanged
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.errors import told
from tensorrepo.api.events.hub import Dropped, Subscription
from tensorrepo.api.events.occurrences import Event, parse_event_id
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.repo.errors import Error

router: Final = deferred_router(prefix="/api/v1/repositories", tags=["events"])
HEARTBEAT_SECONDS: Final = 15.0
LISTENING: Final = "retry: 2000\n\n"  # sent first: what happens from now on is told
SEND_SECONDS: Final = 60.0  # in which a client takes what it was sent


class EventStream(Response):
    """Server-sent events until the client goes, or no longer takes what it is sent."""

    media_type = "text/event-stream"

    def __init__(self, parts: AsyncIterator[str], status_code: int = 200) -> None:
        super().__init__(status_code=status_code)  # FastAPI looks for the argument
        self._parts = parts
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # else nginx holds them back
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts:
            async with asyncio.timeout(SEND_SECONDS):
                body = part.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.get(
    "/{repository:repository}/-/events",
    summary="Events as they happen",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
)
async def stream_events(
    request: Request,
    access: AccessOf,
    service: ServiceOf,
    last_event_id: Annotated[
        str | None,
        Header(max_length=64, description="Id of the last event that was received."),
    ] = None,
    after: Annotated[
        str | None, Query(max_length=64, description="As Last-Event-ID, for who cannot send it.")
    ] = None,
    prefix: Annotated[
        str, Query(max_length=1024, description="Of refs that begin so.", examples=["heads/"])
    ] = "",
) -> EventStream:
    """Moves of refs that the caller may read: branches, tags, versions, aliases, runs, requests.

    Each event's `id` is its place in the log; a client that comes back sends the last one as
    `Last-Event-ID` and misses nothing. A `dropped` event says why a stream ends.
    """
    last = last_event_id or after
    since = None if last is None else parse_event_id(last)

    async def check() -> None:
        await require_unchanged(request, access)

    async def parts() -> AsyncIterator[str]:
        async with service.events.subscribe(access.served) as subscription:
            yield LISTENING
            if since is not None:
                async for events in subscription.replay(since):
                    await check()
                    yield _shown(access, events, prefix)
            async for events in _live(subscription, check):
                yield _shown(access, events, prefix) if events else ": still here\n\n"

    return EventStream(_with_endings(parts(), partial(told, request)))


async def _live(
    subscription: Subscription, check: Callable[[], Awaitable[None]]
) -> AsyncIterator[tuple[Event, ...]]:
    """Events as they come; none when nothing happened for a while. `check` is asked before each."""
    while True:
        events = await subscription.next(HEARTBEAT_SECONDS)
        await check()
        yield events


async def _with_endings(
    parts: AsyncIterator[str], words: Callable[[Exception], str]
) -> AsyncIterator[str]:
    try:
        async for part in parts:
            if part:
                yield part
    except (Dropped, Error) as why:
        kind = why.kind if isinstance(why, Error) else "dropped"
        body = msgspec.json.encode({"kind": kind, "detail": words(why)}).decode()
        yield f"event: dropped\ndata: {body}\n\n"


def _shown(access: RepositoryAccess, events: Iterable[Event], prefix: str) -> str:
    """Events that the caller may read, as they are sent."""
    return "".join(
        f"id: {event.id}\nevent: {event.type}\ndata: {msgspec.json.encode(event).decode()}\n\n"
        for event in events
        if event.ref.startswith(prefix) and access.may(Action.READ, event.ref)
    )
