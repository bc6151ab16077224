"""Gate of untrusted queries: so many at once, so many of one caller, and a short queue.

A query takes a process, its memory and a thread while it runs. Beyond the numbers a caller waits a
little, and is then told when to ask again, as is whoever comes when the queue is full.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tensorrepo.repo.errors import RateLimitedError


class QueryGate:
    """Counts queries of this process. Thread-safe."""

    def __init__(
        self, running: int, each: int, *, waiting: int = 8, wait_seconds: float = 5.0
    ) -> None:
        """`running` at once, `each` of one caller, `waiting` beside them for `wait_seconds`."""
        self._most, self._each, self._most_waiting = running, each, waiting
        self._wait_seconds = wait_seconds
        self._running: Counter[str] = Counter()
        self._waiting = 0
        self._changed = threading.Condition()

    @contextmanager
    def entered(self, caller: str) -> Iterator[None]:
        """Room for one query of `caller` while the block runs.

        Raises:
            RateLimitedError: there was none in time.
        """
        with self._changed:
            if not self._has_room(caller):
                self._wait(caller)
            self._running[caller] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[caller] -= 1
                self._running += Counter()  # without callers who have none
                self._changed.notify_all()

    def _wait(self, caller: str) -> None:
        if self._waiting >= self._most_waiting:
            raise self._refusal()
        self._waiting += 1
        try:
            if not self._changed.wait_for(lambda: self._has_room(caller), self._wait_seconds):
                raise self._refusal()
        finally:
            self._waiting -= 1

    def _has_room(self, caller: str) -> bool:
        return self._running.total() < self._most and self._running[caller] < self._each

    def _refusal(self) -> RateLimitedError:
        return RateLimitedError(
            f"too many queries run here: {self._most} at once, {self._each} of one caller. Ask "
            "again in a moment.",
            retry_seconds=max(self._wait_seconds, 1.0),
        )
