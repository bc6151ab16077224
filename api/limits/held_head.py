"""Heads of answers sent with their bodies: by one call of the system instead of two.

uvicorn writes a head as soon as it is known. Around each call a thread gives the interpreter away,
and waits for it again while others compute.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

_JOINED_BYTES: Final = 64 << 10  # of a body: a larger one would be copied for nothing


class HeldHead:
    """A transport that holds the head of an answer until its body comes, or the loop goes on.

    All else is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`, and before it what is held; a head waits for what follows it."""
        held, self._held = self._held, None
        if held is None and bytes(data[:5]) == b"HTTP/":
            self._held = bytes(data)
            self._loop.call_soon(self._send_held)
        elif held is None:
            self._transport.write(data)
        elif len(data) <= _JOINED_BYTES:
            self._transport.write(b"".join((held, data)))
        else:
            self._transport.write(held)
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held, then close."""
        self._send_held()
        self._transport.close()

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._transport.write(held)
