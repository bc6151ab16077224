"""Servers that give out tokens as Google's and Azure's do, and stores that ask for them."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from tests.support.servers.object_stores import AzureServer

TOKEN = "token-"


@dataclass
class Logins:
    """A server of tokens at `url`, each good for `seconds`; `asked` tells paths and what came."""

    url: str = ""
    seconds: int = 3600
    status: int = 200
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


@contextmanager
def token_server() -> Iterator[Logins]:
    """Google's exchange of tokens (/sts), its impersonation and Azure's App Service (/msi)."""
    logins, count = Logins(), itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if urlsplit(self.path).path == "/sts":
                told = {name: values[0] for name, values in parse_qs(body).items()}
                kind = "urn:ietf:params:oauth:token-type:access_token"
                answer: dict[str, object] = {"issued_token_type": kind, "token_type": "Bearer"}
                answer |= {"access_token": f"{TOKEN}{next(count)}", "expires_in": logins.seconds}
            else:
                told = {"authorization": self.headers.get("Authorization", "")}
                until = datetime.now(UTC) + timedelta(seconds=logins.seconds)
                answer = {"accessToken": f"{TOKEN}as-another-{next(count)}"}
                answer |= {"expireTime": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
            self._answer(told, answer)

        def do_GET(self) -> None:
            told = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            told["secret"] = self.headers.get("X-IDENTITY-HEADER", "")
            until = int(datetime.now(UTC).timestamp()) + logins.seconds
            answer = {"access_token": f"{TOKEN}{next(count)}", "expires_on": str(until)}
            self._answer(told, {**answer, "resource": told["resource"], "token_type": "Bearer"})

        def _answer(self, told: dict[str, str], answer: dict[str, object]) -> None:
            logins.asked.append((urlsplit(self.path).path, told))
            if logins.status != 200:
                answer = {"error": "invalid_grant", "error_description": "the subject is unknown"}
            data = json.dumps(answer).encode()
            self.send_response(logins.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    logins.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield logins
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TokenStore(AzureServer):
    """A store, of Google or Azure, that lets in whoever has one of our tokens; `seen` has them."""

    def __init__(self, root: Path) -> None:
        (root / "bucket").mkdir(parents=True)
        super().__init__(root)
        self.seen: list[str] = []

    async def _work(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token.startswith(TOKEN):
            return web.Response(status=401)
        self.seen.append(token)
        return await super()._work(request)
