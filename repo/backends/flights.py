"""How much work may be under way at once?

A store answers late, so many requests run side by side; each holds the bytes that it sends, so
their sum is bounded. `ThreadFlights` runs functions that block, `LoopFlights` coroutines, which
can be cancelled in the middle of a request. Threads exist only between the first `submit` and
`drain` or `stop`.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class _Room:
    """How many calls are under way, how many bytes they hold, and what went wrong first."""

    def __init__(self, calls: int, limit_bytes: int) -> None:
        self._limits = calls, limit_bytes
        self._lock = threading.Lock()
        self._changed = Waiting()
        self._calls = 0
        self._bytes = 0
        self._failure: BaseException | None = None

    def enter(self, size_bytes: int) -> None:
        """Wait for room; what needs more than all of it runs alone. Raises the first failure."""
        while True:
            with self._lock:
                self.raise_failure()
                if self._fits(size_bytes):
                    self._calls += 1
                    self._bytes += size_bytes
                    return
                wait = self._changed.add()
            wait()

    def leave(self, size_bytes: int, failure: BaseException | None) -> None:
        with self._lock:
            self._calls -= 1
            self._bytes -= size_bytes
            self._failure = self._failure or failure
            self._changed.wake()

    def fail(self, failure: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or failure
            self._changed.wake()

    def wait(self) -> None:
        """Wait until nothing is under way, or something failed."""
        while True:
            with self._lock:
                if self._failure or not self._calls:
                    return
                wait = self._changed.add()
            wait()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fits(self, size_bytes: int) -> bool:
        calls, limit_bytes = self._limits
        return not self._calls or (self._calls < calls and self._bytes + size_bytes <= limit_bytes)


class ThreadFlights:
    """Functions on a few threads.

    Args:
        threads: how many run at once; as many again may wait.
        limit_bytes: how many bytes those that run and wait may hold together.
        name: what the threads are called.
    """

    def __init__(self, threads: int, limit_bytes: int, name: str) -> None:
        self._room = _Room(2 * threads, limit_bytes)
        self._threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], None], size_bytes: int) -> None:
        """Run `call` soon. Waits while too much is under way; raises what an earlier call did."""
        self._room.enter(size_bytes)
        with self._lock:
            self._room.raise_failure()  # a `stop` meanwhile must not get new threads
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, self._name)
            self._executor.submit(self._run, call, size_bytes)

    def drain(self) -> None:
        """Wait until nothing is under way, and end the threads; raises the first failure."""
        self._room.wait()
        self._end()
        self._room.raise_failure()

    def stop(self) -> None:
        """Drop what has not begun, wait for what has, end the threads; no further `submit`."""
        self._room.fail(_aborted())
        self._end()

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
        self._room.leave(size_bytes, failure)


class LoopFlights:
    """Coroutines on the event loop of one thread.

    Args:
        calls: how many run at once.
        limit_bytes: how many bytes they may hold together.
        name: what the thread is called.
    """

    def __init__(self, calls: int, limit_bytes: int, name: str) -> None:
        self._room = _Room(calls, limit_bytes)
        self._name = name
        self._lock = threading.Lock()
        self._loop: _Loop | None = None

    def submit(self, call: Callable[[], Coroutine[object, object, None]], size_bytes: int) -> None:
        """Start `call()`. Waits while too much is under way; raises what an earlier call did."""
        self._room.enter(size_bytes)
        with self._lock:
            self._room.raise_failure()  # a `stop` meanwhile must not get a new thread
            if self._loop is None:
                self._loop = _Loop(self._name)
            self._loop.start(self._run(call, size_bytes))

    def drain(self) -> None:
        """Wait until nothing is under way, and end the thread; raises the first failure."""
        self._room.wait()
        self._end()
        self._room.raise_failure()

    def stop(self) -> None:
        """Cancel what is under way and end the thread; no further `submit`."""
        self._room.fail(_aborted())
        self._end()

    def _end(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()

    async def _run(
        self, call: Callable[[], Coroutine[object, object, None]], size_bytes: int
    ) -> None:
        failure: BaseException | None = None
        try:
            await call()
        except asyncio.CancelledError:
            failure = _aborted()
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        finally:
            self._room.leave(size_bytes, failure)


class _Loop:
    """An event loop on a thread; ending it cancels what still runs."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_over())

    async def _until_over(self) -> None:
        await self._over.wait()


def _aborted() -> StorageError:
    return StorageError("this upload was aborted")
