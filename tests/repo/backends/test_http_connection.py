"""A connection for ranges and small calls: answers in any pieces, and those that are none."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from tensorrepo.repo.backends.http_connection import HttpConnection, ProtocolError
from tests.support.servers.certificates import make_certificate
from tests.support.servers.scripted_answers import answering

BODY = bytes(range(256)) * 400
GOOD = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\nContent-length:  102400\r\n"


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
        connection = HttpConnection(origin, 10, None)
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
        connection = HttpConnection(origin, 10, None)
        read = connection.fetch("/", 0, len(BODY))
        told = connection.reusable
        connection.close()
    assert (read, told) == (None, False)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n\r\n", GOOD, GOOD + b"\r\n" + BODY[:-1]])
@pytest.mark.parametrize("closes", [True, False])
def test_an_answer_that_ends_or_stays_away_is_an_error(answer: bytes, closes: bool) -> None:
    with answering([answer], closes=closes) as (origin, _):
        connection = HttpConnection(origin, 10 if closes else 0.05, None)
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
        connection = HttpConnection(origin, 10, trusting)
        read = [connection.fetch("/", 5, 5 + len(BODY)) for _ in range(2)]
        connection.close()
    assert read == [BODY] * 2
    with (
        answering([], closes=True, tls=shown) as (origin, _),
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        HttpConnection(origin, 10, ssl.create_default_context())


def test_nothing_is_asked_for_by_a_name_that_breaks_a_request() -> None:
    with answering([], closes=True) as (origin, asked):
        connection = HttpConnection(origin, 10, None)
        read = [connection.fetch(name, 0, 9) for name in ("/a b", "/a\r\nHost: x", "/\xe4", "")]
        connection.close()
    assert (read, asked) == ([None] * 4, [])
    for place in ("http://", "http://user@host", "http://127.0.0.1 "):
        with pytest.raises(ValueError, match="an origin"):
            HttpConnection(place, 10, None)


REQUEST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "status", "body", "reusable"),
    [
        (SIZED + b"\r\nabcde", 200, b"abcde", True),
        (SIZED.replace(b"200 OK", b"429") + b"\r\nabcde", 429, b"abcde", True),
        (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
        (SIZED.replace(b"5", b"90000") + b"\r\n" + b"x" * 90_000, 200, b"x" * 90_000, True),
        (b"HTTP/1.1 103 Hints\r\nLink: /\r\n\r\n" + SIZED + b"\r\nabcde", 200, b"abcde", True),
        (CHUNKED + b"2;x=y\r\nab\r\n3\r\ncde\r\n0\r\nT: x\r\n\r\n", 200, b"abcde", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
        (SIZED + b"Connection: Close\r\n\r\nabcde", 200, b"abcde", False),
        (SIZED.replace(b"1.1", b"1.0") + b"\r\nabcde", 200, b"abcde", False),
        (SIZED + b"\r\nabcdefg", 200, b"abcde", False),
        (CHUNKED + b"5\r\nabcde\r\n0\r\n\r\nHTTP", 200, b"abcde", False),
    ],
)
@pytest.mark.parametrize("cut", [1 << 20, 30])
def test_an_answer_to_a_call_is_read_in_any_form(
    answer: bytes, status: int, body: bytes, reusable: bool, cut: int
) -> None:
    pieces = [answer[:cut], *([answer[cut:]] if answer[cut:] else [])]
    with answering(pieces, closes=False) as (origin, asked):
        connection = HttpConnection(origin, 10, None)
        answers = [connection.exchange("POST", REQUEST, b"ab") for _ in range(1 + reusable)]
        told = connection.reusable
        connection.close()
    assert [(one.status, one.body) for one in answers] == [(status, body)] * (1 + reusable)
    assert told == reusable or cut == 30  # what is behind an answer may come later
    assert asked == [REQUEST + b"ab"] * (1 + reusable)


def test_a_large_answer_to_a_call_is_read_as_it_comes() -> None:
    body = bytes(range(251)) * 40_000  # of 10 MB: several pieces, the last one short
    head = OK + b"Content-Length: %d\r\n\r\n" % len(body)
    with answering([head + body[:7], body[7:]], closes=True) as (origin, _):
        connection = HttpConnection(origin, 10, None)
        answer = connection.exchange("POST", REQUEST, b"ab")
        told = connection.reusable
        connection.close()
    assert (answer.body == body, told) == (True, True)


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    with answering([OK + b"\r\nab", b"cde"], closes=True) as (origin, _):
        connection = HttpConnection(origin, 10, None)
        answer = connection.exchange("POST", REQUEST, b"ab")
        told = connection.reusable
        connection.close()
    assert (answer.body, told) == (b"abcde", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n\r\n",
        SIZED,
        SIZED + b"\r\nabcd",
        SIZED + b"Content-Length: 5\r\n\r\nabcde",
        OK + b"Content-Length: 900000000000000\r\n\r\nabcde",  # more than any memory
        CHUNKED + b"5\r\nabcd",
        CHUNKED + b"5\r\nabcde\r\n",
        CHUNKED + b"x\r\nabcde\r\n",
    ],
)
def test_an_answer_to_a_call_that_is_cut_short_or_unclear_is_an_error(answer: bytes) -> None:
    with answering([answer], closes=True) as (origin, _):
        connection = HttpConnection(origin, 10, None)
        with pytest.raises(ProtocolError):
            connection.exchange("POST", REQUEST, b"ab")
        told = connection.reusable
        connection.close()
    assert not told
