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

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
)
from tensorrepo.formats.dataset.streaming.collate.gather import InMemory, in_memory
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, PurgedError, StorageError
from tensorrepo.repo.threads import Waiting, join_all

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan


Loaded = list[list[InMemory]]
Load = Callable[[list[int]], Loaded]


T = TypeVar("T")


class LocalPrefetch(Generic[T]):
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


# Not what a later attempt or other rows would meet as well: missing rights, another version.
_LOST = (CorruptError, NotFoundError, PurgedError, StorageError)


class RunSource(Protocol):
    """Loads runs ahead, in the order in which they will be taken."""

    def expect(self, runs: Sequence[int]) -> None:
        """These will be taken next, after those expected before."""
        ...

    def take(self, runs: Sequence[int]) -> list[Loaded]:
        """Those expected first; runs that were loaded together come together."""
        ...

    def stop(self) -> None:
        """Let whoever takes go: that raises. For any thread."""
        ...

    def close(self) -> None: ...


class LostRuns(dict[int, Error]):
    """Runs that could not be loaded, and why; gives the rows that stand in for them."""

    def __init__(self, plan: StreamPlan, nullable: Sequence[bool]) -> None:
        """Prepare; `nullable` says it of each of the plan's columns."""
        super().__init__()
        self._plan, self._nullable = plan, nullable

    def add(self, run: int, error: Error) -> Loaded:
        """Note a run as lost; rows of zeros for each of its columns."""
        self[run] = error
        rows = int(self._plan.live[run])
        return [
            [in_memory(run, _zeros(column.index.storage, rows), nullable=nullable)]
            for column, nullable in zip(self._plan.columns, self._nullable, strict=True)
        ]


class LossyLoader:
    """Loads runs together, and one by one where that fails. Thread-safe."""

    def __init__(self, load: Load, lost: LostRuns) -> None:
        self._load, self._lost = load, lost

    def load(self, runs: list[int]) -> Loaded:
        """All rows of some runs, column by column; zeros for those that are lost."""
        try:
            return self._load(runs)
        except _LOST as error:
            _refuse_outage(error)
            if len(runs) == 1:
                return self._lost.add(runs[0], error)
        parts = [self.load([run]) for run in runs]
        return [
            [where for part in parts for where in part[column]] for column in range(len(parts[0]))
        ]


class LossySource:
    """Takes runs from a source, and zeros for those that it could not load."""

    def __init__(self, source: RunSource, lost: LostRuns) -> None:
        self._source, self._lost = source, lost
        self.expect, self.stop, self.close = source.expect, source.stop, source.close

    def take(self, runs: Sequence[int]) -> list[Loaded]:
        """Those expected first, taken one by one: an error says nothing about the others."""
        found = []
        for run in runs:
            try:
                found += self._source.take([run])
            except _LOST as error:
                _refuse_outage(error)
                found.append(self._lost.add(run, error))
        return found


def _refuse_outage(error: Error) -> None:
    """Raise an error that may be gone when the same is asked again: nothing is lost."""
    if isinstance(error, StorageError) and error.transient:
        raise error


def _zeros(storage: Storage, rows: int) -> ColumnValues:
    """Rows of zeros, or empty ones. Zeros take no memory before they are read."""
    if storage.layout is ColumnLayout.FIXED:
        return FixedValues(np.zeros((rows, *storage.row_shape), storage.element))
    offsets = np.zeros(rows + 1, np.int64)
    if storage.layout is ColumnLayout.BINARY:
        return BinaryValues(offsets, np.zeros(0, np.uint8))
    dims = np.zeros((rows, storage.unknown_dims), np.uint32) if storage.stores_dims else None
    return RaggedValues(offsets, np.zeros(0, storage.element), storage.shape, dims)
