"""How do runs come from a store in time: many requests at once, none of them waited for too long?

The order in which runs will be taken is known, so requests are made in that order, as many at once
as `Concurrency` says, and no more ahead than a number of bytes. One pool of threads does all work:

    taken -> runs admitted -> cache looked into -> requests -> proved -> run decoded -> taken
                                        ^ again: late, failed for a moment, or damaged

All state is behind one lock; reading, proving and decoding happen outside of it. A store that fails
for a moment is asked again here and nowhere below, with pauses that grow; "slow down" lowers the
number of requests. A damaged answer is asked for once more.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tensorrepo.formats.dataset.streaming.fetching.ahead import join_all
from tensorrepo.formats.dataset.streaming.fetching.concurrency import Concurrency
from tensorrepo.formats.dataset.streaming.fetching.hedging import Hedging
from tensorrepo.formats.dataset.streaming.fetching.pieces import Piece, Span, spans
from tensorrepo.repo.errors import CorruptError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorrepo.formats.dataset.streaming.fetching.fetchstats import FetchStats
    from tensorrepo.formats.dataset.streaming.fetching.means import Means

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_TIMES_DAMAGED = 2
_LANDING_SECONDS = 3.0  # requests that hang longer are left to their daemon threads


class Runs(Protocol[T_co]):
    """What is downloaded; see `RunLoader`."""

    def size_of(self, run: int) -> int: ...
    def pieces(self, run: int) -> list[Piece]: ...
    def reads_more(self, run: int) -> bool: ...
    def arrived(self, piece: Piece, data: memoryview) -> None: ...
    def damaged(self, piece: Piece, error: CorruptError) -> CorruptError: ...
    def load(self, runs: list[int], fetched: Mapping[tuple[int, ...], memoryview]) -> T_co: ...


@dataclass(slots=True, eq=False)
class _Run:
    """A run on its way. `order` counts runs as they will be taken."""

    number: int
    order: int
    size_bytes: int
    missing: int = 0
    fetched: dict[tuple[int, ...], memoryview] = field(default_factory=dict)
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Look:
    """Pieces that the cache may have, before they are asked of the store."""

    order: int
    pieces: list[Piece]


@dataclass(slots=True, eq=False)
class _Read:
    """One request, and what became of it up to now."""

    order: int
    span: Span
    flying: int = 0
    began: float = 0.0
    hedged: bool = False
    answered: bool = False
    failures: int = 0
    damages: int = 0


_Job = _Run | _Look | _Read


class Downloads(Generic[T]):
    """Loads runs of a store ahead. One thread expects and takes, in the same order."""

    def __init__(self, runs: Runs[T], means: Means, stats: FetchStats, *, ahead_bytes: int) -> None:
        """Prepare; threads start when runs are first expected.

        Args:
            runs: what is loaded.
            means: by which means.
            stats: written behind the lock.
            ahead_bytes: decoded bytes that may be loaded, or be loading, and not taken yet.
        """
        self._runs, self._means, self._stats = runs, means, stats
        self._ahead_bytes = ahead_bytes
        self._concurrency, self._hedging = Concurrency(means.bounds), Hedging()
        self._expected: deque[int] = deque()
        self._order = 0
        self._hurried: int | None = None  # so many runs are waited for at the very beginning
        self._outstanding_bytes = 0
        self._asked: dict[tuple[int, ...], list[_Run]] = {}  # who waits for a piece
        self._results: dict[int, tuple[T | BaseException, int]] = {}
        self._awaited = -1
        self._local: list[tuple[int, int, _Job]] = []
        self._reads: list[tuple[int, int, _Job]] = []
        self._later: list[tuple[float, int, _Read]] = []
        self._sequence = 0
        self._flying: list[_Read] = []
        self._reading = self._busy = self._idle = self._watching = 0
        self._marked = 0.0
        self._mistake: BaseException | None = None
        self._closed = False
        lock = Lock()
        self._work_there, self._arrived = Condition(lock), Condition(lock)
        self._threads: list[Thread] = []

    # ------------------------------------------------------------------ whoever takes

    def expect(self, runs: Sequence[int]) -> None:
        """These will be taken next, in this order, after those expected before."""
        with self._work_there:
            self._expected.extend(runs)
            self._admit()

    def take(self, runs: Sequence[int]) -> list[T]:
        """The runs expected first. Raises what loading them raised."""
        found = []
        with self._arrived:
            if self._hurried is None and runs:
                self._hurried = len(runs)
            for run in runs:
                self._awaited = run
                while run not in self._results:
                    if self._mistake is not None:
                        raise self._mistake
                    if self._closed:
                        raise RuntimeError("taken from downloads that are closed")
                    self._arrived.wait()
                result, size_bytes = self._results.pop(run)
                self._outstanding_bytes -= size_bytes
                self._admit()
                if isinstance(result, BaseException):
                    raise result
                found.append(result)
            if self._hurried:
                self._hurried = 0
                self._wake()
        return found

    def stop(self) -> None:
        """Begin nothing more, and let whoever takes go: that raises. For any thread."""
        with self._work_there:
            self._closed = True
            self._expected.clear()
            self._work_there.notify_all()
            self._arrived.notify_all()

    def close(self) -> None:
        """Stop. Requests that have begun are waited for a little; what was loaded is dropped."""
        self.stop()
        join_all(self._threads, _LANDING_SECONDS)
        for held in (self._results, self._asked, self._local, self._reads, self._later):
            held.clear()

    # ------------------------------------------------------------------ admitting, behind the lock

    def _admit(self) -> None:
        """Begin with as many runs as may be ahead; with none outstanding, one of any size."""
        while self._expected and not self._closed:
            size_bytes = self._runs.size_of(self._expected[0])
            within = self._outstanding_bytes + size_bytes <= self._ahead_bytes
            if not within and self._outstanding_bytes:
                break
            self._outstanding_bytes += size_bytes
            self._begin(_Run(self._expected.popleft(), self._order, size_bytes))
            self._order += 1
        self._wake()

    def _begin(self, run: _Run) -> None:
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
        if self._means.cache is not None:
            kept = [piece for piece in new if piece.tag is not None]
            new = [piece for piece in new if piece.tag is None]
            if kept:
                self._push(self._local, _Look(run.order, kept))
        self._ask(run.order, new)

    def _ask(self, order: int, pieces: Sequence[Piece]) -> None:
        for span in spans(pieces) if pieces else ():
            self._push(self._reads, _Read(order, span))

    def _loadable(self, run: _Run) -> None:
        reads = self._runs.reads_more(run.number)
        self._push(self._reads if reads else self._local, run)

    def _push(self, heap: list[tuple[int, int, _Job]], job: _Job) -> None:
        self._sequence += 1
        heapq.heappush(heap, (job.order, self._sequence, job))

    def _wake(self) -> None:
        """See to it that threads are awake for all that can be begun."""
        if self._closed:
            return
        means = self._means
        local = min(len(self._local), means.local_threads - self._busy)
        reads = min(len(self._reads), self._concurrency.limit - self._reading)
        wanted = max(0, local) + max(0, reads)
        self._work_there.notify(wanted)
        self._grow(wanted - self._idle)

    def _watch(self) -> None:
        """See to it that one thread wakes up when a request becomes late."""
        if not self._watching:
            self._work_there.notify()
            self._grow(1 - self._idle)

    def _grow(self, threads: int) -> None:
        most = self._concurrency.limit + self._means.local_threads + 1
        for _ in range(min(threads, most - len(self._threads))):
            name = f"tensorrepo-fetch-{len(self._threads)}"
            thread = Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    # ------------------------------------------------------------------ threads

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if isinstance(job, _Read):
                    self._read(job)
                elif isinstance(job, _Look):
                    self._look(job)
                else:
                    self._load(job)
        except BaseException as error:  # noqa: BLE001  a mistake of ours must not hang whoever waits
            with self._arrived:
                self._mistake = self._mistake or error
                self._arrived.notify_all()

    def _next(self) -> _Job | None:
        with self._work_there:
            while not self._closed:
                now = self._means.clock()
                job = self._startable(now)
                if job is not None:
                    return job
                seconds = self._until_next(now)
                self._idle += 1
                self._watching += seconds is not None
                self._work_there.wait(seconds)
                self._watching -= seconds is not None
                self._idle -= 1
        return None

    def _startable(self, now: float) -> _Job | None:
        if self._local and self._busy < self._means.local_threads:
            self._busy += 1
            return heapq.heappop(self._local)[2]
        while self._later and self._later[0][0] <= now:
            self._push(self._reads, heapq.heappop(self._later)[2])
        self._concurrency.pace(now)
        if self._reading >= self._concurrency.limit:
            return None
        late = self._late(now)
        if late is not None:
            return self._sent(late, now)
        while self._reads and not self._is_held_back(self._reads[0][0]):
            job = heapq.heappop(self._reads)[2]
            if not isinstance(job, _Read):
                self._fly(now)
                return job
            if not job.answered:
                return self._sent(job, now)
        return None

    def _is_held_back(self, order: int) -> bool:
        """Whether a read would only take bandwidth from those of the first step.

        Some follow all the same, lest the link be idle when the last of these are answered.
        """
        later = self._hurried is not None and order >= self._hurried > 0
        return later and self._reading >= self._means.bounds.start

    def _sent(self, read: _Read, now: float) -> _Read:
        size_bytes = read.span.size_bytes
        if read.flying:
            read.hedged = True
            self._hedging.hedged(size_bytes)
            self._stats.hedged_requests += 1
        else:
            self._hedging.asked(size_bytes)
            self._flying.append(read)
        read.flying += 1
        read.began = now
        self._concurrency.sent(now)
        self._stats.requests += 1
        self._fly(now)
        self._watch()
        return read

    def _late(self, now: float) -> _Read | None:
        """A read that is late, the one needed first."""
        late = [read for read in self._flying if self._hedge_at(read) <= now]
        return min(late, key=lambda read: read.order, default=None)

    def _hedge_at(self, read: _Read) -> float:
        patience = None if read.hedged else self._hedging.patience_seconds(read.span.size_bytes)
        return float("inf") if patience is None else read.began + patience

    def _until_next(self, now: float) -> float | None:
        """Seconds until something can be begun that nobody will call for."""
        times = [self._later[0][0]] if self._later else []
        paced = self._concurrency.pace(now)
        if self._reads and paced is not None:
            times.append(now + paced)
        if self._reading < self._concurrency.limit:
            times += [self._hedge_at(read) for read in self._flying]
        soonest = min(times, default=float("inf"))
        return None if soonest == float("inf") else max(0.001, soonest - now)

    def _fly(self, now: float) -> None:
        if not self._reading:
            self._marked = now
        self._reading += 1

    def _landed(self, now: float) -> None:
        self._stats.fetching_seconds += now - self._marked
        self._marked = now
        self._reading -= 1

    # ------------------------------------------------------------------ looking into the cache

    def _look(self, look: _Look) -> None:
        cache = self._means.cache
        missing = []
        for piece in look.pieces:
            data = None if cache is None else cache.get(piece.name)
            if data is None:
                missing.append(piece)
            else:
                self._deliver(piece, data)
        with self._work_there:
            self._busy -= 1
            self._stats.cache_misses += len(missing)
            self._stats.cache_hits += len(look.pieces) - len(missing)
            hit_bytes = sum(piece.size_bytes for piece in look.pieces)
            self._stats.cache_hit_bytes += hit_bytes - sum(each.size_bytes for each in missing)
            self._ask(look.order, missing)
            self._wake()

    # ------------------------------------------------------------------ reading

    def _read(self, read: _Read) -> None:
        span, began = read.span, read.began
        try:
            data = memoryview(self._means.read(span.link, span.start, span.stop)).cast("B")
            if data.nbytes != span.size_bytes:
                raise StorageError(  # noqa: TRY301  like any other failure of the store
                    f"chunk {span.link.digest:.12}: expected {span.size_bytes} bytes from "
                    f"{span.start}, got {data.nbytes}. Repeat.",
                    transient=True,
                )
        except BaseException as error:  # noqa: BLE001  whoever takes the runs gets it
            self._failed(read, began, error)
            return
        self._count_answer(read, began)
        wrong = [each for each in span.pieces if not each.is_proved_by(span.part(data, each))]
        if not self._is_first(read, damaged=bool(wrong)):
            return
        if wrong:
            self._damaged(read, wrong[0])
            return
        for piece in span.pieces:
            self._deliver(piece, span.part(data, piece).toreadonly())
        self._remember(span, data)

    def _count_answer(self, read: _Read, began: float) -> None:
        now, size_bytes = self._means.clock(), read.span.size_bytes
        with self._work_there:
            self._take_down(read, now)
            binding = bool(self._reads) or self._reading + 1 >= self._concurrency.limit
            self._concurrency.answered(size_bytes, began, now, binding=binding)
            self._hedging.answered(size_bytes, now - began)
            stats = self._stats
            stats.fetched_bytes += size_bytes
            stats.concurrency = self._concurrency.limit
            stats.concurrency_reached = self._concurrency.reached
            self._wake()

    def _take_down(self, read: _Read, now: float) -> None:
        read.flying -= 1
        if not read.flying:
            self._flying.remove(read)
        self._landed(now)

    def _is_first(self, read: _Read, *, damaged: bool) -> bool:
        """Whether this answer counts; from now on no other one does, unless it is damaged."""
        with self._work_there:
            if read.answered:
                self._stats.hedged_bytes += read.span.size_bytes
                return False
            read.answered = not damaged
            return True

    def _damaged(self, read: _Read, piece: Piece) -> None:
        with self._work_there:
            read.damages += 1
            if read.damages < _TIMES_DAMAGED:
                self._stats.refetched_requests += 1
                self._push(self._reads, read)
                self._wake()
                return
            read.answered = True
        what = CorruptError(
            f"{piece.link.kind.label} {piece.link.digest:.12}, payload bytes {piece.start} to "
            f"{piece.stop}: their tag is not the expected one, twice. Run `tensorrepo doctor`; "
            "restore the object from a copy of the repository."
        )
        self._give_up(read, self._runs.damaged(piece, what))

    def _failed(self, read: _Read, began: float, error: BaseException) -> None:
        now = self._means.clock()
        with self._work_there:
            self._take_down(read, now)
            if isinstance(error, StorageError) and error.busy:
                self._stats.refused_requests += 1
                self._concurrency.slowed_down(began, now)
                self._stats.concurrency = self._concurrency.limit
            if read.answered or read.flying:
                self._wake()
                return  # the other one of two requests has come, or may still come
            read.failures += 1
            transient = isinstance(error, StorageError) and error.transient
            if transient and read.failures < self._means.tries:
                self._stats.repeated_requests += 1
                self._sequence += 1
                pause = self._pause_seconds(read.failures)
                heapq.heappush(self._later, (now + pause, self._sequence, read))
                self._watch()
                self._wake()
                return
            read.answered = True
        self._give_up(read, error)

    def _pause_seconds(self, failures: int) -> float:
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1))
        return longest * (0.5 + self._means.chance() / 2)

    def _give_up(self, read: _Read, error: BaseException) -> None:
        with self._work_there:
            for piece in read.span.pieces:
                for run in self._asked.pop(piece.key, ()):
                    run.failure = run.failure or error
                    self._one_less(run)
            self._wake()

    def _deliver(self, piece: Piece, data: memoryview) -> None:
        failure: BaseException | None = None
        try:
            self._runs.arrived(piece, data)
        except BaseException as error:  # noqa: BLE001  whoever takes the run gets it
            failure = error
        with self._work_there:
            for run in self._asked.pop(piece.key, ()):
                run.fetched[piece.key] = data
                run.failure = run.failure or failure
                self._one_less(run)
            self._wake()

    def _one_less(self, run: _Run) -> None:
        run.missing -= 1
        if not run.missing:
            self._loadable(run)

    def _remember(self, span: Span, data: memoryview) -> None:
        if self._means.cache is not None:
            for piece in span.pieces:
                if piece.tag is not None:
                    self._means.cache.put(piece.name, (span.part(data, piece),))

    # ------------------------------------------------------------------ decoding

    def _load(self, run: _Run) -> None:
        reads = self._runs.reads_more(run.number)
        result: T | BaseException
        try:
            if run.failure is not None:
                result = run.failure
            else:
                result = self._runs.load([run.number], run.fetched)
        except BaseException as error:  # noqa: BLE001  whoever takes the run gets it
            result = error
        now = self._means.clock()
        with self._work_there:
            if reads:
                self._landed(now)
            else:
                self._busy -= 1
            if not self._closed:
                self._results[run.number] = result, run.size_bytes
            if self._awaited == run.number:
                self._arrived.notify()
            self._wake()
