"""Prefetcher of runs from a store: many requests in flight, hedged, repeated and proved.

The order in which runs will be taken is known, so requests are made in that order, as many at once
as `load.requests` says, and no more ahead than a number of bytes. One pool of threads does all:

    taken -> runs admitted -> cache looked into -> requests -> proved -> run decoded -> taken
                                        ^ again: late, failed for a moment, or damaged

One more thread watches the clock. All state is behind one lock; reading, proving and decoding
happen outside of it. Threads are called for jobs that can be begun and for nothing else: with a
hundred of them, each that wakes up in vain costs more than a request. A store that fails for a
moment is asked again here and nowhere below, with pauses that grow; "slow down" lowers the number
of requests. A damaged answer is asked for once more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from threading import Condition, Lock, Thread
from typing import Protocol, TypeVar

from tensorrepo.formats.dataset.streaming.load.peers import CachePeers
from tensorrepo.formats.dataset.streaming.load.prefetch import RunPrefetch
from tensorrepo.formats.dataset.streaming.load.requests import (
    Job,
    Look,
    PagePiece,
    PieceRequest,
    Read,
    RequestLimits,
    RequestQueue,
    RunJob,
    spans,
)
from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.objects.envelope import ExpectsReads, ObjectLink, ObjectSource, ReadsOnce
from tensorrepo.repo.threads import join_all


class ThreadPool:
    """Daemon threads that share a lock with whoever calls them."""

    def __init__(self, lock: Lock, work: Callable[[], None], name: str) -> None:
        """Without threads. Each will run `work`, whose name begins with `name`."""
        self._there, self._work, self._name = Condition(lock), work, name
        self._threads: list[Thread] = []
        self._idle = self._called = 0

    def call(self, jobs: int, most: int) -> None:
        """See to it that threads come for `jobs` jobs. The lock is held.

        Of threads that are missing one is started, unless there are `most`; it calls the next one
        when it has its job, so that whoever calls first is not kept.
        """
        wanted = jobs - self._called
        if wanted <= 0:
            return
        woken = min(wanted, self._idle)
        self._idle -= woken
        self._called += woken
        self._there.notify(woken)
        if wanted > woken and len(self._threads) < most:
            self._called += 1
            name = f"{self._name}-{len(self._threads)}"
            thread = Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def came(self) -> None:
        """For a thread that was started or woken and looks for a job. The lock is held."""
        self._called -= 1

    def sleep(self) -> None:
        """For a thread without a job: wait until it is called. The lock is held."""
        self._idle += 1
        self._there.wait()
        self.came()

    def dismiss(self) -> None:
        """Wake all of them: they are to end. The lock is held."""
        self._there.notify_all()

    def join(self, seconds: float) -> None:
        join_all(self._threads, seconds)


TRIES = 8  # of a request, when the store fails for a moment
BOUNDS = RequestLimits(start=32, least=2, most=128)
_LEAST_LOCAL_THREADS = 4  # some wait for the cache's disk


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """How a store is read, how often, and how many requests are made at once.

    Attributes:
        read: reader of payload bytes ``[start, stop)`` of a chunk, not proved, by one request.
        expect: told which chunks are read first, where a store can prepare for that.
        tries: number of attempts at a request when the store fails for a moment.
        cache: cache of pages on this machine's disk.
        peers: servers near by, asked before the store.
        bounds: bounds of the number of requests in flight.
        local_threads: number of threads that look into the cache and decode.
        clock: clock, in seconds.
        chance: source of numbers in [0, 1), by which pauses differ.
    """

    read: Callable[[ObjectLink, int, int], Buffer]
    clock: Callable[[], float]
    expect: Callable[[Iterable[ObjectLink]], None] | None = None
    chance: Callable[[], float] = random.random
    tries: int = TRIES
    cache: PageDiskCache | None = None
    peers: CachePeers | None = None
    bounds: RequestLimits = BOUNDS
    local_threads: int = _LEAST_LOCAL_THREADS


def means_of(
    objects: ObjectSource | ReadsOnce,
    *,
    clock: Callable[[], float],
    cache: PageDiskCache | None = None,
    peers: CachePeers | None = None,
    threads: int | None = None,
) -> FetchConfig:
    """The usual means to read `objects`, with at most `threads` requests in flight."""
    # A source that repeats by itself is asked once: the tries would multiply.
    once = isinstance(objects, ReadsOnce)
    most = threads or BOUNDS.most
    return FetchConfig(
        read=objects.read_once if isinstance(objects, ReadsOnce) else objects.read_range,
        expect=objects.expect_reads if isinstance(objects, ExpectsReads) else None,
        clock=clock,
        tries=TRIES if once else 1,
        cache=cache,
        peers=peers,
        bounds=RequestLimits(min(BOUNDS.start, most), min(BOUNDS.least, most), most),
        local_threads=max(_LEAST_LOCAL_THREADS, os.cpu_count() or 1),
    )


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_TIMES_DAMAGED = 2
_LANDING_SECONDS = 3.0  # requests that hang longer are left to their daemon threads
_WAITING = 16  # jobs that wait to be begun are enough: finding out more takes time
_ADMITTED_AT_ONCE = 4  # runs, before others get the lock
_FORESEEN = 64  # runs, whose chunks are told of before the first is read


class RunDownloads(Protocol[T_co]):
    """What is downloaded; see `RunLoader`."""

    def size_of(self, run: int) -> int: ...
    def pieces(self, run: int) -> list[PagePiece]: ...
    def reads_more(self, run: int) -> bool: ...
    def arrived(self, piece: PagePiece, data: memoryview) -> None: ...
    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError: ...
    def load(self, runs: list[int], fetched: Mapping[tuple[int, ...], memoryview]) -> T_co: ...


class Downloads(RunPrefetch[T]):
    """Runs of a store, loaded by many requests in flight."""

    def __init__(
        self,
        runs: RunDownloads[T],
        means: FetchConfig,
        stats: FetchStats,
        *,
        ahead_bytes: int,
        instead: Callable[[int, BaseException], T] | None = None,
    ) -> None:
        """Prepare; threads start when runs are first expected.

        `stats` are written behind the lock. So many decoded bytes may be loaded, or be loading, and
        not waited for yet. `instead` gives a substitute for a run that could not be loaded, or
        raises the error.
        """
        super().__init__(runs.size_of, ahead_bytes)
        self._runs, self._means, self._stats, self._instead = runs, means, stats, instead
        self._jobs = RequestQueue(means.bounds, means.local_threads, stats)
        self._order = 0
        self._asked: dict[tuple[int, ...], list[RunJob]] = {}  # who waits for a piece
        self._results: dict[int, tuple[T | BaseException, int]] = {}  # ahead, with their bytes
        self._awaited: set[int] = set()
        self._here: dict[int, T] = {}  # of those that were waited for
        self._failure: BaseException | None = None  # of one that is waited for
        self._mistake: BaseException | None = None  # of ours
        self._alarm = Condition(self._lock)
        self._crew = ThreadPool(self._lock, self._work, "tensorrepo-fetch")
        self._watcher = Thread(target=self._watch, name="tensorrepo-fetch-watch", daemon=True)
        self._watching = False  # until a known time

    # ------------------------------------------------------------------ whoever takes

    def take(self, runs: Sequence[int]) -> list[T]:
        with self._lock:
            if runs:
                self._jobs.await_next(len(runs))
            self._awaited.update(runs)
            for run in runs:
                if run in self._results:
                    self._arrive(run, *self._results.pop(run))
            self._admit()
            self._call()
        try:
            self._wait()
            return [self._here[run] for run in runs]
        finally:
            with self._lock:
                self._awaited.clear()
                self._here.clear()
                self._jobs.calm()
                self._call()

    def _wait(self) -> None:
        """Until all that is awaited is here. Raises what loading it raised."""
        while True:
            with self._lock:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                if not self._awaited:
                    return
                if self._mistake is not None:
                    raise self._mistake
                if self._closed:
                    raise RuntimeError("taken from downloads that are closed")
                wait = self._arrived.add()
            wait()

    def close(self) -> None:
        self.stop()
        self._crew.join(_LANDING_SECONDS)
        join_all([self._watcher])
        self._jobs.clear()
        self._results.clear()
        self._asked.clear()

    def _begin_expected(self) -> None:
        if self._means.expect is not None and not self._order:
            first = map(self._runs.pieces, islice(self._expected, _FORESEEN))
            self._means.expect(piece.link for piece in chain.from_iterable(first))
        self._admit()
        self._call()

    def _dismiss(self) -> None:
        self._crew.dismiss()
        self._alarm.notify_all()

    # ------------------------------------------------------------------ admitting, behind the lock

    def _admit(self) -> None:
        """Begin with runs that may be ahead while few jobs wait, some at a time."""
        for _ in range(_ADMITTED_AT_ONCE):
            if not self._expected or self._closed or self._jobs.waiting >= _WAITING:
                return
            number = self._expected[0]
            size_bytes = self._size_of(number)
            if not self._fits(size_bytes):
                return
            self._expected.popleft()
            self._outstanding_bytes += size_bytes
            self._begin(RunJob(number, self._order, size_bytes, self._runs.reads_more(number)))
            self._order += 1

    def _begin(self, run: RunJob) -> None:
        new = []
        for piece in self._runs.pieces(run.number):
            run.missing += 1
            waiting = self._asked.get(piece.key)
            if waiting is None:
                self._asked[piece.key] = [run]
                new.append(piece)
            else:
                waiting.append(run)
        if not run.missing:
            self._loadable(run)
        kept = [piece for piece in new if piece.tag is not None and self._means.cache is not None]
        if kept:
            self._jobs.work(Look(run.order, kept))
            new = [piece for piece in new if piece.tag is None]
        self._ask(run.order, new)

    def _ask(self, order: int, pieces: Sequence[PagePiece]) -> None:
        for span in spans(pieces) if pieces else ():
            self._jobs.read(Read(order, span))

    def _loadable(self, run: RunJob) -> None:
        if run.reads:
            self._jobs.read(run)
        else:
            self._jobs.work(run)

    def _call(self) -> None:
        """See to it that threads come for all that can be begun."""
        if not self._closed:
            most = self._jobs.limit + self._means.local_threads
            self._crew.call(self._jobs.startable, most)

    # ------------------------------------------------------------------ threads

    def _work(self) -> None:
        try:
            with self._lock:
                self._crew.came()
            while (job := self._next()) is not None:
                if isinstance(job, Read):
                    self._read(job)
                elif isinstance(job, Look):
                    self._look(job)
                else:
                    self._load(job)
        except BaseException as error:  # noqa: BLE001  a mistake of ours must not hang whoever waits
            self._mistaken(error)

    def _next(self) -> Job | None:
        with self._lock:
            while not self._closed:
                self._admit()
                job = self._jobs.next(self._means.clock())
                if job is not None:
                    self._see_watched()
                    self._call()
                    return job
                self._crew.sleep()
        return None

    def _watch(self) -> None:
        """See to what is due without anybody's doing."""
        try:
            with self._lock:
                while not self._closed:
                    seconds = self._jobs.due(self._means.clock())
                    self._call()
                    self._watching = seconds is not None
                    self._alarm.wait(seconds)
        except BaseException as error:  # noqa: BLE001  as above
            self._mistaken(error)

    def _see_watched(self) -> None:
        if self._watching or not self._jobs.is_timed:
            return
        self._watching = True
        if self._watcher.ident is None:
            self._watcher.start()
        else:
            self._alarm.notify()

    def _mistaken(self, error: BaseException) -> None:
        with self._lock:
            self._mistake = self._mistake or error
            self._arrived.wake()

    # ------------------------------------------------------------------ looking into the cache

    def _look(self, look: Look) -> None:
        cache = self._means.cache
        missing = []
        for piece in look.pieces:
            data = None if cache is None else cache.get(piece.name)
            if data is None:
                missing.append(piece)
            else:
                self._deliver(piece, data)
        with self._lock:
            self._jobs.worked()
            self._stats.cache_misses += len(missing)
            self._stats.cache_hits += len(look.pieces) - len(missing)
            hit_bytes = sum(piece.size_bytes for piece in look.pieces)
            self._stats.cache_hit_bytes += hit_bytes - sum(each.size_bytes for each in missing)
            self._ask(look.order, missing)

    # ------------------------------------------------------------------ reading

    def _read(self, read: Read) -> None:
        span, began = read.span, read.began
        try:
            data = self._peers_or_store(read)
            if data.nbytes != span.size_bytes:
                raise StorageError(  # noqa: TRY301  like any other failure of the store
                    f"chunk {span.link.digest:.12}: expected {span.size_bytes} bytes from "
                    f"{span.start}, got {data.nbytes}. Repeat.",
                    transient=True,
                )
        except BaseException as error:  # noqa: BLE001  whoever takes the runs gets it
            self._failed(read, began, error)
            return
        with self._lock:
            self._jobs.answered(read, began, self._means.clock())
        wrong = [each for each in span.pieces if not each.is_proved_by(span.part(data, each))]
        if not self._is_first(read, damaged=bool(wrong)):
            return
        if wrong:
            self._damaged(read, wrong[0])
            return
        for piece in span.pieces:
            self._deliver(piece, span.part(data, piece).toreadonly())
        self._remember(span, data)

    def _peers_or_store(self, read: Read) -> memoryview:
        """The bytes of a request: of a peer the first time, if one has them and they are proved."""
        span, peers = read.span, self._means.peers
        if peers is not None and not (read.failures or read.damages):
            data = peers.read(span)
            if data is not None:
                with self._lock:
                    self._stats.peer_requests += 1
                    self._stats.peer_bytes += span.size_bytes
                return data
        return memoryview(self._means.read(span.link, span.start, span.stop)).cast("B")

    def _is_first(self, read: Read, *, damaged: bool) -> bool:
        """Whether this answer counts; from now on no other one does, unless it is damaged."""
        with self._lock:
            if read.answered:
                self._stats.hedged_bytes += read.span.size_bytes
                return False
            read.answered = not damaged
            return True

    def _damaged(self, read: Read, piece: PagePiece) -> None:
        with self._lock:
            read.damages += 1
            if read.damages < _TIMES_DAMAGED:
                self._stats.refetched_requests += 1
                self._jobs.read(read)
                return
            read.answered = True
        what = CorruptError(
            f"{piece.link.kind.label} {piece.link.digest:.12}, payload bytes {piece.start} to "
            f"{piece.stop}: their tag is not the expected one, twice"
        )
        self._give_up(read, self._runs.damaged(piece, what))

    def _failed(self, read: Read, began: float, error: BaseException) -> None:
        now = self._means.clock()
        with self._lock:
            busy = isinstance(error, StorageError) and error.busy
            self._jobs.failed(read, began, now, busy=busy)
            if read.answered or read.flying:
                return  # the other one of two requests has come, or may still come
            read.failures += 1
            transient = isinstance(error, StorageError) and error.transient
            if transient and read.failures < self._means.tries:
                self._stats.repeated_requests += 1
                self._jobs.read_later(read, now + self._pause_seconds(read.failures))
                self._see_watched()
                return
            read.answered = True
        self._give_up(read, error)

    def _pause_seconds(self, failures: int) -> float:
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1))
        return longest * (0.5 + self._means.chance() / 2)

    def _give_up(self, read: Read, error: BaseException) -> None:
        with self._lock:
            for piece in read.span.pieces:
                for run in self._asked.pop(piece.key, ()):
                    run.failure = run.failure or error
                    self._one_less(run)

    def _deliver(self, piece: PagePiece, data: memoryview) -> None:
        failure: BaseException | None = None
        try:
            self._runs.arrived(piece, data)
        except BaseException as error:  # noqa: BLE001  whoever takes the run gets it
            failure = error
        with self._lock:
            for run in self._asked.pop(piece.key, ()):
                run.fetched[piece.key] = data
                run.failure = run.failure or failure
                self._one_less(run)

    def _one_less(self, run: RunJob) -> None:
        run.missing -= 1
        if not run.missing:
            self._loadable(run)

    def _remember(self, span: PieceRequest, data: memoryview) -> None:
        cache = self._means.cache
        if cache is None:
            return
        with self._lock:
            self._call()  # the disk may take its time
        for piece in span.pieces:
            if piece.tag is not None:
                cache.put(piece.name, (span.part(data, piece),))

    # ------------------------------------------------------------------ decoding

    def _load(self, run: RunJob) -> None:
        result: T | BaseException
        try:
            result = self._loaded(run)
        except BaseException as error:  # noqa: BLE001  whoever takes the run gets it
            result = error
        now = self._means.clock()
        with self._lock:
            if run.reads:
                self._jobs.landed(now)
            else:
                self._jobs.worked()
            if run.number in self._awaited:
                self._arrive(run.number, result, run.size_bytes)
            elif not self._closed:
                self._results[run.number] = result, run.size_bytes

    def _loaded(self, run: RunJob) -> T:
        failure = run.failure
        if failure is None:
            try:
                return self._runs.load([run.number], run.fetched)
            except BaseException as error:  # noqa: BLE001  as above
                failure = error
        if self._instead is None:
            raise failure
        return self._instead(run.number, failure)

    def _arrive(self, run: int, result: T | BaseException, size_bytes: int) -> None:
        """A run that is waited for is there. What is used at once is not ahead."""
        self._outstanding_bytes -= size_bytes
        self._awaited.remove(run)
        if isinstance(result, BaseException):
            self._failure = self._failure or result
        else:
            self._here[run] = result
        if not self._awaited or self._failure is not None:
            self._arrived.wake()
