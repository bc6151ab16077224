"""Small calls of a service, by a connection of our own and by httpx: the same either way."""

from __future__ import annotations

import gzip
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.repo.backends import service_calls
from tensorrepo.repo.backends.http_connection import HttpConnection
from tensorrepo.repo.backends.service_calls import CallAnswer, ServiceCalls
from tensorrepo.repo.http_client import httpx
from tests.support.servers.certificates import make_certificate
from tests.support.servers.scripted_answers import answering

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b'{"a": 12}'
HEADERS = {"Authorization": "Bearer t"}


def test_an_answer_that_nests_too_deep_is_no_json() -> None:
    with pytest.raises(ValueError, match="deep"):
        CallAnswer(200, b"[" * 99_999).json()


@pytest.fixture(params=["own", "httpx"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which way a call goes; by httpx where there are too many for the other."""
    if request.param == "httpx":
        monkeypatch.setattr(ServiceCalls, "_enters", lambda _: False)
    return str(request.param)


def _failure(api: str, **more: Any) -> str:
    calls = ServiceCalls(api, HEADERS)
    with pytest.raises(httpx.HTTPError) as caught:
        calls.send("POST", "/append", content=b"abc", **more)
    calls.close()
    return type(caught.value).__name__


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("POST", {"content": b"abc"}),
        ("POST", {"json": {"keys": ["é"]}}),
        ("POST", {}),
        ("GET", {"params": {"prefix": "objects/ä b+c", "after": 3}}),
    ],
)
def test_both_ways_send_the_same(
    method: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    for _ in range(2):
        with answering([GOOD], closes=True) as (origin, asked):
            calls = ServiceCalls(f"{origin}/api/é", HEADERS)
            answer = calls.send(method, "/log", **more)
            calls.close()
        assert (answer.status, answer.json()) == (200, {"a": 12})
        head, _, body = b"".join(asked).replace(origin.encode(), b"").partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        sent.append((line, sorted(each for each in fields if b"Host" not in each), body))
        monkeypatch.setattr(ServiceCalls, "_enters", lambda _: False)
    assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "RemoteProtocolError"),
        (GOOD[:-1], "RemoteProtocolError"),
        (b"SSH-2.0-x\r\n\r\n", "RemoteProtocolError"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            "DecodingError",
        ),
    ],
)
@pytest.mark.usefixtures("way")
def test_what_is_no_answer_is_told_alike(answer: bytes, error: str) -> None:
    with answering([answer], closes=True) as (origin, _):
        assert _failure(origin) == error


@pytest.mark.usefixtures("way")
def test_who_does_not_listen_or_is_not_proved_is_told_alike(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert _failure(f"http://127.0.0.1:{port}") == "ConnectError"
    files = make_certificate(tmp_path, "127.0.0.1")
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(files.certificate, files.key)
    with answering([GOOD], closes=True, tls=shown) as (origin, asked):
        assert _failure(origin) == "ConnectError"
    assert asked == []


def test_an_answer_that_stays_away_is_told_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_calls, "_ANSWER_SECONDS", 0.05)
    with answering([GOOD[:-1]], closes=False) as (origin, _):
        assert _failure(origin) == "ReadTimeout"


@pytest.mark.usefixtures("way")
def test_an_answer_may_come_compressed() -> None:
    data = gzip.compress(b'{"a": 3}')
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(data)}\r\n\r\n"
    with answering([head.encode() + data], closes=True) as (origin, _):
        calls = ServiceCalls(origin, HEADERS)
        answer = calls.send("GET", "/log")
        calls.close()
    assert answer.json() == {"a": 3}


def test_a_service_with_tls_is_called_by_what_the_environment_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificate(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(files.certificate, files.key)
    with answering([GOOD], closes=False, tls=shown) as (origin, asked):
        calls = ServiceCalls(origin, HEADERS)
        answers = [calls.send("POST", "/append", content=b"abc") for _ in range(2)]
        calls.close()
    assert [answer.status for answer in answers] == [200, 200]
    assert len(asked) == 2


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with answering([GOOD], closes=True, connections=2) as (origin, asked):
        calls = ServiceCalls(origin, HEADERS)
        first = calls.send("POST", "/append", content=b"abc")
        while any(connection.is_alive() for _, connection in calls._idle):
            pass
        second = calls.send("POST", "/append", content=b"abc")
        calls.close()
    assert (first, second, len(asked)) == (second, first, 2)


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(service_calls, "_IDLE_SECONDS", 0.0), (service_calls.os, "getpid", lambda: -1)],
    ids=["idle for long", "of the process that was forked"],
)
def test_some_connections_are_not_used_again(
    module: Any, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    begin = HttpConnection.__init__
    monkeypatch.setattr(HttpConnection, "__init__", lambda *told: made.append(1) or begin(*told))
    with answering([GOOD], closes=False, connections=2) as (origin, _):
        calls = ServiceCalls(origin, HEADERS)
        calls.send("GET", "/log")
        calls.send("GET", "/log")
        before = len(made)
        with monkeypatch.context() as changed:
            changed.setattr(module, name, value)
            calls.send("GET", "/log")
        calls.close()
    assert (before, len(made)) == (1, 2)


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering([GOOD], closes=True) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        calls = ServiceCalls("http://example.test/api", HEADERS)
        answer = calls.send("POST", "/append", content=b"abc")
        calls.close()
    assert answer.status == 200
    assert asked[0].startswith(b"POST http://example.test/api/append HTTP/1.1\r\n")


@pytest.mark.usefixtures("way")
def test_what_was_closed_is_called_no_more() -> None:
    calls = ServiceCalls("http://example.test/api", HEADERS)
    calls.close()
    with pytest.raises(RuntimeError, match="closed"):
        calls.send("GET", "/log")
