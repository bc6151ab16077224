"""Downloads by clients that read slowly: 10 KB a second each, in one thread for all of them."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from api_cases.served import Server

BYTES_PER_SECOND = 10_000
_TURN_SECONDS = 0.5
_RECEIVE_BYTES = 8 << 10  # the kernel's room for what nobody has read


@dataclass(slots=True)
class Got:
    """What has come to all readers."""

    bytes: int = 0
    began: float = field(default_factory=time.monotonic)

    def per_second(self) -> float:
        return self.bytes / (time.monotonic() - self.began)


@contextmanager
def slow_readers(server: Server, path: str, count: int) -> Iterator[Got]:
    """So many downloads of one thing, which go on until the block ends."""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    is_over = threading.Event()
    with ExitStack() as stack:
        links = [stack.enter_context(_connected(server.port)) for _ in range(count)]
        for link in links:
            link.sendall(head.encode())
        for link in links:
            assert link.recv(512).startswith(b"HTTP/1.1 200"), "it is there"
        got = Got()
        thread = threading.Thread(target=_read, args=(links, got, is_over))
        thread.start()
        try:
            yield got
        finally:
            is_over.set()
            thread.join()


def _connected(port: int) -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)  # before it is connected
    link.connect(("127.0.0.1", port))
    return link


def _read(links: list[socket.socket], got: Got, is_over: threading.Event) -> None:
    share = int(BYTES_PER_SECOND * _TURN_SECONDS)
    with selectors.DefaultSelector() as ready:
        for link in links:
            ready.register(link, selectors.EVENT_READ)
        while not is_over.wait(_TURN_SECONDS):
            for key, _ in ready.select(0):
                assert isinstance(key.fileobj, socket.socket), "as registered"
                got.bytes += len(key.fileobj.recv(share))
