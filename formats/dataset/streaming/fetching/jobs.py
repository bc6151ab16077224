"""Which job of a download is begun next?

Jobs are begun in the order in which runs will be taken. Some work on this machine, so few at once;
others read from a store, as many at once as `Concurrency` says. At the very beginning somebody
waits for the first step, so nothing else shall take the link from it, but for some requests that
follow when it is almost there, lest the link be idle afterwards.

A request is late when it takes longer than others do and was overtaken by some of them: where all
of them wait for the link, a second one would only wait as well. So it is where many are late at
one moment, unless they are very late.

Decides and counts, and does nothing: time comes in, threads are elsewhere. Not thread-safe.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.streaming.fetching.concurrency import Bounds, Concurrency
from tensorrepo.formats.dataset.streaming.fetching.hedging import Hedging

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.streaming.fetching.pieces import Piece, Span
    from tensorrepo.formats.dataset.streaming.stats import FetchStats

_LOOK_SECONDS = 0.02  # between two looks for late requests, while some are on their way
_SHORTEST_SECONDS = 0.001
_OVERTAKEN = 8  # by so many requests a late one was, unless fewer are on their way
_FEW, _FEW_OF = 2, 16  # so many are late by themselves, or this part of those on their way
_MUCH = 2.0  # times as long as is late
_FOLLOWING = 2  # times as many as fill the link may be on their way with the first step


@dataclass(slots=True, eq=False)
class Run:
    """A run on its way. `order` counts runs as they will be taken.

    Attributes:
        reads: whether loading it reads from the store more than its pieces.
        missing: how many of its pieces are not there.
    """

    number: int
    order: int
    size_bytes: int
    reads: bool = False
    missing: int = 0
    fetched: dict[tuple[int, ...], memoryview] = field(default_factory=dict)
    failure: BaseException | None = None


@dataclass(slots=True, eq=False)
class Look:
    """Pieces that the cache may have, before they are asked of the store."""

    order: int
    pieces: list[Piece]


@dataclass(slots=True, eq=False)
class Read:
    """One request, and what became of it up to now."""

    order: int
    span: Span
    number: int = 0  # of those sent
    flying: int = 0
    began: float = 0.0
    hedged: bool = False
    answered: bool = False
    failures: int = 0
    damages: int = 0


Job = Run | Look | Read
_Heap = list[tuple[int, int, Job]]


class Jobs:
    """What is to be done for runs on their way.

    Attributes:
        reading: jobs that read from the store, now.
    """

    def __init__(self, bounds: Bounds, local_threads: int, stats: FetchStats) -> None:
        """Without jobs; `local_threads` may be begun at once of those that do not read."""
        self._concurrency, self._hedging = Concurrency(bounds), Hedging()
        self._local_threads, self._stats = local_threads, stats
        self._local: _Heap = []
        self._reads: _Heap = []
        self._later: list[tuple[float, int, Read]] = []
        self._flying: list[Read] = []
        self._sequence = 0
        self._sent = 0
        self._needed = 0  # so many runs were taken, or are waited for
        self._hurried: int | None = None  # so many are waited for at the very beginning
        self._urgent = 0  # reads for them that were not begun
        self._busy = 0
        self.reading = 0
        self._marked = 0.0
        self._start = bounds.start

    @property
    def limit(self) -> int:
        """How many may read at once, now."""
        return self._concurrency.limit

    @property
    def waiting(self) -> int:
        """How many jobs were not begun."""
        return len(self._local) + len(self._reads)

    @property
    def is_timed(self) -> bool:
        """Whether something may become due."""
        return bool(self._flying or self._later)

    def clear(self) -> None:
        for held in (self._local, self._reads, self._later):
            held.clear()

    # ------------------------------------------------------------------ what is to be done

    def work(self, job: Run | Look) -> None:
        """This can be done without the store."""
        self._push(self._local, job)

    def read(self, job: Run | Read) -> None:
        """This reads from the store."""
        self._push(self._reads, job)
        self._urgent += self._is_urgent(job.order)

    def read_later(self, job: Read, at: float) -> None:
        self._sequence += 1
        heapq.heappush(self._later, (at, self._sequence, job))

    def await_next(self, runs: int) -> None:
        """So many more runs are waited for now, the next ones in order."""
        self._needed += runs
        if self._hurried is None:
            self._hurried = runs
            self._urgent = sum(self._is_urgent(order) for order, _, _ in self._reads)

    def calm(self) -> None:
        """They are there."""
        self._hurried = self._urgent = 0

    def _is_urgent(self, order: int) -> bool:
        return self._hurried is not None and order < self._hurried

    def _push(self, heap: _Heap, job: Job) -> None:
        self._sequence += 1
        heapq.heappush(heap, (job.order, self._sequence, job))

    # ------------------------------------------------------------------ beginning

    @property
    def startable(self) -> int:
        """How many jobs can be begun now."""
        local = min(len(self._local), self._local_threads - self._busy)
        return max(0, local) + max(0, self._startable_reads)

    @property
    def _startable_reads(self) -> int:
        if not self._hurried:
            return min(len(self._reads), self.limit - self.reading)
        urgent = min(self._urgent, self.limit - self.reading)
        following = min(self.limit, _FOLLOWING * self._concurrency.filling or self._start)
        others = min(len(self._reads) - self._urgent, following - self.reading - urgent)
        return urgent + max(0, others)

    def next(self, now: float) -> Job | None:
        """The job to begin, which counts as begun; None when there is none now."""
        if self._local and self._busy < self._local_threads:
            self._busy += 1
            return heapq.heappop(self._local)[2]
        while self._startable_reads > 0:
            job = heapq.heappop(self._reads)[2]
            self._urgent -= self._is_urgent(job.order)
            if not isinstance(job, Read):
                self._fly(now)
                return job
            if not job.answered:
                self._send(job, now)
                return job
        return None

    def _send(self, read: Read, now: float) -> None:
        size_bytes = read.span.size_bytes
        if read.flying:
            self._hedging.hedged(size_bytes)
            self._stats.hedged_requests += 1
        else:
            self._hedging.asked(size_bytes)
            self._flying.append(read)
            read.number = self._sent
            self._sent += 1
        read.flying += 1
        read.began = now
        self._concurrency.sent(now)
        self._stats.requests += 1
        self._fly(now)

    def _fly(self, now: float) -> None:
        if not self.reading:
            self._marked = now
        self.reading += 1

    # ------------------------------------------------------------------ what became of it

    def worked(self) -> None:
        """A job that does not read is done."""
        self._busy -= 1

    def landed(self, now: float) -> None:
        """A job that reads is done."""
        self._stats.fetching_seconds += now - self._marked
        self._marked = now
        self.reading -= 1

    def answered(self, read: Read, began: float, now: float) -> None:
        """A request that was sent at `began` was answered in full."""
        size_bytes, stats = read.span.size_bytes, self._stats
        self._take_down(read, now)
        binding = bool(self._reads) or self.reading + 1 >= self.limit
        self._concurrency.answered(size_bytes, began, now, binding=binding)
        self._hedging.answered(size_bytes, now - began)
        stats.fetched_bytes += size_bytes
        stats.concurrency, stats.concurrency_reached = self.limit, self._concurrency.reached

    def failed(self, read: Read, began: float, now: float, *, busy: bool) -> None:
        """A request that was sent at `began` failed; `busy`: the store wants fewer at once."""
        self._take_down(read, now)
        if busy:
            self._stats.refused_requests += 1
            self._concurrency.slowed_down(began, now)
            self._stats.concurrency = self.limit

    def _take_down(self, read: Read, now: float) -> None:
        read.flying -= 1
        if not read.flying:
            self._flying.remove(read)
        self.landed(now)

    # ------------------------------------------------------------------ time

    def due(self, now: float) -> float | None:
        """Let what is due be begun: what waited to be repeated, and a second one of what is late.

        Returns:
            Seconds until it is worth looking again; None: until another request is sent.
        """
        while self._later and self._later[0][0] <= now:
            self.read(heapq.heappop(self._later)[2])
        soonest = now + _LOOK_SECONDS if self._flying else float("inf")
        for late in self._late(now):
            late.hedged = True
            self.read(late)
        paced = self._concurrency.pace(now) if self._reads else None
        if paced is not None:
            soonest = min(soonest, now + paced)
        if self._later:
            soonest = min(soonest, self._later[0][0])
        return None if soonest == float("inf") else max(_SHORTEST_SECONDS, soonest - now)

    def _late(self, now: float) -> list[Read]:
        """Reads to be made a second time. Many that are a little late wait for the link."""
        found = [(self._lateness(read, now), read) for read in self._flying]
        late = [each for each in found if each[0] >= 1]
        many = len(late) > max(_FEW, len(self._flying) // _FEW_OF)
        return [read for lateness, read in late if lateness >= _MUCH or not many]

    def _lateness(self, read: Read, now: float) -> float:
        """How many times what is usual a read has taken, if a second one may help; else 0."""
        if read.hedged:
            return 0.0
        needed = read.order < self._needed
        patience = self._hedging.patience_seconds(read.span.size_bytes, needed=needed)
        if patience is None or now - read.began < patience:
            return 0.0
        place, flying = self._flying.index(read), len(self._flying)
        overtaken = (self._sent - read.number) - (flying - place)
        if overtaken < _OVERTAKEN < flying:
            return 0.0
        return (now - read.began) / patience
