"""How is work done on batches by several threads, and handed over in order?

`Stages` draws items from an iterator, one thread at a time, works on them on all of its threads,
and gives the results in the order of the items. Like everything that runs beside a user's loop,
its threads know nothing that the user holds, end when it is closed, and are daemons.
"""

from __future__ import annotations

from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from tensorrepo.formats.dataset.streaming.fetching.ahead import join_all
from tensorrepo.repo.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = TypeVar("S")
T = TypeVar("T")


class Stages(Generic[S, T]):
    """Iterates over ``work(item)`` for every item, in order, some items ahead."""

    def __init__(
        self,
        items: Iterator[S],
        work: Callable[[S], T],
        *,
        threads: int,
        most: int,
        name: str,
        stop: Callable[[], None] | None = None,
    ) -> None:
        """Prepare; the threads start with the first result asked for.

        Args:
            items: drawn by one thread at a time; closed, if it is a generator, by the last thread.
            work: called by any of the threads. What it raises comes in place of its result, and
                nothing comes after that.
            threads: how many work at once.
            most: items that are worked on, or are done and not taken yet.
            name: of the threads.
            stop: called by `close`, beside the threads: ends what `items` may wait for.
        """
        self._items = items
        self._stop = stop
        self._work_on = work
        self._most = most
        self._results: dict[int, tuple[T | None, BaseException | None]] = {}
        self._drawn = self._taken = 0
        self._ended = self._closed = self._started = False
        self._drawing = Lock()
        self._lock = Lock()
        self._room, self._arrived = Condition(self._lock), Waiting()
        self._threads = [
            Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        self._working = threads

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._started and not self._closed:
            self._started = True
            for thread in self._threads:
                thread.start()
        result, failure = self._take()
        if isinstance(failure, StopIteration):  # passed on, it would end the loop unseen
            message = "the work on an item raised StopIteration"
            raise RuntimeError(message) from failure  # noqa: TRY004
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]  # there is a result where nothing failed

    def _take(self) -> tuple[T | None, BaseException | None]:
        while True:
            with self._lock:
                if self._taken in self._results:
                    found = self._results.pop(self._taken)
                    self._taken += 1
                    self._room.notify()
                    return found
                if self._closed or (self._ended and self._taken >= self._drawn):
                    raise StopIteration
                wait = self._arrived.add()
            wait()

    def close(self) -> None:
        """Stop, and wait for work that has begun. Safe to call more than once."""
        with self._lock:
            self._closed = self._ended = True
            self._room.notify_all()
            self._arrived.wake()
        if self._stop is not None:
            self._stop()
        join_all(self._threads)
        self._results.clear()

    def _work(self) -> None:
        try:
            while (drawn := self._draw()) is not None:
                ticket, item = drawn
                try:
                    self._arrive(ticket, self._work_on(item), None)
                except BaseException as error:  # noqa: BLE001  whoever takes this one gets it
                    self._arrive(ticket, None, error)
                del drawn, item  # a thread that waits keeps nothing alive
        finally:
            self._finish()

    def _draw(self) -> tuple[int, S] | None:
        """The next item and its number; None when there are no more."""
        with self._drawing:
            with self._lock:
                while self._drawn - self._taken >= self._most and not self._ended:
                    self._room.wait()
                if self._ended:
                    return None
            try:
                item = next(self._items)
            except StopIteration:
                self._end()
                return None
            except BaseException as error:  # noqa: BLE001  comes after the items before it
                ticket, self._drawn = self._drawn, self._drawn + 1
                self._arrive(ticket, None, error)
                return None
            ticket, self._drawn = self._drawn, self._drawn + 1
            return ticket, item

    def _arrive(self, ticket: int, result: T | None, failure: BaseException | None) -> None:
        with self._lock:
            if not self._closed:
                self._results[ticket] = result, failure
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
        if last:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
