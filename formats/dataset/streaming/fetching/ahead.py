"""How does work happen ahead of whoever needs its results, on threads that always end?

`Fetcher` loads runs on a few threads in the order in which they will be taken, within a byte limit.
`Ahead` iterates on one thread of its own and hands the items over in order. Threads refer to these
objects and to nothing that a user holds, so an iterator that is dropped can stop them; they are
daemons, so nothing keeps a process from ending.
"""

from __future__ import annotations

from collections import deque
from threading import Condition, Lock, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorrepo.repo.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_OWN = "tensorrepo-"  # what names of threads begin with
_JOIN_SECONDS = 10.0  # reads that hang longer are left to their daemon threads


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


class Ahead(Generic[T]):
    """Iterates over `items` on a thread of its own, up to `most` items ahead."""

    def __init__(
        self,
        items: Iterator[T],
        most: int,
        name: str,
        *,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; the thread, called `name`, starts with the first item asked for.

        So whoever makes this can first see to it that it will be closed, whatever happens.
        At most `most` items wait to be taken. `stop` is called by `close`, beside the thread: it
        ends what `items` may wait for.
        """
        self._items = items
        self._stop = stop
        self._most = most
        self._ready: deque[T] = deque()
        self._failure: BaseException | None = None
        self._finished = False
        self._closed = False
        self._lock = Lock()
        self._room, self._arrived = Condition(self._lock), Waiting()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._started = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._started and not self._closed:
            self._started = True
            self._thread.start()
        while True:
            with self._lock:
                if self._ready:
                    self._room.notify()
                    return self._ready.popleft()
                if self._closed:
                    raise StopIteration
                if self._failure is not None:
                    raise self._failure
                if self._finished:
                    raise StopIteration
                wait = self._arrived.add()
            wait()

    def close(self) -> None:
        """Stop, and close the generator behind it. Safe to call more than once."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._arrived.wake()
        if self._stop is not None:
            self._stop()
        join_all([self._thread])
        self._ready.clear()

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._hand_over(item):
                    break
        except BaseException as error:  # noqa: BLE001  whoever takes the next item gets it
            self._failure = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
            with self._lock:
                self._finished = True
                self._arrived.wake()

    def _hand_over(self, item: T) -> bool:
        with self._lock:
            while len(self._ready) >= self._most and not self._closed:
                self._room.wait()
            if self._closed:
                return False
            self._ready.append(item)
            self._arrived.wake()
            return True


def is_own_thread() -> bool:
    """Whether this is a thread that some stream started: all of them are called so."""
    return current_thread().name.startswith(_OWN)


def join_all(threads: Sequence[Thread], seconds: float = _JOIN_SECONDS) -> None:
    """Wait for threads to end, so long for all of them together."""
    until = monotonic() + seconds
    for thread in threads:
        if thread.ident is not None:  # an interrupt may have come before it was started
            thread.join(max(0.0, until - monotonic()))
