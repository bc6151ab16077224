"""Behind a proxy: prefixes, and whose forwarded headers count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tensorrepo.api.forwarding import Forwarding
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.changes.repository import open_repository
from tests.support.builders.repositories import commit_files, files_at, tip_of
from tests.support.servers.service import RunningService, running_service

SENT = [
    (b"x-forwarded-for", b"8.8.4.4"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-prefix", b"/data"),
]


def _seen(peer: str, path: str, headers: list[tuple[bytes, bytes]], prefix: str = "") -> Any:
    """The scope that the application gets."""
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        found.append(scope)

    scope = {
        "type": "http",
        "client": (peer, 1),
        "path": path,
        "scheme": "http",
        "root_path": "",
        "headers": headers,
    }
    asyncio.run(Forwarding(app, ["127.0.0.1"], prefix)(scope, None, None))  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize("path", ["/health", "/data/health"])
def test_a_trusted_proxy_says_who_asks_and_below_which_path(path: str) -> None:
    scope = _seen("127.0.0.1", path, list(SENT))
    assert (scope["client"][0], scope["scheme"]) == ("8.8.4.4", "https")
    assert (scope["root_path"], scope["path"]) == ("/data", "/data/health")


def test_nobody_else_says_so() -> None:
    scope = _seen("8.8.8.8", "/health", list(SENT))
    assert (scope["client"][0], scope["scheme"]) == ("8.8.8.8", "http")
    assert (scope["root_path"], scope["path"], scope["headers"]) == ("", "/health", [])


@pytest.mark.parametrize("prefix", [b"//evil", b"/a/../b", b"/x y", b"https://host", b"/a\r\nb"])
def test_a_prefix_that_is_none_does_not_count(prefix: bytes) -> None:
    scope = _seen("127.0.0.1", "/health", [(b"x-forwarded-prefix", prefix)])
    assert scope["root_path"] == ""


def test_a_prefix_of_the_settings_holds_without_a_header() -> None:
    assert _seen("8.8.8.8", "/health", [], "/data")["root_path"] == "/data"


@pytest.fixture(scope="module")
def below_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service below a path, with a repository, and one web origin that may call it."""
    folder = tmp_path_factory.mktemp("service")
    origins = ["https://example.org"]
    with running_service(folder, path_prefix="/data", cors_origins=origins) as running:
        with running.client() as client:
            client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        yield running


def test_a_repository_below_a_path_is_a_repository(below_data: RunningService) -> None:
    assert below_data.url.endswith("/data")
    options = {"token": below_data.token}
    url = f"{below_data.url}/team/photos"
    core = open_repository(open_http(url, options, environment={}), drivers={})
    commit_files(core, {"notes.txt": b"words", "large.bin": bytes(3 << 20)})
    assert files_at(core, tip_of(core))["notes.txt"] == b"words"
    core.close()


def test_who_is_unknown_below_a_path_is_led_to_the_login_below_it(
    below_data: RunningService,
) -> None:
    with below_data.client("") as client:
        page = client.get("/team/photos", headers={"Accept": "text/html"})
        refused = client.get("/api/v1/repositories")
    assert page.headers["Location"].startswith("/data/login")
    assert refused.status_code == 401


def test_an_old_name_below_a_path_leads_to_the_new_one(below_data: RunningService) -> None:
    with below_data.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/old"}).raise_for_status()
        renamed = {"name": "team/new"}
        client.patch("/api/v1/repositories/team/old", json=renamed).raise_for_status()
        moved = client.get("/api/v1/repositories/team/old/-/refs")
    assert moved.headers["Location"] == "/data/api/v1/repositories/team/new/-/refs"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://example.org", "https://example.org"),
        ("https://example.com", None),
        ("https://example.org.example.com", None),
        ("null", None),
    ],
)
def test_only_origins_of_the_settings_may_read_answers(
    below_data: RunningService, origin: str, allowed: str | None
) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    with below_data.client() as client:
        preflight = client.options("/api/v1/repositories", headers=asked)
        answer = client.get("/api/v1/repositories", headers={"Origin": origin})
    told = [one.headers.get("access-control-allow-origin") for one in (preflight, answer)]
    assert told == [allowed, allowed]
    assert "access-control-allow-credentials" not in answer.headers
