"""A whole run of `serve`: what it wrote anywhere has no secret that was used with it."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.tokens import make_token
from tests.support.servers.serving import ServeProcess, start_serve

PASSWORD = "correct horse battery staple"
HOOK_SECRET = "a secret of a webhook, of 32 characters"


def _used(running: ServeProcess, log: Path) -> set[str]:
    """Use every kind of secret, rightly and wrongly; gives them."""
    unknown, base = make_token(), running.url
    secrets = {running.token, PASSWORD, HOOK_SECRET, unknown}
    with running.client() as client:
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "/api/v1/repositories", {"json": {"name": "photos"}}),
            ("POST", "/api/v1/users", {"json": {"name": "ann"}}),
            ("PUT", "/api/v1/users/ann/password", {"json": {"password": PASSWORD}}),
            ("PUT", "/api/v1/users/ann/password", {"json": {"password": PASSWORD, "old": [7]}}),
            ("POST", "/api/v1/users", {"json": {"name": PASSWORD, "email": running.token}}),
            ("GET", f"/api/v1/tokens/{running.token}", {}),
            ("DELETE", f"/api/v1/tokens/{running.token}", {}),
            ("GET", f"/{running.token}/-/commits", {"headers": {"Accept": "text/html"}}),
            ("GET", "/api/v1/me", {"params": {"token": running.token, "password": PASSWORD}}),
            ("GET", "/api/v1/me", {"headers": {"Authorization": f"Bearer {unknown}"}}),
            ("GET", "/api/v1/me", {"headers": {"Authorization": f"Basic {unknown}"}}),
            ("GET", "/api/v1/me", {"headers": {"X-Request-Id": running.token[:60]}}),
        ]  # fmt: skip
        for method, path, more in calls:
            client.request(method, path, **more)
        hook = {"url": "http://127.0.0.1:1/", "secret": HOOK_SECRET}
        client.post("/api/v1/repositories/photos/-/webhooks", json=hook)
        made = client.post("/api/v1/tokens", json={"label": "nightly"}).json()["token"]
    with httpx.Client(base_url=base, timeout=60, trust_env=False) as browser:
        browser.post("/login", data={"user": PASSWORD, "password": running.token})
        browser.post("/api/v1/session", json={"user": "ann", "password": f"{PASSWORD}!"})
        browser.post("/login/code", data={"code": running.token})
        browser.post("/login", data={"user": "ann", "password": PASSWORD})
        session = browser.cookies["tensorrepo_session"]
        browser.get("/", headers={"Accept": "text/html"})
    _speak_badly(base, running.token)
    assert log.exists()
    return secrets | {made, session}


def _speak_badly(base: str, token: str) -> None:
    """What is no HTTP, with a token in it."""
    host, _, port = base.removeprefix("http://").partition(":")
    for line in (f"GET /{token} HTTP/9.9", f"{token} / HTTP/1.1", f"GET / HTTP/1.1\r\n{token}"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"{line}\r\nHost: x\r\n\r\n".encode())
            with contextlib.suppress(OSError):
                connection.recv(1 << 16)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> Iterator[tuple[ServeProcess, Path]]:
    monkeypatch.setenv("TENSORREPO_SERVER_LOG_FORM", form)
    log = tmp_path / "serve.log"
    running = start_serve(tmp_path, stderr=log)
    yield running, log
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(90)
    running.process.stdout.close()


@pytest.mark.parametrize("form", ["json", pytest.param("text", marks=pytest.mark.soak)])
def test_no_secret_is_in_what_a_service_wrote(run: tuple[ServeProcess, Path], form: str) -> None:
    running, log = run
    secrets = _used(running, log)
    time.sleep(2)  # until the audit log is written down
    with running.client() as client:
        told = [client.get(path).text for path in ("/api/v1/audit", "/metrics")]
    running.end()
    written = log.read_text() + running.process.stdout.read() + "".join(told)
    data = b"".join(path.read_bytes() for path in log.parent.glob("data/server.db*"))
    stored = secrets - {HOOK_SECRET}  # which signs, and so must be there
    assert [one for one in secrets if one in written] == []
    assert [one for one in stored if one.encode() in data] == []
    assert form == "text" or '"logger": "tensorrepo.access"' in written
