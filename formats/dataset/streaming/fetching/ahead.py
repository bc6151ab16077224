"""Prefetcher of runs that lie in memory or on a local disk: loaded in groups, in order.

It is no `ordered_map` of `repo.threads`: runs are expected while others are taken, several are
loaded by one call, and bytes count as taken, not as drawn. Requests to a store have `downloads`.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorrepo.repo.threads import join_all
from tensorrepo.repo.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class Fetcher(Generic[T]):
    """Loads runs ahead, some at a time. One thread expects and takes; `threads` threads load.

    Runs are taken in the order in which they were expected, each once.
    """

    def __init__(
        self,
        load: Callable[[list[int]], T],
        size_of: Callable[[int], int],
        *,
        threads: int,
        ahead_bytes: int,
        group_bytes: int = 0,
    ) -> None:
        """Prepare; the threads start when runs are first expected.

        Args:
            load: makes the value of some runs; called on any thread.
            size_of: bytes of a run.
            threads: how many load at the same time.
            ahead_bytes: what may be loaded, or be loading, and not taken yet.
            group_bytes: runs of this many bytes are loaded at once, or a single larger one.
        """
        self._load, self._size_of = load, size_of
        self._ahead_bytes, self._group_bytes = ahead_bytes, group_bytes
        self._expected: deque[int] = deque()
        self._results: dict[int, tuple[T | BaseException, list[int], int]] = {}  # by first run
        self._early: set[int] = set()  # taken together with runs before them
        self._outstanding_bytes = 0
        self._closed = False
        self._lock = Lock()
        self._room, self._arrived = Condition(self._lock), Waiting()
        self._threads = [
            Thread(target=self._work, name=f"tensorrepo-fetch-{number}", daemon=True)
            for number in range(threads)
        ]
        self._started = False

    def expect(self, runs: Sequence[int]) -> None:
        """These will be taken next, in this order, after those expected before."""
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        with self._lock:
            self._expected.extend(runs)
            self._room.notify_all()

    def take(self, runs: Sequence[int]) -> list[T]:
        """Values that hold the runs expected first, without those that were taken already.

        Runs that were loaded together come together. Raises what loading them raised.
        """
        found = []
        for run in runs:
            if run in self._early:
                self._early.remove(run)
            else:
                found.append(self._take(run))
        with self._lock:
            if self._may_start():
                self._room.notify(len(found))
        return found

    def _take(self, run: int) -> T:
        while True:
            with self._lock:
                if run in self._results:
                    result, group, group_bytes = self._results.pop(run)
                    if isinstance(result, BaseException):
                        raise result
                    self._outstanding_bytes -= group_bytes
                    self._early.update(group[1:])
                    return result
                if self._closed:
                    raise RuntimeError("taken from a fetcher that is closed")
                self._room.notify_all()
                wait = self._arrived.add()
            wait()

    def stop(self) -> None:
        """Load nothing more, and let whoever takes go: that raises. For any thread."""
        with self._lock:
            self._closed = True
            self._expected.clear()
            self._room.notify_all()
            self._arrived.wake()

    def close(self) -> None:
        """Stop. Reads that have begun are waited for; what was loaded is dropped."""
        self.stop()
        join_all(self._threads)
        self._results.clear()

    def _work(self) -> None:
        while True:
            group, group_bytes = self._next_group()
            if not group:
                return
            result: T | BaseException
            try:
                result = self._load(group)
            except BaseException as error:  # noqa: BLE001  whoever takes the runs gets it
                result = error
            with self._lock:
                self._results[group[0]] = result, group, group_bytes
                self._arrived.wake()

    def _next_group(self) -> tuple[list[int], int]:
        group: list[int] = []
        group_bytes = 0
        with self._lock:
            while not self._closed and not self._may_start():
                self._room.wait()
            while not self._closed and self._expected:
                group.append(run := self._expected.popleft())
                group_bytes += self._size_of(run)
                if group_bytes >= self._group_bytes:
                    break
            self._outstanding_bytes += group_bytes
        return group, group_bytes

    def _may_start(self) -> bool:
        # With nothing outstanding the next run is loaded however large it is.
        after = self._outstanding_bytes + self._group_bytes
        within = after <= self._ahead_bytes or not self._outstanding_bytes
        return bool(self._expected) and within
