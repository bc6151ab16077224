"""The one HTTP client for what the service fetches: webhooks, providers of sign-in, imports.

A host is resolved once; each address is checked, and the connection goes to exactly what was
checked, with the host's own name for TLS and in `Host`. So a name that leads elsewhere a moment
later (DNS rebinding) gains nothing. Redirects are not followed, environment proxies not asked, and
each exchange is bounded in bytes and seconds, headers included.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final

import httpcore

from tensorrepo.api.outbound.addresses import (
    NOTHING_MORE,
    AllowedTargets,
    FetchTarget,
    IpAddress,
    parse_target,
    permitted,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, StorageError

MAX_ANSWER_BYTES: Final = 1 << 20
TIMEOUT_SECONDS: Final = 10.0
USER_AGENT: Final = "tensorrepo"
_RESOLVING_THREADS: Final = 8
_OWN_HEADERS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@dataclass(frozen=True, slots=True)
class OutboundAnswer:
    """What somebody answered. Names of headers are in lower case; a redirect is an answer, too."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def system_addresses(host: str, port: int) -> list[IpAddress]:
    """What this machine's resolver says. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(each[4][0]) for each in found]


class OutboundClient:
    """Asks others, within bounds. Thread-safe; each request has a connection of its own."""

    def __init__(
        self,
        allowed: AllowedTargets = NOTHING_MORE,
        *,
        resolve: Callable[[str, int], Iterable[IpAddress]] = system_addresses,
        tls: ssl.SSLContext | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is asked yet.

        Args:
            allowed: what may be reached beyond global addresses.
            resolve: addresses of a host.
            tls: whom to trust; None: the authorities that this machine trusts.
            timer: seconds from any start.
        """
        self._allowed, self._resolve, self._timer = allowed, resolve, timer
        self._tls = tls
        # A resolver has timeouts of its own, longer than ours: it is left behind on its thread.
        self._pool = ThreadPoolExecutor(_RESOLVING_THREADS, "resolve")

    def check(self, url: str) -> None:
        """Raises as `request` where `url` is none, or names an address that may not be reached.

        A name is not resolved: what it leads to counts when it is asked.
        """
        target = parse_target(url)
        if target.address is not None:
            self._permitted(target, [target.address])

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        max_bytes: int = MAX_ANSWER_BYTES,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> OutboundAnswer:
        """One exchange.

        Args:
            method: such as GET.
            url: http or https, without a user.
            headers: beside those that HTTP itself needs.
            content: body of the request.
            max_bytes: largest body of an answer.
            timeout_seconds: for all of it.

        Raises:
            InvalidInputError: `url` is none that is fetched.
            PermissionDenied: the host leads to an address that may not be reached.
            StorageError: no answer in time, or one that is too large.
        """
        target = parse_target(url)
        deadline = _Deadline(target, timeout_seconds, self._timer)
        sent = self._headers(target, headers or {})
        addresses = self._permitted(target, self._addresses(target, deadline))
        pool = httpcore.ConnectionPool(
            ssl_context=self._tls or ssl.create_default_context(),
            network_backend=_Pinned(target, addresses, deadline),
        )
        try:
            with pool, pool.stream(method, target.url, headers=sent, content=content) as answer:
                body = _bounded(answer, target, max_bytes)
                return OutboundAnswer(answer.status, _plain(answer.headers), body)
        except (httpcore.TimeoutException, _Late) as error:
            raise deadline.error() from error
        except (httpcore.NetworkError, httpcore.ProtocolError, ssl.SSLError) as error:
            raise StorageError(f"{target.shown} gave no answer: {error}", transient=True) from error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _headers(self, target: FetchTarget, given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        if own := {name.lower() for name in given} & _OWN_HEADERS:
            raise InvalidInputError(f"the header {min(own)!r} is set by the client alone")
        fixed = {
            "Host": target.authority,
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",  # so that no answer grows when it is unpacked
            "Connection": "close",
        }
        joined = {**fixed, **given}
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in joined.items()]

    def _addresses(self, target: FetchTarget, deadline: _Deadline) -> list[IpAddress]:
        if target.address is not None:
            return [target.address]
        asked = self._pool.submit(self._resolve, target.host, target.port)
        try:
            found = list(asked.result(timeout=deadline.left()))
        except TimeoutError as error:
            raise deadline.error() from error
        except (OSError, UnicodeError) as error:
            raise StorageError(f"{target.shown}: no such host ({error})", transient=True) from error
        if not found:
            raise StorageError(f"{target.shown}: the host has no address", transient=True)
        return found

    def _permitted(self, target: FetchTarget, found: list[IpAddress]) -> tuple[IpAddress, ...]:
        # Which address it is, the message does not say: nobody maps a network by our errors.
        if not (addresses := permitted(target, dict.fromkeys(found), self._allowed)):
            raise PermissionDenied(
                f"{target.shown} leads to an address of a private network, of this machine, or of "
                "no one host, which this service does not ask. Its operator can allow it: "
                "setting `outbound_allow`."
            )
        return addresses


class _Late(Exception):
    """The time of an exchange is over."""


@dataclass(slots=True)
class _Deadline:
    """The end of one exchange, which every wait in it counts against."""

    target: FetchTarget
    seconds: float
    timer: Callable[[], float]
    stop_at: float = 0.0

    def __post_init__(self) -> None:
        self.stop_at = self.timer() + self.seconds

    def left(self) -> float:
        """Seconds that are left. Raises _Late when none are."""
        left = self.stop_at - self.timer()
        if left <= 0:
            raise _Late
        return left

    def error(self) -> StorageError:
        return StorageError(
            f"{self.target.shown} did not answer whole within {self.seconds:g} seconds",
            transient=True,
        )


class _Pinned(httpcore.NetworkBackend):
    """Connects to what was checked, whatever the name leads to by now."""

    def __init__(
        self, target: FetchTarget, addresses: tuple[IpAddress, ...], deadline: _Deadline
    ) -> None:
        self._target, self._addresses, self._deadline = target, addresses, deadline
        self._real = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002  the deadline is shorter
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        if (host, port) != (self._target.host, self._target.port):
            raise PermissionDenied(f"{self._target.shown} was checked, and not {host}:{port}")
        *others, last = self._addresses
        for address in others:
            left = self._deadline.left() / 2  # a dead address leaves time for the next one
            try:
                stream = self._real.connect_tcp(
                    str(address), port, left, local_address, socket_options
                )
                return _Bounded(stream, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        left = self._deadline.left()
        stream = self._real.connect_tcp(str(last), port, left, local_address, socket_options)
        return _Bounded(stream, self._deadline)


class _Bounded(httpcore.NetworkStream):
    """A stream each of whose waits ends with the deadline: a byte a second gains nobody time."""

    def __init__(self, real: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._real, self._deadline = real, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._real.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._real.write(buffer, self._deadline.left())

    def close(self) -> None:
        self._real.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        real = self._real.start_tls(ssl_context, server_hostname, self._deadline.left())
        return _Bounded(real, self._deadline)

    def get_extra_info(self, info: str) -> object:
        return self._real.get_extra_info(info)


def _bounded(answer: httpcore.Response, target: FetchTarget, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_stream():
        size += len(part)
        if size > max_bytes:
            raise StorageError(f"{target.shown} answered more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _plain(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
