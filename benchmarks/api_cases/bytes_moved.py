"""Bytes over sockets: clients that read and drop what comes, or send what they have."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

from tensorrepo.repo.objects.envelope import EncodedObject

_READ_BYTES = 1 << 20


def put(port: int, path: str, token: str, encoded: EncodedObject, start: int, stop: int) -> None:
    """One PUT of bytes ``[start, stop)`` of an object."""
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{login}Content-Length: {stop - start}\r\n"
    with closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(f"{head}Connection: close\r\n\r\n".encode())
        at = 0
        for part in encoded.parts:
            view = memoryview(part).cast("B")
            piece = view[max(start - at, 0) : max(stop - at, 0)]
            if piece.nbytes:
                link.sendall(piece)
            at += view.nbytes
        answer = link.recv(65536)
        assert answer.startswith((b"HTTP/1.1 20",)), answer[:400]


def fetch(port: int, path: str, token: str, size: int, connections: int) -> None:
    """Read one file so many times at once."""
    threads = [
        threading.Thread(target=read, args=(port, path, token, size)) for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read(port: int, path: str, token: str, size: int) -> None:
    """Read one answer to its end, and drop it."""
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    buffer = bytearray(_READ_BYTES)
    with closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{login}Connection: close\r\n\r\n".encode())
        total = 0
        while got := link.recv_into(buffer):
            total += got
    assert total >= size, f"{total} of {size} bytes came: {bytes(buffer[:300])!r}"
