"""Thread primitives: bounded ordered map, waits that Ctrl-C may interrupt, bounded uploads.

`ordered_map` gives ``work(item)`` for every item in the order of the items, while a few threads
work on those that come next, within a number of items and of bytes. Worker threads draw the items
themselves, one thread at a time, so that even slow items are drawn ahead. They refer to nothing
that a user holds and are daemons: nothing keeps a process from ending, and when the iterator is
closed, dropped, or left by an error or by Ctrl-C, they end before it is over.

An interrupt that comes while `threading.Condition` gets its lock leaves it locked for ever, or
gives back a lock that another thread has: entering and waking up are Python code with an instant
between the lock and the block that returns it. A `with` on a plain lock has no such instant, so
here a thread waits outside of it:

    while True:
        with lock:
            if there_is_something:
                return it
            wait = waiting.add()
        wait()

Threads of our own are never interrupted: for them conditions, entered by their lock, are as good.

A store answers late, so many requests run side by side; each holds the bytes that it sends, so
their sum is bounded. `ThreadFlights` runs functions that block; the backend of clouds has
`LoopFlights`, of coroutines, which can be cancelled in the middle of a request. Threads exist only
between the first `submit` and `drain` or `stop`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Condition, Lock, RLock, Thread, current_thread
from time import monotonic, sleep
from typing import Any, Final, Generic, Protocol, TypeVar

from tensorrepo.repo.errors import StorageError


class Wait(Protocol):
    """Waits for the next `wake`; False when `timeout` seconds pass before."""

    def __call__(self, *, timeout: float = -1) -> bool: ...


class Waiting:
    """Threads that wait for a change of what a lock guards; all methods are for who holds it."""

    def __init__(self) -> None:
        self._gates: list[Lock] = []

    def add(self) -> Wait:
        """What to call, once, when the lock is given back: it returns after the next `wake`.

        It takes ``timeout``, seconds, and is False if they pass before.
        """
        gate = Lock()
        gate.acquire()
        self._gates.append(gate)
        return gate.acquire

    def wake(self) -> None:
        """Let all threads go that were added."""
        while self._gates:  # one that an interrupt leaves here is opened by the next wake
            gate = self._gates[-1]
            if gate.locked():
                gate.release()
            self._gates.pop()


S = TypeVar("S")
T = TypeVar("T")

JOIN_SECONDS: Final = 10.0  # work that hangs longer is left to its daemon thread
_LIMBO_SECONDS: Final = 0.05
_OWN: Final = "tensorrepo-"


def ordered_map(
    items: Iterable[S],
    work: Callable[[S], T],
    *,
    threads: int,
    ahead: int | None = None,
    bytes_ahead: int | None = None,
    size_of: Callable[[S], int] | None = None,
    name: str = "map",
) -> Generator[T]:
    """Results of `work` in the order of `items`, worked on ahead by threads of its own.

    What `work` or `items` raises comes in place of its result, and nothing after that. Threads
    start with the first result asked for, as many as there are items for, and have ended when the
    generator ends or is closed.

    Args:
        items: drawn on worker threads, one thread at a time; closed there if it is a generator.
        work: called on any of the threads.
        threads: number of items that are worked on at once; with 0 the caller's thread does it all.
        ahead: number of items that are worked on, or done and not taken yet; twice `threads` if
            left out.
        bytes_ahead: most bytes, by `size_of`, of these items together; a larger one goes alone.
        size_of: bytes that an item stands for.
        name: name of the threads, behind ``tensorrepo-``.
    """
    if threads <= 0:
        yield from map(work, items)
        return
    results = OrderedMap(
        items,
        work,
        threads=threads,
        ahead=ahead,
        bytes_ahead=bytes_ahead,
        size_of=size_of,
        name=name,
    )
    try:
        yield from results
    finally:
        results.close()


class OrderedMap(Generic[S, T]):
    """`ordered_map` as an object that any thread may close; whoever makes one must close it."""

    def __init__(
        self,
        items: Iterable[S],
        work: Callable[[S], T],
        *,
        threads: int,
        ahead: int | None = None,
        bytes_ahead: int | None = None,
        size_of: Callable[[S], int] | None = None,
        name: str = "map",
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; threads start with the first result asked for, and there is at least 1.

        Arguments are those of `ordered_map`; `stop` is called by `close`, beside the threads, and
        ends what `items` or `work` may wait for.
        """
        self._source = items
        self._items: Iterator[S] | None = None  # made on a worker thread, too
        self._work_on, self._size_of, self._stop = work, size_of, stop
        self._most_threads = threads
        self._most = 2 * threads if ahead is None else ahead
        self._most_bytes = bytes_ahead
        self._name = name
        self._results: dict[int, tuple[T | None, BaseException | None, int]] = {}
        self._drawn = self._taken = self._bytes = self._working = 0
        self._ended = self._closed = False
        self._threads: list[Thread] = []
        # Reentrant: the collector may close a dropped generator on a thread that is in here.
        self._lock, self._drawing = RLock(), Lock()
        self._room, self._arrived = Condition(self._lock), Waiting()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._threads:
            with self._lock:
                self._start_thread()
        result, failure = self._take()
        if isinstance(failure, StopIteration):  # passed on, it would end the loop unseen
            message = "the work on an item raised StopIteration"
            raise RuntimeError(message) from failure  # noqa: TRY004
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]  # there is a result where nothing failed

    def close(self) -> None:
        """Begin nothing more, and wait for work that has begun. May be called more than once."""
        with self._lock:
            self._closed = self._ended = True
            self._room.notify_all()
            self._arrived.wake()
        if self._stop is not None:
            self._stop()
        join_all(self._threads)
        self._results.clear()

    def _take(self) -> tuple[T | None, BaseException | None]:
        while True:
            with self._lock:
                if self._taken in self._results:
                    result, failure, size_bytes = self._results.pop(self._taken)
                    self._taken += 1
                    self._bytes -= size_bytes
                    self._room.notify()
                    return result, failure
                if self._closed or (self._ended and self._taken >= self._drawn):
                    raise StopIteration
                wait = self._arrived.add()
            wait()

    def _start_thread(self) -> None:
        """One thread more, while there is work for it; called with the lock held."""
        if self._ended or len(self._threads) >= self._most_threads:
            return
        label = f"{_OWN}{self._name}-{len(self._threads)}"
        thread = Thread(target=self._work, name=label, daemon=True)
        self._threads.append(thread)
        self._working += 1
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread to give
            self._threads.pop()
            self._working -= 1
            if not self._threads:
                raise

    def _work(self) -> None:
        try:
            while (drawn := self._draw()) is not None:
                ticket, item, size_bytes = drawn
                try:
                    self._arrive(ticket, self._work_on(item), None, size_bytes)
                except BaseException as error:  # noqa: BLE001  whoever takes this one gets it
                    self._arrive(ticket, None, error, size_bytes)
                del drawn, item  # a thread that waits keeps nothing alive
        finally:
            self._finish()

    def _draw(self) -> tuple[int, S, int] | None:
        """The next item with its number and bytes; None when there are no more."""
        with self._drawing:
            with self._lock:
                if not self._wait_for_room(0):
                    return None
            try:
                if self._items is None:
                    self._items = iter(self._source)
                item = next(self._items)
                size_bytes = 0 if self._size_of is None else self._size_of(item)
            except StopIteration:
                self._end()
                return None
            except BaseException as error:  # noqa: BLE001  comes after the items before it
                with self._lock:
                    ticket, self._drawn = self._drawn, self._drawn + 1
                self._arrive(ticket, None, error, 0)
                return None
            with self._lock:
                if not self._wait_for_room(size_bytes):
                    return None
                ticket, self._drawn = self._drawn, self._drawn + 1
                self._bytes += size_bytes
                self._start_thread()
            return ticket, item, size_bytes

    def _wait_for_room(self, size_bytes: int) -> bool:
        """Whether an item of so many bytes may begin, as soon as that is known; holds the lock."""
        while not self._ended and not self._has_room(size_bytes):
            self._room.wait()
        return not self._ended

    def _has_room(self, size_bytes: int) -> bool:
        outstanding = self._drawn - self._taken
        if outstanding >= self._most:
            return False
        within = self._most_bytes is None or self._bytes + size_bytes <= self._most_bytes
        return within or not outstanding

    def _arrive(
        self, ticket: int, result: T | None, failure: BaseException | None, size_bytes: int
    ) -> None:
        with self._lock:
            if not self._closed:
                self._results[ticket] = result, failure, size_bytes
            if ticket == self._taken:  # whoever takes waits for no other
                self._arrived.wake()
        if failure is not None:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._room.notify_all()
            self._arrived.wake()

    def _finish(self) -> None:
        with self._lock:
            self._working -= 1
            last = not self._working
        close = getattr(self._items, "close", None)
        if last and close is not None:
            close()


class StandingThreads:
    """Threads for rounds of work so short that to start threads takes longer; they stay a while.

    Whoever has work does it, too, and waits for no more than what others have begun: a thread that
    comes late finds nothing left.

    Args:
        most: number of threads.
        name: name of the threads. They belong to the process and stay behind the work they had, so
            they are none of those that `is_own_thread` tells, which end with what somebody holds.
        idle_seconds: how long a thread without work stays.
    """

    def __init__(self, most: int, name: str, idle_seconds: float = 2.0) -> None:
        self._most, self._name, self._idle_seconds = most, name, idle_seconds
        self._begin()

    def each(self, work: Callable[[S], None], items: Iterable[S], *, threads: int) -> None:
        """Call `work` of each item, on so many threads, the caller's among them.

        Raises what the first that failed did, when none is under way; after it none is begun.
        """
        shared = _SharedWork(work, items)
        for number in range(1, threads):
            self._call(shared, number)
        shared.finish()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = Lock()
        self._calls = SimpleQueue[_SharedWork[Any]]()
        self._count = 0

    def _call(self, shared: _SharedWork[S], number: int) -> None:
        if self._process != os.getpid():  # a forked process has none of these threads
            self._begin()
        with self._lock:
            self._calls.put(shared)
            if self._count >= min(number, self._most):
                return
            self._count += 1
        try:
            Thread(target=self._help, name=f"{self._name}-{number}", daemon=True).start()
        except RuntimeError:  # the machine has no thread to give: whoever has the work does it
            with self._lock:
                self._count -= 1

    def _help(self) -> None:
        while True:
            try:
                shared = self._calls.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if self._calls.empty():
                        self._count -= 1
                        return
                continue
            shared.help()
            del shared  # a thread that waits keeps nothing alive


class ProcessThreadPool(Executor):
    """A `ThreadPoolExecutor` that a process keeps until it ends; a forked process gets its own.

    The executor itself hands work to threads that a fork does not have, and nobody does it.

    Args:
        threads: number of functions that run at once.
        name: name of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._begin()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if self._process != os.getpid():
            self._begin()
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, self._name)
        self._process = os.getpid()


class _SharedWork(Generic[S]):
    """Items that several threads take one by one."""

    def __init__(self, work: Callable[[S], None], items: Iterable[S]) -> None:
        self._work, self._left = work, deque(items)
        self._lock, self._gone = Lock(), Waiting()
        self._helpers = 0
        self._failure: BaseException | None = None

    def help(self) -> None:
        """Do what is left, on a thread beside the caller's."""
        with self._lock:
            if not self._left:
                return
            self._helpers += 1
        self._do()
        with self._lock:
            self._helpers -= 1
            if not self._helpers:
                self._gone.wake()

    def finish(self) -> None:
        """Do what is left, and wait for what others have begun; raises the first failure."""
        try:
            self._do()
        finally:
            while True:
                with self._lock:
                    self._left.clear()
                    if not self._helpers:
                        break
                    wait = self._gone.add()
                wait()
        if self._failure is not None:
            raise self._failure

    def _do(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                item = self._left.popleft()
            try:
                self._work(item)
            except BaseException as error:  # noqa: BLE001  raised where all is waited for
                with self._lock:
                    self._failure = self._failure or error
                    self._left.clear()


def is_own_thread() -> bool:
    """Whether the current thread is one that tensorrepo started; their names begin alike."""
    return current_thread().name.startswith(_OWN)


def join_all(threads: Sequence[Thread], seconds: float = JOIN_SECONDS) -> None:
    """Wait for threads to end, at most so long for all of them together."""
    until = monotonic() + seconds
    for thread in threads:
        # Ctrl-C may have come while it was started: it has no number yet, and soon will, or never.
        limbo = monotonic() + _LIMBO_SECONDS
        while thread.ident is None and monotonic() < limbo:
            sleep(0.001)
        if thread.ident is not None and thread is not current_thread():
            thread.join(max(0.0, until - monotonic()))


class Flights(ABC):
    """Calls in flight: how many are under way, how many bytes they hold, what went wrong first."""

    def __init__(self, calls: int, limit_bytes: int, name: str) -> None:
        self._limits = calls, limit_bytes
        self._name = name
        self._lock = threading.Lock()  # of the threads
        self._counting = threading.Lock()
        self._changed = Waiting()
        self._calls = 0
        self._bytes = 0
        self._failure: BaseException | None = None

    def drain(self) -> None:
        """Wait until nothing is under way, and end the threads; raises the first failure."""
        while True:
            with self._counting:
                if self._failure or not self._calls:
                    break
                wait = self._changed.add()
            wait()
        self._end()
        self._raise_failure()

    def stop(self) -> None:
        """End what is under way and the threads; no further `submit`."""
        self._leave(0, 0, aborted())
        self._end()

    @abstractmethod
    def _end(self) -> None:
        """End the threads, and what is under way where that can be."""

    def _enter(self, size_bytes: int) -> None:
        """Wait for room; what needs more than all of it runs alone. Raises the first failure."""
        calls, limit_bytes = self._limits
        while True:
            with self._counting:
                self._raise_failure()
                within = self._calls < calls and self._bytes + size_bytes <= limit_bytes
                if within or not self._calls:
                    self._calls += 1
                    self._bytes += size_bytes
                    return
                wait = self._changed.add()
            wait()

    def _leave(self, calls: int, size_bytes: int, failure: BaseException | None) -> None:
        with self._counting:
            self._calls -= calls
            self._bytes -= size_bytes
            self._failure = self._failure or failure
            self._changed.wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class ThreadFlights(Flights):
    """Functions on a few threads; those that have begun when it is stopped run to their end.

    Args:
        threads: number of functions that run at once; as many again may wait.
        limit_bytes: most bytes that those which run and wait hold together.
        name: name of the threads.
    """

    def __init__(self, threads: int, limit_bytes: int, name: str) -> None:
        super().__init__(2 * threads, limit_bytes, name)
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None], size_bytes: int) -> None:
        """Run `call` soon. Waits while too much is under way; raises what an earlier call did."""
        self._enter(size_bytes)
        with self._lock:
            self._raise_failure()  # a `stop` meanwhile must not get new threads
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, self._name)
            self._executor.submit(self._run, call, size_bytes)

    def _end(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)

    def _run(self, call: Callable[[], None], size_bytes: int) -> None:
        failure = None
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        self._leave(1, size_bytes, failure)


def aborted() -> StorageError:
    return StorageError("this upload was aborted")
