"""Single flight: values that are opened when they are first asked for, once for all who ask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tensorrepo.repo.objects.cache import LimitedCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class OpenedByKey(Generic[K, V]):
    """What was opened, by key. Thread-safe.

    All who ask for a key at once share one call, and its failure, which is not kept. Nobody waits
    for another key: to open one may take as long as a store gives no answer.
    """

    def __init__(self) -> None:
        self._opened: dict[K, V] = {}
        self._opening = LimitedCache[V](0)  # keeps nothing: its calls are shared
        self._lock = threading.Lock()

    def get(self, key: K, open_one: Callable[[], V]) -> V:
        """The value of `key`; where there is none yet, what `open_one` gives."""
        known = self._opened.get(key)
        if known is not None:
            return known

        def load() -> tuple[V, int]:
            found = self._opened.get(key)  # opened since this caller looked
            if found is None:
                found = open_one()
                with self._lock:
                    self._opened[key] = found
            return found, 1

        return self._opening.get_or_load(key, load)

    def drop(self, key: K) -> V | None:
        """Take one out; None: it was not opened."""
        with self._lock:
            return self._opened.pop(key, None)

    def values(self) -> list[V]:
        """All that are open."""
        with self._lock:
            return list(self._opened.values())

    def clear(self) -> list[V]:
        """Take all out."""
        with self._lock:
            taken, self._opened = list(self._opened.values()), {}
            return taken
