"""Which of the values that were read before are kept?"""

from __future__ import annotations

import os
from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_V = TypeVar("_V")


class LimitedCache(Generic[_V]):
    """The values used last, within a limit in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._items: OrderedDict[object, tuple[_V, int]] = OrderedDict()
        self._loading: dict[tuple[int, object], Future[_V]] = {}
        self._lock = Lock()

    def get(self, key: object) -> _V | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: object, value: _V, size: int) -> None:
        with self._lock:
            if key in self._items or size > self._limit_bytes:
                return
            self._items[key] = value, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                self._bytes -= self._items.popitem(last=False)[1][1]

    def drop(self, key: object) -> None:
        with self._lock:
            self._bytes -= self._items.pop(key, (None, 0))[1]

    def get_or_load(self, key: object, load: Callable[[], tuple[_V, int]]) -> _V:
        """The value of `key`; `load` gives it and its bytes, once for all who ask meanwhile."""
        found = self.get(key)
        if found is not None:
            return found
        # A forked process has the keys of threads that it does not have: nobody answers there.
        loading = (os.getpid(), key)
        with self._lock:
            other = self._loading.get(loading)
            if other is None:
                self._loading[loading] = mine = Future[_V]()
        if other is not None:
            return other.result()
        try:
            value, size = load()
            self.put(key, value, size)
            mine.set_result(value)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loading[loading]
        return value
