"""HTTP/1.1 connection for ranged GETs: one request at a time, little of the interpreter for each.

Python's `http.client` parses headers as mail, and hands a body on in the pieces that the network
brings; for each, a thread waits for the interpreter, which others compute with. Here the kernel
waits for the whole body (``MSG_WAITALL``), unless there is TLS, and four headers are looked at.

Not for general use: whatever is not a plain 206 of the expected length is left to the caller.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
from typing import Final
from urllib.parse import urlsplit

_HEAD_BYTES: Final = 4096  # asked for at first: with TLS, what comes of the body with it is copied
_MOST_HEAD_BYTES: Final = 64 << 10
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})[ \r]")
_VISIBLE: Final = re.compile(r"[!-~]+")  # all that may stand in a request's line
_TIMEVAL: Final = struct.Struct("@ll")  # struct timeval of 64-bit Linux and macOS


class RangeConnection:
    """A connection to one origin. Not thread-safe.

    Args:
        origin: ``http://host[:port]`` or ``https://host[:port]``.
        timeout_seconds: for connecting, and for each wait for more bytes.
        tls: how the server is proved; None where the origin is without TLS.

    Raises:
        OSError: nobody answers there, or the server is not proved.
        ValueError: that is no origin.
    """

    def __init__(self, origin: str, timeout_seconds: float, tls: ssl.SSLContext | None) -> None:
        parts = urlsplit(origin)
        if not parts.hostname or parts.username is not None or not _VISIBLE.fullmatch(origin):
            raise ValueError("an origin is a scheme, a host and perhaps a port")
        self.reusable = True  # whether another request may follow
        self._host = parts.netloc
        self._waits_for_all = 0
        port = parts.port or (80 if tls is None else 443)
        self._socket = socket.create_connection((parts.hostname, port), timeout_seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=parts.hostname)
            else:
                self._wait_in_kernel(timeout_seconds)
        except BaseException:
            self._socket.close()
            raise

    def _wait_in_kernel(self, timeout_seconds: float) -> None:
        """Have the kernel keep the timeout: a socket of Python's with one never waits for all."""
        self._socket.settimeout(None)
        timeval = _TIMEVAL.pack(int(timeout_seconds), int(timeout_seconds % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, timeval)
        self._waits_for_all = socket.MSG_WAITALL

    def fetch(self, target: str, start: int, stop: int) -> memoryview | None:
        """Exactly bytes ``[start, stop)`` of `target`; None where the answer is something else.

        Raises:
            OSError: the connection is of no use any more.
        """
        if not _VISIBLE.fullmatch(target):
            return None
        self._socket.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n"
            f"Range: bytes={start}-{stop - 1}\r\n\r\n".encode("ascii")
        )
        self.reusable = False  # until the whole answer is read
        head, begun = self._read_head()
        status = _STATUS.match(head)
        if status is None:
            raise ConnectionError("the answer is not HTTP")
        fields = _fields(head)
        if (
            status[2] != b"206"
            or b"transfer-encoding" in fields
            or fields.get(b"content-length") != str(stop - start).encode()
            or len(begun) > stop - start
        ):
            return None
        data = self._read_body(begun, stop - start)
        closes = b"close" in fields.get(b"connection", b"").lower()
        self.reusable = status[1] == b"1" and not closes
        return data

    def close(self) -> None:
        """Close it; again is no error."""
        self._socket.close()

    def _read_head(self) -> tuple[bytes, bytes]:
        """Status line and fields of the answer, and what came of its body with them."""
        told = b""
        if self._waits_for_all:  # the body is left where it is, for a single call
            end = self._socket.recv(_HEAD_BYTES, socket.MSG_PEEK).find(b"\r\n\r\n")
            if end >= 0:
                told = self._socket.recv(end + 4)
        while (end := told.find(b"\r\n\r\n")) < 0:
            if len(told) > _MOST_HEAD_BYTES:
                raise ConnectionError("the answer's head does not end")
            more = self._socket.recv(_HEAD_BYTES)
            if not more:
                raise ConnectionError("the answer ended within its head")
            told += more
        return told[: end + 2], told[end + 4 :]

    def _read_body(self, begun: bytes, size: int) -> memoryview:
        """A body of `size` bytes of which some were read."""
        if self._waits_for_all and not begun:
            # Fresh bytes are not set to zero first, which would be done holding the interpreter.
            begun = self._socket.recv(size, self._waits_for_all)
            if len(begun) == size:
                return memoryview(begun)
            if not begun:
                raise ConnectionError("the answer ended before its body")
        data = memoryview(bytearray(size))
        data[: len(begun)] = begun
        filled = len(begun)
        while filled < size:
            count = self._socket.recv_into(data[filled:], 0, self._waits_for_all)
            if not count:
                raise ConnectionError("the answer ended before its length")
            filled += count
        return data


def _fields(head: bytes) -> dict[bytes, bytes]:
    """Header fields by lower-case name; of a repeated one, all values joined by commas."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            name = name.lower()
            value = value.strip()
            fields[name] = fields[name] + b"," + value if name in fields else value
    return fields
