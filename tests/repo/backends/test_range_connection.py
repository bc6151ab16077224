"""A connection for ranges: answers in any pieces, and those that are none."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tensorrepo.repo.backends.range_connection import RangeConnection
from tests.support.servers.certificates import make_certificate

BODY = bytes(range(256)) * 400
GOOD = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-length:  102400\r\n"


@contextmanager
def answering(
    pieces: Sequence[bytes], *, closes: bool, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server of one connection: it sends `pieces` one by one to each request."""
    asked = list[bytes]()

    def serve() -> None:
        plain = listener.accept()[0]
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with (
            suppress(OSError),  # a client that does not trust it, or leaves before the end
            plain if tls is None else tls.wrap_socket(plain, server_side=True) as found,
        ):
            while request := found.recv(1 << 16):
                asked.append(request)
                for piece in pieces:
                    found.sendall(piece)
                    threading.Event().wait(0.002)  # so that they come apart
                if closes:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{listener.getsockname()[1]}", asked
        thread.join(10)


@pytest.mark.parametrize(
    ("pieces", "reusable"),
    [
        ([GOOD + b"\r\n" + BODY], True),
        ([GOOD[:30], GOOD[30:] + b"\r", b"\n" + BODY[:7], BODY[7:60_000], BODY[60_000:]], True),
        ([GOOD + b"Pad: " + b"x" * 9000 + b"\r\n\r\n", BODY], True),
        ([GOOD + b"Connection: Close\r\n\r\n", BODY], False),
        ([GOOD.replace(b"1.1", b"1.0") + b"\r\n", BODY], False),
    ],
)
def test_a_range_is_read_from_an_answer_in_any_pieces(
    pieces: Sequence[bytes], reusable: bool
) -> None:
    with answering(pieces, closes=False) as (origin, asked):
        connection = RangeConnection(origin, 10, None)
        read = [connection.fetch("/a?b=%20", 5, 5 + len(BODY)) for _ in range(1 + reusable)]
        told = connection.reusable
        connection.close()
    assert read == [BODY] * (1 + reusable)
    assert told == reusable
    first, *fields = asked[0].split(b"\r\n")
    assert first == b"GET /a?b=%20 HTTP/1.1"
    assert {b"Host: " + origin[7:].encode(), b"Range: bytes=5-102404"} <= {*fields}


@pytest.mark.parametrize(
    "answer",
    [
        GOOD.replace(b"206", b"200") + b"\r\n" + BODY,
        GOOD.replace(b"102400", b"102399") + b"\r\n" + BODY,
        GOOD + b"Content-Length: 5\r\n\r\n" + BODY,
        GOOD + b"Transfer-Encoding: chunked\r\n\r\n" + BODY,
        b"HTTP/1.1 206\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_the_range_is_none_and_the_connection_is_left(answer: bytes) -> None:
    with answering([answer[:4000], answer[4000:]], closes=True) as (origin, _):
        connection = RangeConnection(origin, 10, None)
        read = connection.fetch("/", 0, len(BODY))
        told = connection.reusable
        connection.close()
    assert (read, told) == (None, False)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n\r\n", GOOD, GOOD + b"\r\n" + BODY[:-1]])
@pytest.mark.parametrize("closes", [True, False])
def test_an_answer_that_ends_or_stays_away_is_an_error(answer: bytes, closes: bool) -> None:
    with answering([answer], closes=closes) as (origin, _):
        connection = RangeConnection(origin, 10 if closes else 0.05, None)
        with pytest.raises(OSError):  # noqa: PT011 - what is cut short, and a time that is over
            connection.fetch("/", 0, len(BODY))
        told = connection.reusable
        connection.close()
    assert not told


def test_a_server_with_tls_is_proved(tmp_path: Path) -> None:
    files = make_certificate(tmp_path, "127.0.0.1")
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(files.certificate, files.key)
    trusting = ssl.create_default_context(cafile=files.certificate)
    with answering([GOOD + b"\r\n" + BODY[:5], BODY[5:]], closes=False, tls=shown) as (origin, _):
        connection = RangeConnection(origin, 10, trusting)
        read = [connection.fetch("/", 5, 5 + len(BODY)) for _ in range(2)]
        connection.close()
    assert read == [BODY] * 2
    with (
        answering([], closes=True, tls=shown) as (origin, _),
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        RangeConnection(origin, 10, ssl.create_default_context())


def test_nothing_is_asked_for_by_a_name_that_breaks_a_request() -> None:
    with answering([], closes=True) as (origin, asked):
        connection = RangeConnection(origin, 10, None)
        read = [connection.fetch(name, 0, 9) for name in ("/a b", "/a\r\nHost: x", "/\xe4", "")]
        connection.close()
    assert (read, asked) == ([None] * 4, [])
    for place in ("http://", "http://user@host", "http://127.0.0.1 "):
        with pytest.raises(ValueError, match="an origin"):
            RangeConnection(place, 10, None)
