"""Rate limit of a transfer, and what it moved so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from threading import Lock
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass

_SLICE_SECONDS: Final = 0.1


class RateLimit:
    """A token bucket without a burst: so many bytes a second, of all threads together."""

    def __init__(
        self,
        bytes_per_second: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock, self._sleep = clock, sleep
        self._lock = Lock()
        self._free_at = 0.0

    def take(self, size_bytes: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until so many bytes may pass, or until `stopped`."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            begin_at = max(now, self._free_at)
            self._free_at = begin_at + size_bytes / self._rate
        while (left := begin_at - now) > 0 and not stopped():
            self._sleep(min(left, _SLICE_SECONDS))  # Ctrl-C does not wait for a slow link
            now = self._clock()


@dataclass(slots=True)
class TransferTotals:
    """What a transfer did so far; `known_*` is what is known to be there to do.

    Attributes:
        commits: commits whose objects are all there.
        objects: objects that were moved.
        bytes: bytes of these, before compression.
        present: objects that the receiver had already, of those that were looked for.
        known_objects: objects that were found to be needed.
        known_bytes: bytes of these.
    """

    commits: int = 0
    objects: int = 0
    bytes: int = 0
    present: int = 0
    known_objects: int = 0
    known_bytes: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, other: TransferTotals) -> None:
        """Count what another transfer did as well."""
        with self._lock:
            self.commits += other.commits
            self.objects += other.objects
            self.bytes += other.bytes
            self.present += other.present
            self.known_objects += other.known_objects
            self.known_bytes += other.known_bytes

    def plan(self, objects: int, size_bytes: int) -> None:
        with self._lock:
            self.known_objects += objects
            self.known_bytes += size_bytes

    def moved(self, size_bytes: int, *, objects: int = 0) -> None:
        with self._lock:
            self.bytes += size_bytes
            self.objects += objects

    def were_there(self, size_bytes: int) -> None:
        """So many bytes of an object that is being moved came before."""
        with self._lock:
            self.known_bytes -= size_bytes

    def was_there(self, size_bytes: int) -> None:
        with self._lock:
            self.present += 1
            self.known_bytes -= size_bytes
