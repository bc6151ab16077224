"""A provider of OpenID Connect on this machine: real endpoints, real keys, and tokens that lie."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT = "tensorrepo"
SECRET = "the client's own secret"


@dataclass
class Provider:
    """A provider at `url`, which lets in whoever `subject` is.

    Attributes:
        url: its issuer.
        subject: who signs in next.
        claims: what its tokens say beside, or instead; None leaves a claim out.
        key: what it signs with.
        published: what it says that it signs with.
        odd: its answer to who asks for keys, as it stands; None: a good one.
        header: what the heads of its tokens say beside, or instead.
        forged: header of its tokens as it stands, which nothing signs; None: an honest one.
        asked: paths that came, with their fields.
    """

    url: str = ""
    subject: str = "subject-1"
    claims: dict[str, Any] = field(default_factory=dict)
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "1"}))
    published: list[RSAKey] = field(default_factory=list)
    odd: dict[str, Any] | None = None
    header: dict[str, str] = field(default_factory=dict)
    forged: str | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def let_in(self, address: str) -> str:
        """What a browser is sent back to, once its user signed in at `address`."""
        told = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self._codes)}"
        self._codes[code] = told
        back = {"code": code, "state": told["state"], "iss": self.url}
        return f"{told['redirect_uri']}?{urlencode(back)}"

    def configuration(self) -> dict[str, str]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }

    def keys(self) -> dict[str, Any]:
        if self.odd is not None:
            return self.odd
        return dict(KeySet(list(self.published or [self.key])).as_dict(private=False))

    def exchange(self, fields: dict[str, str], authorization: str) -> dict[str, str] | None:
        """The answer to a code: None where code, client or PKCE's verifier are wrong."""
        told = self._codes.pop(fields.get("code", ""), None)
        verifier = fields.get("code_verifier", "").encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).decode().rstrip("=")
        if told is None or told["code_challenge"] != digest or not authorization:
            return None
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": self.subject,
            "aud": CLIENT,
            "exp": now + 60,
            "iat": now,
            "nonce": told["nonce"],
            **self.claims,
        }
        stated = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": "RS256", "kid": "1", **self.header}
        token = jwt.encode(header, stated, self.key)
        if self.forged is not None:
            token = f"{self.forged}.{token.partition('.')[2]}"
        return {"id_token": token, "token_type": "Bearer"}


@contextmanager
def openid_provider() -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked.append((self.path, {}))
            known = {
                "/.well-known/openid-configuration": provider.configuration,
                "/keys": provider.keys,
            }
            self._answer(200, known[self.path]())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            fields = {name: values[0] for name, values in parse_qs(body).items()}
            provider.asked.append((self.path, fields))
            found = provider.exchange(fields, self.headers.get("Authorization", ""))
            self._answer(400 if found is None else 200, found or {"error": "invalid_grant"})

        def _answer(self, status: int, told: dict[str, Any]) -> None:
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
