"""Forwarded headers: what a trusted proxy says about who asks, by which scheme, below which path.

Of anybody else they are taken away, so that nothing further in believes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_FORWARDED: Final = b"x-forwarded-"


class Forwarding:
    """Middleware, the outermost one.

    A path below a prefix may come with the prefix or without: proxies do either.
    """

    def __init__(self, app: ASGIApp, trusted: Iterable[str], prefix: str = "") -> None:
        self._app, self._prefix = app, prefix
        inner: Any = self._with_prefix
        self._proxied = ProxyHeadersMiddleware(inner, list(trusted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else None
        told = self._prefix
        if peer in self._proxied.trusted_hosts:
            told = _prefix_of(scope) or told
        else:
            kept = [each for each in scope["headers"] if not each[0].startswith(_FORWARDED)]
            scope["headers"] = kept
        scope["tensorrepo.prefix"] = told
        proxied: Any = self._proxied
        await proxied(scope, receive, send)

    async def _with_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix: str = scope["tensorrepo.prefix"]
        if prefix:
            scope["root_path"] = prefix
            path = scope["path"]
            if path != prefix and not path.startswith(f"{prefix}/"):
                scope["path"] = prefix + path
        await self._app(scope, receive, send)


def _prefix_of(scope: Scope) -> str:
    told = dict(scope["headers"]).get(b"x-forwarded-prefix", b"").decode("latin-1").rstrip("/")
    return told if _PREFIX.fullmatch(told) and "/.." not in told and "/./" not in told else ""
