"""How much work may be under way at once?

A store answers late, so many requests run side by side; each holds the bytes that it sends, so
their sum is bounded. Threads exist only between the first `submit` and `drain` or `stop`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable


class Flights:
    """Calls on a few threads, bounded by the bytes that they hold.

    Args:
        threads: how many calls run at once.
        limit_bytes: how many bytes may wait or run; a call that holds more runs alone.
        name: what the threads are called.
    """

    def __init__(self, threads: int, limit_bytes: int, name: str) -> None:
        self._threads = threads
        self._limit_bytes = limit_bytes
        self._name = name
        self._changed = threading.Condition()
        self._bytes = 0
        self._calls = 0
        self._failure: BaseException | None = None
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None], size_bytes: int) -> None:
        """Run `call` soon. Waits while too much is under way; raises what an earlier call did."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._has_room(size_bytes))
            self._raise_failure()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, self._name)
            self._executor.submit(self._run, call, size_bytes)
            self._bytes += size_bytes
            self._calls += 1

    def drain(self) -> None:
        """Wait until nothing is under way, and end the threads; raises the first failure."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._calls)
        self._end_threads()
        with self._changed:
            self._raise_failure()

    def stop(self) -> None:
        """Drop what has not begun, wait for what has, end the threads; no further `submit`."""
        with self._changed:
            self._failure = self._failure or StorageError("this upload was aborted")
            self._changed.notify_all()
        self._end_threads()

    def _end_threads(self) -> None:
        with self._changed:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)

    def _has_room(self, size_bytes: int) -> bool:
        return not self._calls or self._bytes + size_bytes <= self._limit_bytes

    def _run(self, call: Callable[[], None], size_bytes: int) -> None:
        failure = None
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        with self._changed:
            self._bytes -= size_bytes
            self._calls -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
