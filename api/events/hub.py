"""Event streams: one poller a repository, and a bounded queue for each who listens.

Nobody holds a thread while waiting. A poller is a task of the event loop that asks for the newest
view, on the pool of threads, at most as often as a view may be old; it lives while somebody
listens. Who reads too slowly is told so and dropped, and resumes by the id of the last event.

`EventHub` belongs to one event loop; only `close` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Final

from starlette.concurrency import run_in_threadpool

from tensorrepo.api.events.occurrences import Event, EventId, events_after
from tensorrepo.api.repositories.opening import FRESH_SECONDS, ServedRepository
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, Error
from tensorrepo.repo.log.reader import LogView

QUEUED_EVENTS: Final = 1000
MAX_REPLAYED_RECORDS: Final = 100_000
_BATCH_RECORDS: Final = 256
_LOGGER = logging.getLogger(__name__)


class Dropped(Exception):
    """A subscription ended; the message, for the client, says why."""


@dataclass(eq=False, slots=True)
class Subscription:
    """What one listener has not read yet; it begins behind `view`."""

    served: ServedRepository
    view: LogView
    queue: asyncio.Queue[tuple[Event, ...]]
    ended: str = ""

    async def next(self, timeout_seconds: float) -> tuple[Event, ...]:
        """The next events; none when nothing happened for so long. Raises Dropped."""
        if self.ended and self.queue.empty():
            raise Dropped(self.ended)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.queue.get()
        except TimeoutError:
            return ()

    def offer(self, events: tuple[Event, ...]) -> None:
        try:
            self.queue.put_nowait(events)
        except asyncio.QueueFull:
            self.end("this client reads too slowly: go on with Last-Event-ID")

    def end(self, why: str) -> None:
        self.ended = self.ended or why
        if self.queue.empty():
            self.queue.put_nowait(())  # wakes who waits

    async def replay(self, after: EventId) -> AsyncIterator[tuple[Event, ...]]:
        """Events behind `after`, up to where the queue goes on, read in batches on other threads.

        Raises:
            CommitExpired: it is too long ago, or lies in the future.
        """
        last = self.view.generation
        if not last - MAX_REPLAYED_RECORDS <= after.generation <= last:
            raise CommitExpired(
                f"events behind {after} cannot be told: the log is at {last}, and at most "
                f"{MAX_REPLAYED_RECORDS} records are read again. Begin without Last-Event-ID."
            )
        log = self.served.core.log
        start = max(0, after.generation - 1)
        view = await run_in_threadpool(log.view_at, start)
        while view.generation < last:
            stop = min(last, view.generation + _BATCH_RECORDS)
            view, events = await run_in_threadpool(_read, self.served, view, stop)
            yield tuple(event for event in events if _is_behind(event, after))


@dataclass(eq=False, slots=True)
class _Channel:
    served: ServedRepository
    view: LogView
    listeners: set[Subscription] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class EventHub:
    """All event streams of this process."""

    def __init__(self, *, poll_seconds: float = FRESH_SECONDS) -> None:
        self._poll_seconds = poll_seconds
        self._channels: dict[ServedRepository, _Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        """Number of open streams."""
        return sum(len(channel.listeners) for channel in self._channels.values())

    @asynccontextmanager
    async def subscribe(self, served: ServedRepository) -> AsyncIterator[Subscription]:
        """Listen to a repository from now on, until the block ends."""
        self._loop = asyncio.get_running_loop()
        view = served.known_view
        if view is None:
            view = await run_in_threadpool(_view, served)
        channel = self._channels.setdefault(served, _Channel(served, view))
        made = Subscription(served, channel.view, asyncio.Queue(QUEUED_EVENTS))
        channel.listeners.add(made)
        if self._closed:
            made.end("the service is ending: come back")
        if channel.task is None:
            channel.task = asyncio.create_task(self._poll(channel), name="events")
        try:
            yield made
        finally:
            channel.listeners.discard(made)
            if not channel.listeners:
                self._channels.pop(served, None)
                channel.task.cancel()

    def close(self) -> None:
        """End all streams, so that the server need not wait for them. From any thread."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        self._each(lambda one: one.end("the service is ending: come back"))

    def _each(self, do: Callable[[Subscription], None]) -> None:
        for channel in tuple(self._channels.values()):
            for one in tuple(channel.listeners):
                do(one)

    async def _poll(self, channel: _Channel) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                channel.view, events = await run_in_threadpool(_news, channel.served, channel.view)
            except Error as error:  # the store does not answer: the next turn may
                _LOGGER.warning("events of %s: %s", channel.served.name, error)
                continue
            except Exception:  # whatever it is, the next turn is taken: nobody starts this again
                _LOGGER.exception("events of %s", channel.served.name)
                continue
            if events:
                for one in tuple(channel.listeners):
                    one.offer(events)


def _view(served: ServedRepository) -> LogView:
    return served.view


def _news(served: ServedRepository, view: LogView) -> tuple[LogView, tuple[Event, ...]]:
    newest = served.view
    if newest.generation <= view.generation:
        return view, ()
    return _read(served, view, newest.generation)


def _read(served: ServedRepository, view: LogView, stop: int) -> tuple[LogView, tuple[Event, ...]]:
    found: list[Event] = []
    for after, events in events_after(served.core.log, view, stop):
        view = after
        found += events
    return view, tuple(found)


def _is_behind(event: Event, after: EventId) -> bool:
    generation, _, index = event.id.partition(":")
    return EventId(int(generation), int(index)) > after
