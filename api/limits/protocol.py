"""HTTP protocol with limits for who sends headers slowly, or without end.

uvicorn waits for ever for the first request of a connection, and takes headers of any size.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES: Final = 64 << 10
HEADER_SECONDS: Final = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection that is closed unless its request's headers come soon, and are not too large."""

    header_seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
