"""Streams of live metrics: one poller for all, and no thread for any that waits.

While somebody listens, a task of the event loop asks the database twice a second which runs have
new points: one query for all runs. What is new of a run is read once, for all who listen to it.
`LiveHub` belongs to one event loop; only `close` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import Final

from starlette.concurrency import run_in_threadpool

from tensorrepo.api.live.store import LivePoints, PendingPoints, RunKey
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error

POLL_SECONDS: Final = 0.5
QUEUED: Final = 100  # of one listener
MOST_AT_ONCE: Final = 1 << 16  # points
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """Nothing more comes: the run ended, or `why` tells otherwise."""

    why: str = ""


LiveNews = PendingPoints | LiveEnd


@dataclass(eq=False, slots=True)
class _Listeners:
    """Who listens to one run, and the id of the last points that they were given."""

    last_id: int
    queues: set[asyncio.Queue[LiveNews]] = field(default_factory=set)


class LiveHub:
    """All streams of live metrics of this process."""

    def __init__(self, points: LivePoints, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._points, self._poll_seconds = points, poll_seconds
        self._runs: dict[RunKey, _Listeners] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def subscribe(self, key: RunKey) -> AsyncIterator[tuple[asyncio.Queue[LiveNews], int]]:
        """Listen to a run until the block ends: what comes behind an id, and that id."""
        self._loop = asyncio.get_running_loop()
        known = self._runs.get(key)
        if known is None:
            newest = await run_in_threadpool(self._points.newest, [key])
            known = self._runs.setdefault(key, _Listeners(newest[key][0]))
        queue: asyncio.Queue[LiveNews] = asyncio.Queue(QUEUED)
        known.queues.add(queue)
        if self._closed:
            queue.put_nowait(LiveEnd("the service is ending: come back"))
        if self._task is None:
            self._task = asyncio.create_task(self._poll(), name="live-metrics")
        try:
            yield queue, known.last_id
        finally:
            known.queues.discard(queue)
            if not known.queues:
                self._runs.pop(key, None)
            if not self._runs and self._task is not None:
                self._task.cancel()
                self._task = None

    def close(self) -> None:
        """End all streams, so that the server need not wait for them. From any thread."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for listeners in tuple(self._runs.values()):
            _give(listeners.queues, LiveEnd("the service is ending: come back"))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                newest = await run_in_threadpool(self._points.newest, list(self._runs))
                for key, (last_id, has_ended) in newest.items():
                    await self._tell(key, last_id, has_ended=has_ended)
            except Error as error:  # the database does not answer: the next turn may
                _LOGGER.warning("streams of live metrics: %s", error)
            except Exception:  # whatever it is, the next turn is taken: nobody starts this again
                _LOGGER.exception("streams of live metrics")

    async def _tell(self, key: RunKey, last_id: int, *, has_ended: bool) -> None:
        listeners = self._runs.get(key)
        while listeners is not None and last_id > listeners.last_id:
            after = listeners.last_id
            news = await run_in_threadpool(self._points.pending, key, after, most=MOST_AT_ONCE)
            if news.last_id == after:
                break
            listeners.last_id = news.last_id
            _give(listeners.queues, news)
        if listeners is not None and has_ended:
            _give(listeners.queues, LiveEnd())


def _give(queues: Iterable[asyncio.Queue[LiveNews]], news: LiveNews) -> None:
    for queue in tuple(queues):
        if isinstance(news, LiveEnd) and queue.full():
            queue.get_nowait()
        try:
            queue.put_nowait(news)
        except asyncio.QueueFull:  # it reads too slowly: what it missed it asks for by its last id
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(LiveEnd("this client reads too slowly: go on with Last-Event-ID"))
