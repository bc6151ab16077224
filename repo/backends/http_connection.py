"""HTTP/1.1 connection for ranged GETs and small calls: one at a time, each with little of Python.

Python's `http.client` parses headers as mail, and hands a body on in the pieces that the network
brings; for each, a thread waits for the interpreter, which others compute with. Here the kernel
waits for the whole body (``MSG_WAITALL``), unless there is TLS, and four headers are looked at.

A body that does not say its length at once is left to `http.client`; `fetch` leaves whatever is
not a plain 206 of the expected length to the caller. No proxies, no redirects, no cookies.
"""

from __future__ import annotations

import http.client
import io
import re
import select
import socket
import ssl
import struct
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

_HEAD_BYTES: Final = 4096  # asked for at first: with TLS, what comes of the body with it is copied
_MOST_HEAD_BYTES: Final = 64 << 10
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})[ \r]")
_VISIBLE: Final = re.compile(r"[!-~]+")  # all that may stand in a request's line
_TIMEVAL: Final = struct.Struct("@ll")  # struct timeval of 64-bit Linux and macOS
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_BODILESS: Final = frozenset({b"204", b"304"})
_ANSWER_BYTES: Final = 32 << 10  # asked for at first: the whole of nearly all small answers
_TOLD_BYTES: Final = 4 << 20  # of a body, taken at once where a server may say what it likes
_JOINED_BYTES: Final = 64 << 10  # up to which head and body are sent as one


class ProtocolError(ConnectionError):
    """The server does not speak HTTP, or its answer ended early."""


class HttpAnswer(NamedTuple):
    """Status, header fields by lower-case name, and body as it was sent."""

    status: int
    fields: dict[bytes, bytes]
    body: bytes


class HttpConnection:
    """A connection to one origin. Not thread-safe.

    Args:
        origin: ``http://host[:port]`` or ``https://host[:port]``.
        timeout_seconds: for each wait for more bytes.
        tls: how the server is proved; None where the origin is without TLS.
        connect_seconds: for connecting; None: as long as for bytes.

    Raises:
        OSError: nobody answers there, or the server is not proved.
        ValueError: that is no origin.
    """

    def __init__(
        self,
        origin: str,
        timeout_seconds: float,
        tls: ssl.SSLContext | None,
        connect_seconds: float | None = None,
    ) -> None:
        parts = urlsplit(origin)
        if not parts.hostname or parts.username is not None or not _VISIBLE.fullmatch(origin):
            raise ValueError("an origin is a scheme, a host and perhaps a port")
        self.reusable = True  # whether another request may follow
        self._host = parts.netloc
        self._waits_for_all = 0
        port = parts.port or (80 if tls is None else 443)
        connecting = timeout_seconds if connect_seconds is None else connect_seconds
        self._socket = socket.create_connection((parts.hostname, port), connecting)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=parts.hostname)
                self._socket.settimeout(timeout_seconds)
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
        status, head, begun = self._read_head()
        fields = _fields(head)
        if (
            status[2] != b"206"
            or b"transfer-encoding" in fields
            or fields.get(b"content-length") != str(stop - start).encode()
            or len(begun) > stop - start
        ):
            return None
        data = self._read_body(begun, stop - start)
        self.reusable = status[1] == b"1" and not _closes(fields)
        return data

    def exchange(self, method: str, head: bytes, body: bytes) -> HttpAnswer:
        """Send one request, and read the answer to it, of any form.

        Args:
            method: the request's; not HEAD or CONNECT, whose answers end elsewhere.
            head: the request's line and its fields, with the empty line that ends them.
            body: what they say follows.

        Raises:
            OSError: the connection is of no use any more; ProtocolError is one.
        """
        self.reusable = False  # until the whole answer is read
        is_sent = self._send(head, body)
        status, answer, begun = self._read_head(_ANSWER_BYTES)
        while status[2][:1] == b"1":  # what is said in between
            status, answer, begun = self._read_head(_ANSWER_BYTES, begun)
        fields = _fields(answer)
        size = _plain_length(status[2], fields)
        if size is None:
            return self._read_other(method, answer + b"\r\n" + begun, fields)
        data = begun[:size] if len(begun) >= size else self._read_told(begun, size)
        stays = status[1] == b"1" and not _closes(fields)
        self.reusable = stays and is_sent and len(begun) <= size
        return HttpAnswer(int(status[2]), fields, data)

    def is_alive(self) -> bool:
        """Whether a request may still be sent: a server that left, or spoke unasked, is readable.

        Only between two requests.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close it; again is no error."""
        self._socket.close()

    def _send(self, head: bytes, body: bytes) -> bool:
        """Whether all was sent: who refuses a large body may answer, and leave, before that."""
        try:
            if len(body) <= _JOINED_BYTES:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _read_head(
        self, at_first: int = 0, told: bytes = b""
    ) -> tuple[re.Match[bytes], bytes, bytes]:
        """Status, its line with the fields of the answer, and what came of its body with them.

        Args:
            at_first: bytes that are asked for; 0: no more than the head, if that can be told.
            told: what came of the answer already.
        """
        if not at_first and self._waits_for_all:  # the body is left where it is, for a single call
            end = self._socket.recv(_HEAD_BYTES, socket.MSG_PEEK).find(b"\r\n\r\n")
            if end >= 0:
                told = self._socket.recv(end + 4)
        while (end := told.find(b"\r\n\r\n")) < 0:
            if len(told) > _MOST_HEAD_BYTES:
                raise ProtocolError("the answer's head does not end")
            more = self._socket.recv(at_first or _HEAD_BYTES)
            if not more:
                raise ProtocolError("the answer ended within its head")
            told += more
        status = _STATUS.match(told)
        if status is None:
            raise ProtocolError("the answer is not HTTP")
        return status, told[: end + 2], told[end + 4 :]

    def _read_other(self, method: str, told: bytes, fields: dict[bytes, bytes]) -> HttpAnswer:
        """An answer in chunks, without a length or without a body, of which some was read."""
        source = _Replayed(told, self._socket)
        answer = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]
        try:
            answer.begin()
            data = answer.read()
        except (http.client.HTTPException, ValueError) as error:
            raise ProtocolError(f"the answer cannot be read: {type(error).__name__}") from error
        self.reusable = not answer.will_close and not source.left
        return HttpAnswer(answer.status, fields, data)

    def _read_told(self, begun: bytes, size: int) -> bytes:
        """As `_read_body`, of a size that the server alone names: memory is taken as bytes come."""
        pieces = (
            self._read_body(b"", min(size - start, _TOLD_BYTES))
            for start in range(len(begun), size, _TOLD_BYTES)
        )
        return b"".join([begun, *pieces])

    def _read_body(self, begun: bytes, size: int) -> memoryview:
        """A body of `size` bytes of which some were read."""
        if self._waits_for_all and not begun:
            # Fresh bytes are not set to zero first, which would be done holding the interpreter.
            begun = self._socket.recv(size, self._waits_for_all)
            if len(begun) == size:
                return memoryview(begun)
            if not begun:
                raise ProtocolError("the answer ended before its body")
        data = memoryview(bytearray(size))
        data[: len(begun)] = begun
        filled = len(begun)
        while filled < size:
            count = self._socket.recv_into(data[filled:], 0, self._waits_for_all)
            if not count:
                raise ProtocolError("the answer ended before its length")
            filled += count
        return data


class _Replayed(io.RawIOBase):
    """What a socket gives, after what was read of it already: the socket of an `HTTPResponse`."""

    def __init__(self, told: bytes, follows: socket.socket) -> None:
        self.left, self._socket = told, follows

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The bytes, as `HTTPResponse` asks for them."""
        return io.BufferedReader(self, 1)  # which reads nothing that is behind the answer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        if not self.left:
            return self._socket.recv_into(view)
        count = min(len(view), len(self.left))
        view[:count], self.left = self.left[:count], self.left[count:]
        return count


def _plain_length(status: bytes, fields: dict[bytes, bytes]) -> int | None:
    """Bytes of a body that simply follows; None: it has another form, or there is none.

    Raises:
        ProtocolError: it says its length, and that is none.
    """
    told = fields.get(b"content-length")
    if told is None or b"transfer-encoding" in fields or status in _BODILESS:
        return None
    if not _LENGTH.fullmatch(told):
        raise ProtocolError("the answer's length is no number")
    return int(told)


def _closes(fields: dict[bytes, bytes]) -> bool:
    return b"close" in fields.get(b"connection", b"").lower()


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
