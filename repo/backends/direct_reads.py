"""Ranges of a service's objects straight from its store, by signed URLs that are kept for a while.

A service that lets its clients go past it answers a read of a large value by a redirect: each range
of a stream asks it first. Who reads an object for the second time asks for an address of all of it,
which is good for every range until it expires; whoever says what is to be read gets addresses
before the first read. Threads that wait for addresses share one call.

Whatever fails here is no error: the caller asks the service, which says what is wrong.
"""

from __future__ import annotations

import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from tensorrepo.repo.backends.http_connection import HttpConnection
from tensorrepo.repo.backends.service_format import MOST_ADDRESSES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.cache import LimitedCache

_EARLY_SECONDS: Final = 60.0  # an address is left before it expires
_TIMEOUT_SECONDS: Final = 30.0
_KNOWN_BYTES: Final = 16 << 20
_ADDRESS_BYTES: Final = 1500  # that one takes in memory, about
_MOST_IDLE: Final = 128  # connections
_MOST_FAILURES: Final = 3  # connections in a row: this network may lead to the service alone


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of an object: its address, if it has one, and until when that is good."""

    url: str | None
    until: float


_SEEN: Final = _Known(None, 0.0)  # it was read, and nobody asked yet
Ask = Callable[[Sequence[str]], tuple[Mapping[str, str], float]]


class StoreAddresses:
    """Addresses of objects by key, asked for together. Thread-safe.

    Args:
        ask: gives addresses for some keys, and for how many seconds they are good. Keys that it
            leaves out have none.
        timer: seconds from any start.
    """

    def __init__(self, ask: Ask, timer: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._timer = ask, timer
        self._known = LimitedCache[_Known](_KNOWN_BYTES)
        self._wanted: dict[str, None] = {}
        self._asking: tuple[str, ...] = ()
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def expect(self, keys: Sequence[str]) -> None:
        """Ask for the addresses of objects that will be read, on a thread that ends then."""
        with self._lock:
            new = [key for key in keys if self._known.get(key) is None and key not in self._asking]
            self._wanted |= dict.fromkeys(new)
        if new:
            threading.Thread(target=self._ask_ahead, name="addresses", daemon=True).start()

    def find(self, key: str) -> str | None:
        """Address of an object that is read again, or was expected.

        None: it has none, or is read for once yet.
        """
        known = self._known.get(key)
        if known is not None and self._timer() < known.until:
            return known.url
        with self._lock:
            known = self._known.get(key)
            if known is not None and self._timer() < known.until:
                return known.url
            if key not in self._asking:
                if known is None and key not in self._wanted:
                    self._known.put(key, _SEEN, _ADDRESS_BYTES)
                    return None
                self._wanted[key] = None
        with self._turn:  # whoever has it asks for all that wait
            known = self._known.get(key)
            if known is None or self._timer() >= known.until:
                self._ask_for(key)
                known = self._known.get(key)
            else:
                with self._lock:  # another one asked
                    self._wanted.pop(key, None)
        return None if known is None else known.url

    def drop(self, key: str) -> None:
        """Its address is good no more."""
        self._known.drop(key)

    def _ask_ahead(self) -> None:
        while True:
            with self._turn:
                with self._lock:
                    key = next(iter(self._wanted), None)
                if key is None:
                    return
                self._ask_for(key)

    def _ask_for(self, key: str) -> None:
        with self._lock:
            self._wanted.pop(key, None)
            self._asking = (key, *islice(self._wanted, MOST_ADDRESSES - 1))
            for one in self._asking[1:]:
                del self._wanted[one]
        asked_at = self._timer()
        try:
            found, seconds = self._ask(self._asking)
            until = asked_at + seconds - _EARLY_SECONDS
            for one in self._asking:
                self._known.drop(one)
                self._known.put(one, _Known(found.get(one), until), _ADDRESS_BYTES)
        finally:
            with self._lock:
                self._asking = ()


class DirectReads:
    """Reads of ranges by addresses. Thread-safe; each thread that reads has a connection.

    Args:
        addresses: gives the addresses.
        plain: whether an address may be without TLS.
    """

    def __init__(self, addresses: StoreAddresses, *, plain: bool) -> None:
        self._addresses, self._plain = addresses, plain
        self._idle: dict[str, list[HttpConnection]] = {}
        weakref.finalize(self, _close_all, self._idle)  # many never close a repository
        self._lock = threading.Lock()
        self._failures = 0

    def expect(self, keys: Sequence[str]) -> None:
        """Ranges of these objects will be read soon. Does not wait."""
        if self._failures < _MOST_FAILURES:
            self._addresses.expect(keys)

    def read(self, key: str, start: int, stop: int) -> memoryview | None:
        """Bytes ``[start, stop)`` of an object, not verified; None: ask the service for them."""
        if stop <= start or self._failures >= _MOST_FAILURES:
            return None
        address = self._addresses.find(key)
        if address is None:
            return None
        data = self._get(address, start, stop)
        if data is None:
            self._addresses.drop(key)
        return data

    def close(self) -> None:
        """Close connections that nobody reads from."""
        with self._lock:
            _close_all(self._idle)

    def _get(self, address: str, start: int, stop: int) -> memoryview | None:
        parts = urlsplit(address)
        if parts.scheme != "https" and not (self._plain and parts.scheme == "http"):
            return None
        origin, target = f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}"
        while (connection := self._take(origin)) is not None:
            try:
                data = connection.fetch(target, start, stop)
            except OSError:  # it was idle for too long, perhaps
                connection.close()
                continue
            self._keep(origin, connection)
            return data
        return self._get_anew(origin, target, start, stop)

    def _get_anew(self, origin: str, target: str, start: int, stop: int) -> memoryview | None:
        connection = None
        try:
            connection = self._connect(origin)
            data = connection.fetch(target, start, stop)
        except (OSError, ValueError):
            if connection is not None:
                connection.close()
            self._failures += 1
            return None
        self._failures = 0
        self._keep(origin, connection)
        return data

    def _connect(self, origin: str) -> HttpConnection:
        tls = self._tls if origin.startswith("https:") else None
        return HttpConnection(origin, _TIMEOUT_SECONDS, tls)

    def _take(self, origin: str) -> HttpConnection | None:
        with self._lock:
            idle = self._idle.get(origin)
            return idle.pop() if idle else None

    def _keep(self, origin: str, connection: HttpConnection) -> None:
        if connection.reusable:
            with self._lock:
                idle = self._idle.setdefault(origin, [])
                if len(idle) < _MOST_IDLE:
                    idle.append(connection)
                    return
        connection.close()

    # Made when needed: it reads the system's certificates, 10 ms.
    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _close_all(idle: dict[str, list[HttpConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
    idle.clear()
