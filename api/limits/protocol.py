"""HTTP protocol with limits for who sends slowly, or without end, and for who does not read.

uvicorn waits for ever for the first request of a connection, for the rest of a body that was
answered already, and for clients that take no bytes. It keeps headers and trailers of any size, and
connections up to the last descriptor.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tensorrepo.api.limits.bodies import MIN_BYTES_PER_SECOND

MAX_HEADER_BYTES: Final = 64 << 10
HEADER_SECONDS: Final = 20.0
READING_SECONDS: Final = 300.0
_UNREAD_BYTES: Final = 64 << 20  # of a body, after its answer: who sends them reads that first
_MOST_QUEUED: Final = 64  # requests that come before the answer to the first
_SHED_SHARE: Final = 16  # of all connections, which are closed together: to find them takes a walk
# Share of descriptors that connections may have: a download has a file open beside its own.
_SHARE: Final = (3, 8)


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that is closed unless headers come soon, are small, and answers are read.

    Where there are as many connections as may be, those that wait for a request, or for the rest
    of one that was answered, make room for new ones: the longest first.
    """

    header_seconds = HEADER_SECONDS
    reading_seconds = READING_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _unread_bytes = 0
    _running: RequestResponseCycle | None = None
    waits_since = 0.0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room(self.limit_concurrency)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._forget_reading()
        self._tell_running()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers and self._deadline is None:
            self._expect_headers()
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            if self._in_headers:
                self.send_400_response("The headers of this request are too large.")
            else:  # what stands between chunks or behind the last, beside an answer
                self._abort()
        elif self._in_headers and self.is_waiting and self._deadline is None:
            self._expect_headers()  # the rest of a request came that was answered before

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is asked of the service here."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def can_end(self) -> bool:
        """Whether nobody misses it: nothing is asked, and all answers were taken."""
        return self.is_waiting and not self.transport.get_write_buffer_size()

    def on_message_begin(self) -> None:
        self._header_bytes = self._unread_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # else a trailer, which nothing here reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._forget_deadline()
        self._in_headers = False
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self.headers.clear()  # before anything reads them; the answer is the connection's end
            self._abort()
            return
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_QUEUED:
            self._abort()

    def on_chunk_header(self) -> None:
        """A chunk begins: what came before it were neither headers nor trailers."""
        self._header_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        if self.cycle.response_complete:
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES:
                self._abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        self._forget_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_waiting and not self._in_headers:
            self._expect_headers()  # the rest of its body may come until then

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._expect_reading()

    def resume_writing(self) -> None:
        self._forget_reading()
        super().resume_writing()

    def _make_room(self, most: int) -> None:
        every = cast("set[BoundedHttpProtocol]", self.connections)
        waiting = [one for one in every if one.can_end]
        waiting.sort(key=lambda one: one.waits_since)
        for one in waiting[: max(1, most // _SHED_SHARE)]:
            if one is not self:
                self.connections.discard(one)  # which its end does too late for those that come now
                one.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _abort(self) -> None:
        """End the connection at once; whatever runs for it may write no more."""
        self._tell_running()
        self.transport.abort()

    def _tell_running(self) -> None:
        # uvicorn tells the request that came last, which may not be the one that runs.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
            self.flow.resume_writing()

    def _expect_headers(self) -> None:
        self._forget_deadline()
        self.waits_since = time.monotonic()
        self._deadline = self.loop.call_later(self.header_seconds, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expect_reading(self) -> None:
        seconds, left = self.reading_seconds, self._untaken_bytes()
        self._reading = self.loop.call_later(seconds, self._look_at_reading, left)

    def _look_at_reading(self, before: int) -> None:
        taken = before - self._untaken_bytes()
        if taken < MIN_BYTES_PER_SECOND * self.reading_seconds:
            # To close it would wait for who does not read; so would the system, with what it has.
            connection = self.transport.get_extra_info("socket")
            with suppress(OSError, AttributeError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._abort()
        else:
            self._expect_reading()

    def _untaken_bytes(self) -> int:
        """Bytes that were sent and that the client's machine has not taken."""
        return int(self.transport.get_write_buffer_size()) + _queued_bytes(self.transport)

    def _forget_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def _queued_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the system has of a connection's, not acknowledged; 0 where it does not say."""
    connection = transport.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        told = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("=i", told)[0])
    return 0


def most_connections(
    wanted: int, limits: Callable[[int], tuple[int, int]] = resource.getrlimit
) -> int:
    """Connections that there are descriptors for, at most `wanted`."""
    soft = limits(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft * _SHARE[0] // _SHARE[1]))


def allow_descriptors(connections: int) -> None:
    """Let this process have descriptors for so many connections, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = -(-connections * _SHARE[1] // _SHARE[0])
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
