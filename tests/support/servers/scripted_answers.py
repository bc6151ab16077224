"""A server that answers every request with the same bytes, piece by piece."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def answering(
    pieces: Sequence[bytes],
    *,
    closes: bool,
    tls: ssl.SSLContext | None = None,
    connections: int = 1,
) -> Iterator[tuple[str, list[bytes]]]:
    """It takes so many connections, one after the other, and sends `pieces` to each request."""
    asked = list[bytes]()

    def serve() -> None:
        plain = listener.accept()[0]
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with (
            suppress(OSError),  # a client that does not trust it, or leaves before the end
            plain if tls is None else tls.wrap_socket(plain, server_side=True) as found,
        ):
            while request := _request(found):
                asked.append(request)
                for piece in pieces:
                    found.sendall(piece)
                    threading.Event().wait(0.002)  # so that they come apart
                if closes:
                    return

    def serve_all() -> None:
        for _ in range(connections):
            serve()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_all, daemon=True)
        thread.start()
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(10)


def _request(found: socket.socket) -> bytes:
    """The whole of the next request; empty when the client left."""
    request = found.recv(1 << 16)
    length = re.search(rb"\r\nContent-Length: ([0-9]+)\r\n", request)
    body_bytes = 0 if length is None else int(length[1])
    while request and len(request.partition(b"\r\n\r\n")[2]) < body_bytes:
        request += found.recv(1 << 16)
    return request
