"""Versions of clients: which are too old for this service, and what they are told to do.

A client of ours says which revision of the protocol it speaks in `Tensorrepo-Client`; who says
nothing is a program that knows the API by its OpenAPI.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorrepo.api.errors import answer_error
from tensorrepo.api.requests import CALLER
from tensorrepo.repo.backends.service_format import CLIENT_HEADER
from tensorrepo.repo.errors import UnsupportedError


class ClientVersions:
    """Middleware, within `Authentication`, that refuses clients of revisions before `oldest`."""

    def __init__(self, app: ASGIApp, oldest: int) -> None:
        self._app, self._oldest = app, oldest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and CALLER in scope:  # who is unknown is asked for a token first
            request = Request(scope)
            said = request.headers.get(CLIENT_HEADER, "")
            if said.isascii() and said.isdigit() and int(said[:9]) < self._oldest:
                refusal = answer_error(request, self._too_old(said[:9]))
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _too_old(self, said: str) -> UnsupportedError:
        return UnsupportedError(
            f"this client is too old for the service: it speaks revision {said} of the protocol, "
            f"and {self._oldest} is the oldest that is served. Install a newer one: "
            "pip install --upgrade tensorrepo"
        )
