"""Quotas: how many bytes a repository may take in the service's storage.

What a store holds is told by listing it, which is done at most every ten minutes in a process;
what this process stores in between is added, and what it refuses before storing it is not. So
several processes may together go beyond a quota by what they store in that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import TooLargeError

FRESH_SECONDS: Final = 600.0


class StoredBytes:
    """What a repository takes, as this process knows it. Thread-safe."""

    def __init__(
        self, served: ServedRepository, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._backend: Backend = served.core.backend
        self._timer = timer
        self._listed_at = float("-inf")
        self._listed = self._added = 0
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Bytes; lists the store, so not for the event loop."""
        with self._lock:  # one lists, the others wait for it
            return self._total()

    def take(self, size: int, most: int) -> tuple[int, float]:
        """Count `size` bytes if they and what there is are at most `most`.

        Returns:
            Bytes that there are, and when the store was listed.
        """
        with self._lock:
            taken = self._total()
            if taken + size <= most:
                self._added += size
            return taken, self._listed_at

    def give_back(self, size: int, listed_at: float) -> None:
        """Of bytes that were taken nothing was stored. A listing since then told that already."""
        with self._lock:
            if self._listed_at == listed_at:
                self._added -= size

    def add(self, size: int) -> None:
        """So many bytes were stored by this process."""
        with self._lock:
            self._added += size

    def _total(self) -> int:
        if self._timer() - self._listed_at >= FRESH_SECONDS:
            before = self._added
            self._listed = sum(stored.bytes for stored in self._backend.list(""))
            self._added -= before
            self._listed_at = self._timer()
        return self._listed + self._added


@dataclass(frozen=True, slots=True)
class CountedRoom:
    """Bytes that count as stored from now on. `known` is None where there is no quota."""

    known: StoredBytes | None = None
    size: int = 0
    listed_at: float = 0.0

    def give_back(self) -> None:
        """What was to be stored was refused before any of it was. May wait for a listing."""
        if self.known is not None:
            self.known.give_back(self.size, self.listed_at)


def require_room(access: RepositoryAccess, size: int, quota_bytes: int | None) -> CountedRoom:
    """Count `size` bytes that are to be stored.

    Raises:
        TooLargeError: the repository would take more than `quota_bytes`; None: there is no quota.
    """
    if quota_bytes is None:
        return CountedRoom()
    known = access.served.kept(StoredBytes)
    taken, listed_at = known.take(size, quota_bytes)
    if taken + size > quota_bytes:
        raise TooLargeError(
            f"{access.name} takes {taken:,} bytes and may take {quota_bytes:,}: {size:,} more were "
            "not stored. Remove what nobody needs and collect it, or ask whoever runs this service."
        )
    return CountedRoom(known, size, listed_at)
