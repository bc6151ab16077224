"""A link to a server on this machine: a TCP proxy with a rate that counts what crosses it.

Counts lie in a file that is mapped, so that who kills its client can look at them at any moment.
Buffers are small: what the proxy has sent and nobody read counts as fetched.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import threading
import time
from pathlib import Path
from struct import Struct
from typing import Self

COUNTS = Struct("<QQ")  # bytes to the client, bytes from the client
_STEP_BYTES = 64 << 10


class MeteredLink:
    """The proxy on a thread of its own; a context manager.

    Args:
        port: where the server listens.
        counts: file of the counts.
        bytes_per_second: rate, of all connections together and of each direction.
    """

    def __init__(self, port: int, counts: Path, *, bytes_per_second: float) -> None:
        counts.write_bytes(bytes(COUNTS.size))
        with counts.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), COUNTS.size)
        self._server_port, self._rate = port, bytes_per_second
        self._free_at = [0.0, 0.0]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = socket.create_server(("127.0.0.1", 0))
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # connections inherit them
            listener.setsockopt(socket.SOL_SOCKET, option, _STEP_BYTES)
        self.port = listener.getsockname()[1]
        server = await asyncio.start_server(self._connect, sock=listener)
        self._started.set()
        await self._stop.wait()
        server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        ways = (self._pass(server, writer, 0), self._pass(reader, to_server, 1))
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int
    ) -> None:
        writer.transport.set_write_buffer_limits(high=_STEP_BYTES)
        try:
            while data := await reader.read(_STEP_BYTES):
                now = time.monotonic()
                begins = max(now, self._free_at[way])
                self._free_at[way] = begins + len(data) / self._rate
                if begins > now:
                    await asyncio.sleep(begins - now)
                self._count(way, len(data))
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def _count(self, way: int, size_bytes: int) -> None:
        found = list(COUNTS.unpack_from(self._counts))
        found[way] += size_bytes
        COUNTS.pack_into(self._counts, 0, *found)
