"""Limits over HTTP: who asks too often, for too much, or too slowly."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tensorrepo.api.access.tokens import make_token
from tensorrepo.api.limits.bodies import MOST_UNPROVED_BYTES
from tests.support.servers.service import RunningService, running_service

REPOSITORIES = "/api/v1/repositories"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that waits half a second for a body, of 1,000 bytes at most."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, max_body_bytes=1000, idle_seconds=0.5) as running:
        yield running


def _spoken(running: RunningService, *parts: bytes) -> bytes:
    """What is answered to raw bytes, until the server ends the connection or has answered."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
            head, _, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\ncontent-length: (\d+)", head)
            if length is None or len(body) >= int(length[1]):
                break
        return answer


def _head(running: RunningService, length: bytes) -> bytes:
    return (
        b"POST /api/v1/repositories HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + running.token.encode() + b"\r\n" + length + b"\r\n\r\n"
    )


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with running_service(tmp_path, requests_per_second=0.2) as running:
        other = running.user("other")
        with running.client() as client, running.client(other) as second:
            answers = [client.get(REPOSITORIES) for _ in range(3)]
            of_other = second.get(REPOSITORIES)
            probes = [client.get("/health").status_code for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert answers[-1].json()["kind"] == "rate-limited"
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 5
    assert of_other.status_code == 200
    assert probes == [200] * 5


@pytest.mark.parametrize(
    "written",
    ["Bearer {token}", "bearer {token}", "BEARER   {token}", "bEaReR {token}  "],
)
def test_another_spelling_of_a_token_is_no_other_caller(tmp_path: Path, written: str) -> None:
    with running_service(tmp_path, requests_per_second=0.2) as running:
        with running.client() as client:
            client.get(REPOSITORIES).raise_for_status()
        line = f"Authorization: {written.format(token=running.token)}"
        answer = _spoken(
            running, f"GET {REPOSITORIES} HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n".encode()
        )
    assert answer.startswith(b"HTTP/1.1 429")


def test_more_cookies_are_no_other_caller(tmp_path: Path) -> None:
    with (
        running_service(tmp_path, requests_per_second=0.2) as running,
        running.browser("admin") as browser,
    ):
        answers = [
            browser.get(REPOSITORIES, headers={"Cookie": f"{_session(browser)}; a={at}"})
            for at in range(3)
        ]
    assert [one.status_code for one in answers] == [200, 429, 429]


def _session(browser: httpx.Client) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def _asked_with(running: RunningService, token: str) -> httpx.Response:
    with running.client(token) as client:
        return client.get(REPOSITORIES)


def test_who_makes_up_tokens_is_limited_by_address(tmp_path: Path) -> None:
    with running_service(tmp_path, requests_per_second=0.2) as running:
        answers = [_asked_with(running, make_token()) for _ in range(4)]
    assert [one.status_code for one in answers] == [401, 401, 429, 429]


def test_who_was_sent_much_waits(tmp_path: Path) -> None:
    with running_service(tmp_path, bytes_per_second=1) as running, running.client() as client:
        statuses = [client.get("/api/v1/openapi.json").status_code for _ in range(2)]
    assert statuses == [200, 429]


def test_a_body_that_says_it_is_too_large_is_not_read(strict: RunningService) -> None:
    answer = _spoken(strict, _head(strict, b"Content-Length: 99999999999"))
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["kind"] == "too-large"


def test_a_body_that_does_not_say_is_not_read_to_its_end(strict: RunningService) -> None:
    chunk = b"400\r\n" + bytes(1024) + b"\r\n"
    answer = _spoken(strict, _head(strict, b"Transfer-Encoding: chunked"), chunk)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_come_is_not_waited_for(strict: RunningService) -> None:
    answer = _spoken(strict, _head(strict, b"Content-Length: 100"), b'{"name"')
    assert answer.startswith(b"HTTP/1.1 408")


def test_who_is_unknown_sends_little(tmp_path: Path) -> None:
    sent = {"user": "a", "password": "b" * MOST_UNPROVED_BYTES}
    with running_service(tmp_path) as running, running.client("") as client:
        answers = [client.post("/api/v1/session", json=sent), client.post("/login", data=sent)]
    assert [answer.status_code for answer in answers] == [413, 413]


def test_an_upload_that_is_aborted_changes_nothing(strict: RunningService) -> None:
    host, _, port = strict.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(_head(strict, b"Content-Length: 100") + b'{"name": "gone"')
    with strict.client() as client:
        assert client.get(f"{REPOSITORIES}/gone").status_code == 404


def test_who_leaves_in_the_middle_of_an_append_is_no_failure(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    with service.client() as client:
        client.post(REPOSITORIES, json={"name": "photos"}).raise_for_status()
        client.get(f"{REPOSITORIES}/photos/-/store/repo.json").raise_for_status()  # it is open
        head = _head(service, b"Content-Length: 1000")
        host, _, port = service.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.replace(b"/repositories ", b"/repositories/photos/-/append "))
            connection.sendall(b"begun")
        counted = None
        stop_at = time.monotonic() + 20
        while counted is None and time.monotonic() < stop_at:
            time.sleep(0.02)
            counted = re.search(r'/-/append",status="(\d+)"', client.get("/metrics").text)
    assert counted is not None
    assert counted[1] == "499"
    assert "Traceback" not in caplog.text


def test_ranges_without_end_are_refused(strict: RunningService) -> None:
    with strict.client() as client:
        ranges = ",".join(f"{at}-{at}" for at in range(1000))
        answer = client.get(REPOSITORIES, headers={"Range": f"bytes={ranges}"})
    assert answer.status_code == 400


def test_headers_without_end_are_refused(strict: RunningService) -> None:
    begun = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    assert _spoken(strict, begun, b"X-A: " + b"a" * 200_000).startswith(b"HTTP/1.1 400")
    many = b"".join(b"X-%d: %s\r\n" % (at, b"a" * 100) for at in range(1000))
    assert b"200 OK" not in _spoken(strict, begun + many + b"\r\n")


def test_headers_that_do_not_come_are_not_waited_for(
    strict: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.api.limits.protocol.BoundedHttpProtocol.header_seconds", 0.2)
    assert _spoken(strict, b"GET /health HTTP/1.1\r\nX-") == b""
    assert _spoken(strict) == b""


def test_a_connection_that_is_kept_answers_again(strict: RunningService) -> None:
    with strict.client() as client:
        assert [client.get("/health").status_code for _ in range(3)] == [200] * 3


def test_idle_connections_hold_up_nobody(strict: RunningService) -> None:
    host, _, port = strict.url.removeprefix("http://").partition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(1000)]
    try:
        with strict.client() as client:
            assert client.get(REPOSITORIES).status_code == 200
    finally:
        for connection in held:
            connection.close()
