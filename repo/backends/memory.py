"""In-memory storage backend, for one process.

In a dict. Stores are shared by name inside one process, so that opening `memory://x` twice shows
the same keys, and a pickled backend finds its data again; in any other process it is refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from weakref import WeakValueDictionary

from tensorrepo.repo.backends.base import (
    CommonBackend,
    Guarantee,
    StoredKey,
    Uploads,
    check_key,
    check_length,
    check_prefix,
)
from tensorrepo.repo.errors import UnsupportedError
from tensorrepo.repo.ids import Buffer

_SCHEME = "memory://"


class _Store:
    """The keys of one name, with the time at which each was written."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: dict[str, tuple[bytes, float]] = {}


_NAMED: defaultdict[str, _Store] = defaultdict(_Store)  # these live as long as the process
_UNNAMED: WeakValueDictionary[str, _Store] = WeakValueDictionary()
_OPENING = threading.Lock()
_NUMBERS = count(1)


class MemoryBackend(CommonBackend):
    """Keys and bytes in this process.

    Args:
        name: ``memory://...``; the same name is the same store. Without one, a store of its own
            that goes with the last backend that uses it.
    """

    def __init__(self, name: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        with _OPENING:
            if name is None:
                self.url = f"{_SCHEME}unnamed-{next(_NUMBERS)}"
                self._store = _UNNAMED[self.url] = _Store()
            else:
                self.url = _SCHEME + name.removeprefix(_SCHEME).strip("/")
                self._store = _UNNAMED.get(self.url) or _NAMED[self.url]
        self._clock = clock
        self.guarantee = Guarantee.ATOMIC
        self.local_root = None

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.url, os.getpid())

    def read(self, key: str) -> bytes:
        return self._value(key)[0]

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        view = memoryview(self._value(key)[0])[start:stop]
        check_length(f"{self.url}/{key}", start, stop, view.nbytes)
        return view

    def size(self, key: str) -> int | None:
        value = self._store.values.get(check_key(key))
        return None if value is None else len(value[0])

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        data = b"".join(parts)
        with self._store.lock:
            mine = (data, self._clock())
            return self._store.values.setdefault(check_key(key), mine) is mine

    def uploads(self) -> MemoryUploads:
        return MemoryUploads(self)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        with self._store.lock:
            self._store.values[check_key(key)] = (data, self._clock())

    def delete(self, key: str) -> None:
        with self._store.lock:
            self._store.values.pop(check_key(key), None)

    def list(self, prefix: str) -> Iterator[StoredKey]:
        check_prefix(prefix)
        with self._store.lock:
            values = self._store.values
            found = sorted((key, *values[key]) for key in values if key.startswith(prefix))
        return (StoredKey(key, len(data), written) for key, data, written in found)

    def _value(self, key: str) -> tuple[bytes, float]:
        value = self._store.values.get(check_key(key))
        if value is None:
            raise self.no_key(key)
        return value


class MemoryUploads(Uploads):
    """Creates that happen at once."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend
        self._created: dict[str, bool] = {}

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        created = self._backend.create(key, parts)
        self._created[key] = self._created.get(key, False) or created

    def finish(self) -> dict[str, bool]:
        created, self._created = self._created, {}
        return created

    def abort(self) -> None:
        self._created = {}


def _reopen(url: str, process: int) -> MemoryBackend:
    if process != os.getpid():
        raise UnsupportedError(
            f"{url} lives in the memory of process {process} and cannot be seen from this one. "
            "Use a folder for a repository that several processes share."
        )
    return MemoryBackend(url)
