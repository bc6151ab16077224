"""Small calls of a service: by a connection of our own, or by httpx where that does more.

A commit is one call, and httpx took half of the processor time of a client that commits. A call
needs little of it: a head that is always the same, a body, an answer that says its length. Both
ways have the same limits and time-outs, prove servers alike and raise the errors of httpx. By httpx
goes whatever has a proxy on its way, a user in its URL, or another time-out; and what would be one
connection too many, for there it waits.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec

from tensorrepo.repo.backends.http_connection import HttpAnswer, HttpConnection, ProtocolError
from tensorrepo.repo.backends.service_format import MEDIA_TYPE
from tensorrepo.repo.http_client import USER_AGENT, httpx, verification

SECONDS: Final = httpx.Timeout(60.0, connect=10.0)
_ANSWER_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 10.0
_MOST_CONNECTIONS: Final = 32
_MOST_IDLE: Final = 16
_IDLE_SECONDS: Final = 5.0  # as httpx: a server that closes it then has not read the next request
_PARSED_URLS: Final = 64  # the calls go to the same few again and again
_WITH_BODY: Final = frozenset({"POST", "PUT"})  # which tell that they have none
_HEADERS: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "User-Agent": USER_AGENT,
}


class CallAnswer(NamedTuple):
    """What a service answered."""

    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The content, which is JSON. Raises ValueError."""
        try:
            return json.loads(self.content)
        except RecursionError as error:
            raise ValueError(f"it nests too deep: {error}") from error


class ServiceCalls:
    """Small calls of one API, see above. Thread-safe.

    Args:
        api: its URL.
        headers: fields that each call has.
    """

    def __init__(self, api: str, headers: Mapping[str, str]) -> None:
        self._api, self._headers = api, {**_HEADERS, **headers}
        parts, netloc = urlsplit(api), httpx.URL(api).netloc.decode("ascii")
        scheme = parts.scheme.lower()
        self._is_plain = scheme in {"http", "https"} and parts.username is None and not getproxies()
        self._origin = f"{scheme}://{netloc}"
        lines = {"Host": netloc, **self._headers}.items()
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in lines)
        self._idle: deque[tuple[float, HttpConnection]] = deque()
        weakref.finalize(self, _close_all, self._idle)  # many never close a repository
        self._lock = threading.Lock()
        self._in_use = 0
        self._process = os.getpid()
        self._is_closed = False

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        timeout: float | None = None,
    ) -> CallAnswer:
        """Make one call, once. Raises httpx.HTTPError; RuntimeError when this was closed."""
        if self._is_closed:
            raise RuntimeError(f"{self._api}: cannot be called, it was closed")
        kind = "" if content is None else MEDIA_TYPE
        if json is not None:
            content, kind = msgspec.json.encode(json), "application/json"
        if self._is_plain and timeout is None and self._enters():
            try:
                target = _target(self._api + path)
                if params is not None:
                    target = f"{target}?{httpx.QueryParams(params)}"
                return self._send_plain(method, target, kind, content)
            finally:
                with self._lock:
                    self._in_use -= 1
        answer = self.client.request(
            method,
            self._api + path,
            params=params,
            content=content,
            headers={"Content-Type": kind} if kind else None,
            timeout=SECONDS if timeout is None else timeout,
        )
        return CallAnswer(answer.status_code, answer.content)

    # Made when needed: most clients make small calls alone.
    @cached_property
    def client(self) -> httpx.Client:
        """Client of httpx for the same calls, and for streams."""
        limits = httpx.Limits(
            max_connections=_MOST_CONNECTIONS,
            max_keepalive_connections=_MOST_IDLE,
            keepalive_expiry=_IDLE_SECONDS,
        )
        client = client_of(self._api, headers=self._headers, limits=limits)
        weakref.finalize(self, client.close)
        return client

    def close(self) -> None:
        """Close connections; no call can be made from now on."""
        self._is_closed = True
        _close_all(self._idle)
        if "client" in vars(self):
            self.client.close()

    def _enters(self) -> bool:
        """Count one more call; False: there are too many already."""
        with self._lock:
            if self._process != os.getpid():  # forked: what is idle is of the process before
                self._process, self._in_use = os.getpid(), 0
                _close_all(self._idle)
            if self._in_use >= _MOST_CONNECTIONS:
                return False
            self._in_use += 1
            return True

    def _send_plain(self, method: str, target: str, kind: str, content: bytes | None) -> CallAnswer:
        """A call by a connection of our own. Raises httpx.HTTPError."""
        head = f"{method} {target} HTTP/1.1\r\n{self._fields}"
        if kind:
            head += f"Content-Type: {kind}\r\n"
        if content is not None or method in _WITH_BODY:
            head += f"Content-Length: {len(content or b'')}\r\n"
        connection = self._take() or self._connect()
        try:
            answer = connection.exchange(method, f"{head}\r\n".encode("ascii"), content or b"")
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise _as_httpx(error) from error
            raise
        self._keep(connection)
        if b"content-encoding" in answer.fields:
            return _unpacked(answer)
        return CallAnswer(answer.status, answer.body)

    def _take(self) -> HttpConnection | None:
        """The connection that was used last, if the server has not closed it."""
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if time.monotonic() - since < _IDLE_SECONDS and connection.is_alive():
                return connection
            connection.close()
        return None

    def _connect(self) -> HttpConnection:
        tls: ssl.SSLContext | None = None
        if self._origin.startswith("https:"):
            proof = verification(self._origin)
            assert isinstance(proof, ssl.SSLContext), "what has TLS is proved"
            tls = proof
            tls.set_alpn_protocols(["http/1.1"])
        try:
            return HttpConnection(self._origin, _ANSWER_SECONDS, tls, _CONNECT_SECONDS)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except (OSError, ValueError) as error:
            raise httpx.ConnectError(str(error)) from error

    def _keep(self, connection: HttpConnection) -> None:
        if not connection.reusable or self._is_closed or len(self._idle) >= _MOST_IDLE:
            connection.close()
            return
        now = time.monotonic()
        self._idle.append((now, connection))
        if self._idle[0][0] < now - _IDLE_SECONDS:  # of more threads than there are now
            with suppress(IndexError):
                self._idle.popleft()[1].close()


def client_of(url: str, **more: Any) -> httpx.Client:
    """A client of httpx for calls of one origin; it follows no redirects."""
    more |= {"verify": verification(url), "follow_redirects": False}
    headers = {"User-Agent": USER_AGENT, **more.pop("headers", {})}
    return _CookielessClient(timeout=SECONDS, headers=headers, **more)


class _CookielessClient(httpx.Client):
    """A client that keeps no cookies: to look for them takes a sixth of a small call."""

    @property
    def cookies(self) -> httpx.Cookies:
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        """Nothing: a token says who calls."""


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep none."""


_NO_COOKIES: Final = _NoCookies()


@lru_cache(_PARSED_URLS)
def _target(url: str) -> str:
    """What the first line of a request for a URL names, as httpx spells it."""
    return httpx.URL(url).raw_path.decode("ascii")


def _as_httpx(error: OSError) -> httpx.HTTPError:
    """The error of httpx for what ended an exchange."""
    if isinstance(error, (TimeoutError, BlockingIOError)):  # the second is of the kernel's time-out
        return httpx.ReadTimeout("no answer in time")
    if isinstance(error, ProtocolError):
        return httpx.RemoteProtocolError(str(error))
    return httpx.ReadError(str(error))


def _unpacked(answer: HttpAnswer) -> CallAnswer:
    """An answer that was compressed on its way. Raises httpx.HTTPError."""
    stream = httpx.ByteStream(answer.body)
    packed = httpx.Response(answer.status, headers=[*answer.fields.items()], stream=stream)
    return CallAnswer(answer.status, packed.read())


def _close_all(idle: deque[tuple[float, HttpConnection]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[1].close()
