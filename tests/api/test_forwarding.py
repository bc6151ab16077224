"""Behind a proxy: prefixes, and whose forwarded headers count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tensorrepo.api.forwarding import Forwarding

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
