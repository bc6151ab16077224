"""HTTP protocol with limits for who sends headers slowly, or without end.

uvicorn waits for ever for the first request of a connection, and takes headers of any size. It
writes the headers of an answer by themselves, too, which here go with the body.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES: Final = 64 << 10
HEADER_SECONDS: Final = 20.0
MOST_JOINED_BYTES = 64 << 10  # more is sent by itself rather than copied
_ANSWER: Final = b"HTTP/1."


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that is closed unless its request's headers come soon, and are not too large."""

    header_seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            if self._deadline is None:
                self._expect_headers()
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MAX_HEADER_BYTES:
            self.send_400_response("The headers of this request are too large.")

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._forget_deadline()
        self._in_headers = False
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self.headers.clear()  # before anything reads them; the answer is the connection's end
            self.transport.abort()
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        super().on_message_complete()

    _in_headers = True

    def _expect_headers(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class JoinedWrites:
    """A transport that sends the headers of an answer together with what is written next.

    Each send of a socket is a call of the kernel, and may have the client wake once more. Headers
    wait for nothing but the end of this turn of the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: bytes | None = None
        self._flushing: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send `data` in its turn."""
        if self._held is not None and len(data) < MOST_JOINED_BYTES:
            data = self._taken() + data
        elif self._held is not None:
            self._flush()
        elif data.startswith(_ANSWER) and len(data) < MOST_JOINED_BYTES:
            self._held, self._flushing = data, self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close once all is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held is not None:
            held = self._taken()
            if not self._transport.is_closing():
                self._transport.write(held)

    def _taken(self) -> bytes:
        """What is held, and is no longer."""
        held, self._held = self._held, None
        assert held is not None, "asked before"
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        return held
