"""Prefetcher of local runs, and stand-ins for runs that cannot be loaded.

`LocalPrefetch` loads runs in groups on a few threads, in the order in which they will be taken. It
is no `ordered_map` of `repo.threads`: runs are expected while others are taken, several are loaded
by one call, and bytes count until they are taken. Requests to a store have `load.downloads`.

Where a stream goes on without damaged pages, a run that cannot be read becomes rows of zeros that
are never handed out: they keep everything behind it as it was planned. A store that cannot be
reached for a while is no loss: its error ends the stream, as what is left out then would differ
from rank to rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Condition, Lock, Thread
from typing import Generic, TypeVar

from tensorrepo.formats.dataset.schema.values import (
    blank_values,
)
from tensorrepo.formats.dataset.streaming.collate.gather import InMemory, in_memory
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, PurgedError, StorageError
from tensorrepo.repo.threads import Waiting, join_all

Loaded = list[list[InMemory]]
T = TypeVar("T")


class RunPrefetch(ABC, Generic[T]):
    """Runs loaded ahead, in the order in which they will be taken.

    One thread expects and takes; threads of its own load.
    """

    def __init__(self, size_of: Callable[[int], int], ahead_bytes: int) -> None:
        """Prepare; so many bytes may be loaded, or be loading, and not taken yet.

        `size_of` gives the decoded bytes of a run.
        """
        self._size_of, self._ahead_bytes = size_of, ahead_bytes
        self._expected: deque[int] = deque()
        self._outstanding_bytes = 0
        self._closed = False
        self._lock, self._arrived = Lock(), Waiting()

    def expect(self, runs: Sequence[int]) -> None:
        """These will be taken next, in this order, after those expected before."""
        with self._lock:
            self._expected.extend(runs)
            self._begin_expected()

    @property
    def all_begun(self) -> bool:
        """Whether every run that is expected is loaded, or being loaded."""
        return not self._expected

    @abstractmethod
    def take(self, runs: Sequence[int]) -> list[T]:
        """Values that hold the runs expected first. Raises what loading them raised."""

    def stop(self) -> None:
        """Begin nothing more, and let the thread that takes go: that raises. For any thread."""
        with self._lock:
            self._closed = True
            self._expected.clear()
            self._dismiss()
            self._arrived.wake()

    @abstractmethod
    def close(self) -> None:
        """Stop. Reads that have begun are waited for; what was loaded is dropped."""

    @abstractmethod
    def _begin_expected(self) -> None:
        """See to it that threads come for the runs that are expected. The lock is held."""

    @abstractmethod
    def _dismiss(self) -> None:
        """Wake every thread: they are to end. The lock is held."""

    def _fits(self, size_bytes: int) -> bool:
        """Whether so many bytes more may be ahead; with none outstanding, any number may."""
        after = self._outstanding_bytes + size_bytes
        return after <= self._ahead_bytes or not self._outstanding_bytes


class LocalPrefetch(RunPrefetch[T]):
    """Runs of a local disk, loaded some at a time by `threads` threads. Each is taken once."""

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

        `load`, called on any of them, loads runs of about `group_bytes` at once, or a larger one.
        """
        super().__init__(size_of, ahead_bytes)
        self._load, self._group_bytes = load, group_bytes
        self._results: dict[int, tuple[T | BaseException, list[int], int]] = {}  # by first run
        self._early: set[int] = set()  # taken together with runs before them
        self._room = Condition(self._lock)
        self._threads = [
            Thread(target=self._work, name=f"tensorrepo-fetch-{number}", daemon=True)
            for number in range(threads)
        ]
        self._started = False

    def take(self, runs: Sequence[int]) -> list[T]:
        """As for any prefetcher; runs that were loaded together come together, with the first."""
        values = []
        for run in runs:
            if run in self._early:
                self._early.remove(run)
            else:
                values.append(self._take(run))
        with self._lock:
            if self._may_start():
                self._room.notify(len(values))
        return values

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

    def close(self) -> None:
        self.stop()
        join_all(self._threads)
        self._results.clear()

    def _begin_expected(self) -> None:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        self._room.notify_all()

    def _dismiss(self) -> None:
        self._room.notify_all()

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
        return bool(self._expected) and self._fits(self._group_bytes)


# Not what a later attempt or other rows would meet as well: missing rights, another version.
_LOST = (CorruptError, NotFoundError, PurgedError, StorageError)


class LostRuns(dict[int, Error]):
    """Runs that could not be loaded, and why; gives the rows that stand in for them."""

    def __init__(self, plan: StreamPlan, nullable: Sequence[bool]) -> None:
        """Prepare; `nullable` says it of each of the plan's columns."""
        super().__init__()
        self._plan, self._nullable = plan, nullable

    def load(self, load: Callable[[list[int]], Loaded], runs: list[int]) -> Loaded:
        """What `load` gives for some runs, one by one where that fails; zeros for lost ones."""
        try:
            return load(runs)
        except _LOST as error:
            if len(runs) == 1 or _is_outage(error):
                return self.add(runs[0], error)
        parts = [self.load(load, [run]) for run in runs]
        return [list(chain.from_iterable(columns)) for columns in zip(*parts, strict=True)]

    def add(self, run: int, error: BaseException) -> Loaded:
        """Note a run as lost; rows of zeros for each of its columns.

        Raises `error` where that is no loss.
        """
        if not isinstance(error, _LOST) or _is_outage(error):
            raise error
        self[run] = error
        rows = int(self._plan.live[run])
        return [
            [in_memory(run, blank_values(column.index.storage, rows), nullable=nullable)]
            for column, nullable in zip(self._plan.columns, self._nullable, strict=True)
        ]


def _is_outage(error: Error) -> bool:
    """Whether it may be gone when the same is asked again: nothing is lost then."""
    return isinstance(error, StorageError) and error.transient
