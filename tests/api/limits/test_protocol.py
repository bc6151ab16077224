"""Connections of clients that send slowly or without end, do not read, or are too many."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tensorrepo.api.limits.protocol import BoundedHttpProtocol, most_connections
from tests.support.servers.service import RunningService, running_service

HELD = 16  # connections of `small`
UNKNOWN = b"POST /api/v1/repositories HTTP/1.1\r\nHost: x\r\n"  # is answered before its body comes


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service of few connections."""
    with running_service(tmp_path_factory.mktemp("service"), max_connections=HELD) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "header_seconds", 0.3)
    monkeypatch.setattr(BoundedHttpProtocol, "reading_seconds", 0.3)


def _connected(running: RunningService, *, room_bytes: int | None = None) -> socket.socket:
    """A connection, with so much room for what is not read."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    connection = socket.socket()
    connection.settimeout(30)
    if room_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
    connection.connect((host, int(port)))
    return connection


def _is_ended(connection: socket.socket) -> bool:
    """Whether the server ends a connection; what it sent before is read."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def _taken(connection: socket.socket, block: bytes, most: int) -> int:
    """Bytes that the server takes, of blocks sent again and again, until it ends the connection."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(block)
            sent += len(block)
    except ConnectionError:
        pass
    return sent


@pytest.mark.parametrize(
    "block",
    [b"X-A: " + b"a" * 4000 + b"\r\n", b"a" * 4096],
    ids=["many trailers", "one trailer"],
)
def test_trailers_without_end_are_not_kept(small: RunningService, block: bytes) -> None:
    with _connected(small) as connection:
        connection.sendall(UNKNOWN + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-B: ")
        assert _taken(connection, block, 256 << 20) < 64 << 20


def test_an_extension_of_a_chunk_without_end_is_not_read(small: RunningService) -> None:
    with _connected(small) as connection:
        connection.sendall(UNKNOWN + b"Transfer-Encoding: chunked\r\n\r\n5;a=")
        assert _taken(connection, b"a" * 4096, 256 << 20) < 64 << 20


def test_trailers_are_no_headers_of_the_request(small: RunningService) -> None:
    asked = (
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nX-Request-Id: of-a-trailer\r\n\r\n"
    )
    with _connected(small) as connection:
        connection.sendall(asked)
        assert b"of-a-trailer" not in connection.recv(1 << 16)


def test_many_small_chunks_are_a_body(small: RunningService) -> None:
    head = b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    with _connected(small) as connection:
        chunks = b"1\r\n \r\n" * 100_000
        connection.sendall(
            head + b"Content-Type: application/json\r\n\r\n" + chunks + b"2\r\n{}\r\n0\r\n\r\n"
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_a_body_that_was_answered_is_not_waited_for(small: RunningService) -> None:
    with _connected(small) as connection:
        connection.sendall(UNKNOWN + b"Content-Length: 1000000\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")
        ended = False
        stop_at = time.monotonic() + 20
        while not ended and time.monotonic() < stop_at:
            ended = _taken(connection, b"a", 1) == 0
            time.sleep(0.02)
        assert ended


def test_a_body_that_was_answered_is_not_read_for_ever(
    small: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "header_seconds", 60.0)
    with _connected(small) as connection:
        connection.sendall(UNKNOWN + b"Content-Length: 100000000000\r\n\r\n")
        assert _taken(connection, b"a" * (1 << 20), 1 << 30) < 200 << 20


def test_a_connection_whose_body_came_after_its_answer_ends(small: RunningService) -> None:
    with _connected(small) as connection:
        connection.sendall(UNKNOWN + b"Content-Length: 4\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")
        connection.sendall(b"late")
        assert _is_ended(connection)


def test_who_does_not_read_an_answer_is_not_waited_for(
    small: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    asked = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {small.token}"
    with _connected(small, room_bytes=4096) as connection:
        connection.sendall(f"{asked}\r\n\r\n".encode() * 60)
        assert _is_reset(connection)
    assert "Traceback" not in caplog.text


def test_requests_without_answers_are_not_queued_without_end(small: RunningService) -> None:
    with _connected(small) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        assert _is_ended(connection)


def _is_reset(connection: socket.socket) -> bool:
    stop_at = time.monotonic() + 20
    while time.monotonic() < stop_at:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return True
        time.sleep(0.02)
    return False


def test_connections_that_wait_make_room(
    small: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "header_seconds", 60.0)
    with ExitStack() as held:
        first = held.enter_context(_connected(small))
        first.sendall(b"GET /health HTTP/1.1\r\nX-")
        for _ in range(3 * HELD):
            held.enter_context(_connected(small))
        assert _is_ended(first)
        with small.client() as client:
            assert client.get("/api/v1/repositories").status_code == 200


def test_there_are_no_more_connections_than_descriptors() -> None:
    assert most_connections(8192, lambda _: (1024, 1024)) == 384
    assert most_connections(100, lambda _: (1024, 1024)) == 100
    assert most_connections(8192, lambda _: (resource.RLIM_INFINITY, 0)) == 8192
