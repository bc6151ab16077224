"""Requests of downloads: pieces joined into few, how many at once, hedged ones, what comes next.

Pure: time comes in with every call, threads are elsewhere.

Pieces: a piece is a page, or some rows of one. Pieces that lie close together in a chunk are read
together, because a request costs about as much as the bytes between them; but no request is larger
than it needs to be, so that many are in flight side by side.

Order: jobs are begun in the order in which runs will be taken. At the very beginning the caller
waits for the first step, so nothing else takes the link from it, but for some requests that follow
when it is almost there.

Concurrency: as many requests as still make more bytes arrive. `Concurrency` doubles while that
pays, then looks now and then whether a few more or a few less do as well; "slow down" takes effect
at once. As soon as later requests take twice as long as the first ones the link is full.

Hedging: a read that passes the 95th percentile of reads of its size, and twice their median, is
asked for again; the first answer wins. What second requests cost is bounded by a share of all
bytes. Where many are late at one moment they wait for the link, and a second one would as well.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from statistics import median
from typing import NamedTuple

from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.ranges import GAP_BYTES, join_ranges

JOINED_BYTES = 4 << 20  # larger requests do not make better use of a link


class PagePiece(NamedTuple):
    """Payload bytes ``[start, stop)`` of a chunk.

    Attributes:
        key: name among the pieces of a plan, beginning with the place of the column;
            one that several runs need has one key.
        link: the chunk.
        start: first byte.
        stop: first byte behind it.
        tag: proof of the bytes; None where whoever uses them holds the sums.
    """

    key: tuple[int, ...]
    link: ObjectLink
    start: int
    stop: int
    tag: bytes | None

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        """What the proved bytes are called in every cache, whatever dataset they belong to.

        The tag is part of it: a dataset that names a chunk of another one along with tags of its
        own would fill the cache for both, and caches check only what they wrote themselves.
        """
        assert self.tag is not None, "what nothing proves is not kept"
        return f"{self.link.digest}.{self.start}-{self.stop}.{self.tag.hex()}"

    def is_proved_by(self, data: Buffer) -> bool:
        """Whether these are its bytes, as far as its tag can tell."""
        return self.tag is None or content_tag(data) == self.tag


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """One request: payload bytes ``[start, stop)`` of a chunk, and the pieces that lie in it."""

    link: ObjectLink
    start: int
    stop: int
    pieces: tuple[PagePiece, ...]

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def part(self, data: memoryview, piece: PagePiece) -> memoryview:
        """The bytes of a piece, given those of the request."""
        return data[piece.start - self.start : piece.stop - self.start]


def spans(pieces: Sequence[PagePiece], *, gap_bytes: int = GAP_BYTES) -> list[PieceRequest]:
    """The requests for `pieces`, in the order of the first piece of each."""
    if len(pieces) == 1:
        return [PieceRequest(pieces[0].link, pieces[0].start, pieces[0].stop, (pieces[0],))]
    by_chunk: dict[str, list[PagePiece]] = {}
    for piece in pieces:
        by_chunk.setdefault(piece.link.digest, []).append(piece)
    requests = [span for alike in by_chunk.values() for span in _joined(alike, gap_bytes)]
    place = {piece.key: at for at, piece in enumerate(pieces)}
    return sorted(requests, key=lambda span: min(place[piece.key] for piece in span.pieces))


def _joined(pieces: Sequence[PagePiece], gap_bytes: int) -> list[PieceRequest]:
    ranges = [(piece.start, piece.stop) for piece in pieces]
    return [
        PieceRequest(pieces[0].link, start, stop, tuple(pieces[at] for at in members))
        for start, stop, members in join_ranges(
            ranges, gap_bytes=gap_bytes, most_bytes=JOINED_BYTES
        )
    ]


_KEPT = 256  # of the last durations of each size
_NEEDED = 32  # of them, before anything is said
_LATE = 0.95
_MEDIANS = 2.0
_LEAST_SECONDS = 0.01
_UNHURRIED = 2.0  # times as long for a read that nobody waits for
_FRESH = 16  # answers between two looks at them
EXTRA_SHARE = 0.05


@dataclass(slots=True)
class _Durations:
    """Of reads of about the same size: up to twice as large."""

    last: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    since: int = 0
    patience: float | None = None

    def add(self, seconds: float) -> None:
        self.last.append(seconds)
        self.since += 1
        if len(self.last) >= _NEEDED and (self.patience is None or self.since >= _FRESH):
            self.since = 0
            ordered = sorted(self.last)
            late = ordered[int(_LATE * len(ordered))]
            self.patience = max(late, _MEDIANS * ordered[len(ordered) // 2], _LEAST_SECONDS)


@dataclass(slots=True)
class HedgedRequests:
    """Knows how long reads take. Not thread-safe.

    Attributes:
        extra_share: bytes asked for a second time are at most this share of all.
    """

    extra_share: float = EXTRA_SHARE
    _by_size: dict[int, _Durations] = field(default_factory=dict)
    _asked_bytes: int = 0
    _extra_bytes: int = 0

    def asked(self, size_bytes: int) -> None:
        """A read of so many bytes was sent, for the first time."""
        self._asked_bytes += size_bytes

    def answered(self, size_bytes: int, seconds: float) -> None:
        """A read was answered."""
        self._by_size.setdefault(size_bytes.bit_length(), _Durations()).add(seconds)

    def patience_seconds(self, size_bytes: int, *, needed: bool) -> float | None:
        """How long to wait for a read of that size; None: as long as it takes.

        `needed` says whether somebody waits for it.
        """
        durations = self._by_size.get(size_bytes.bit_length())
        allowed = self._extra_bytes + size_bytes <= self.extra_share * self._asked_bytes
        if durations is None or durations.patience is None or not allowed:
            return None
        return durations.patience if needed else _UNHURRIED * durations.patience

    def hedged(self, size_bytes: int) -> None:
        """It was asked for a second time."""
        self._extra_bytes += size_bytes


_DOUBLING_PAYS = 1.25  # times the goodput before
_MORE_PAYS = 1.05
_LESS_COSTS = 0.97
_MORE, _LESS = 1.25, 0.8
_SLOWER = 0.6  # of the limit is left after "slow down",
_REFUSED = 0.9  # and so much of it is the most for a while
_CALM_ROUNDS = 4  # between two attempts
_WARY_ROUNDS = 100  # after "slow down" the limit stays below the one that was refused
_PACE_SECONDS = 0.002  # between two of those that follow the first ones,
_PACED_SECONDS = 0.1  # for so long: a slow link has enough to do
_LEAST_ANSWERS = 8  # of a round: goodput over fewer is noise
_PAUSE_SECONDS = 0.05  # for so long others may hold the interpreter lock, and nothing is asked
_CROWDED = 2.0  # times as long as the first ones take requests that wait for each other


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How many requests may be in flight: at the start, at least, and at most."""

    start: int = 16
    least: int = 2
    most: int = 128

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.start <= self.most:
            raise ValueError(f"Bounds need 1 <= least <= start <= most, got {self}")


@dataclass(slots=True)
class _Round:
    """About as many answers as requests are in flight, so each of them took part."""

    began: float | None = None
    bytes: int = 0
    taken: list[tuple[float, float]] = field(default_factory=list)  # when sent, and how long


@dataclass(slots=True)
class Concurrency:
    """The limit of requests in flight. Not thread-safe.

    Attributes:
        bounds: bounds of the limit.
        limit: number of requests that may be in flight now.
        reached: the highest limit so far.
        filling: number of requests answered in the time that one of them takes when it does not
            wait for others: more than that wait; 0: not known yet.
    """

    bounds: RequestLimits = RequestLimits()
    limit: int = 0
    reached: int = 0
    filling: int = 0
    _doubling: bool = True
    _base: float = 0.0  # goodput at `_before`, or at `limit` when nothing is tried
    _before: int = 0  # the limit to go back to when an attempt does not pay; 0: none
    _try_less: bool = False
    _calm: int = 0
    _slowed: float | None = None
    _ceiling: int = 0
    _wary: int = 0
    _moved: float = float("-inf")  # when the limit changed last
    _round: _Round = field(default_factory=_Round)
    _first: float | None = None  # when the first request was sent
    _heard: bool = False  # of any
    _alone: float = 0.0  # seconds of requests that had the link for themselves
    _enough: int = 0  # no less is tried: it keeps the link busy while nobody can ask for more

    def __post_init__(self) -> None:
        self.limit = self.reached = self.limit or self.bounds.start

    def sent(self, now: float) -> None:
        """A request was sent."""
        if self._first is None:
            self._first = now

    def pace(self, now: float) -> float | None:
        """Let one more follow the first ones, if it is time; seconds until the next, if any."""
        if self._heard or self._first is None or self.limit >= self.bounds.most:
            return None
        since = now - self._first
        paced = self.bounds.start + int(min(since, _PACED_SECONDS) / _PACE_SECONDS)
        self.limit = max(self.limit, min(paced, self.bounds.most))
        self.reached = max(self.reached, self.limit)
        return None if since >= _PACED_SECONDS else _PACE_SECONDS - since % _PACE_SECONDS

    def answered(self, size_bytes: int, began: float, now: float, *, binding: bool) -> None:
        """A request of `size_bytes`, sent at `began`, was answered in full.

        `binding` says whether further requests waited for the limit: only then goodput tells
        anything about it.
        """
        self._heard = True
        if not binding:
            self._round = _Round()
            return
        answers = self._round
        if began < self._moved:
            return  # of the limit before
        if answers.began is None:
            # The next `limit` answers take one round trip, or what the link says.
            answers.began = now
            return
        answers.taken.append((began, now - began))
        answers.bytes += size_bytes
        if len(answers.taken) >= max(self.limit, _LEAST_ANSWERS) and now > answers.began:
            self._round = _Round(now)
            self._judge(answers, now)

    def slowed_down(self, began: float, now: float) -> None:
        """A request, sent at `began`, was refused because there were too many."""
        self._heard = True
        # Those that were on their way when the limit was lowered say nothing new.
        if self._slowed is not None and began <= self._slowed:
            return
        self._slowed = now
        self._ceiling, self._wary = int(self.limit * _REFUSED), _WARY_ROUNDS
        self._settle(int(self.limit * _SLOWER), now)
        self._base = 0.0

    def _judge(self, answers: _Round, now: float) -> None:
        assert answers.began is not None
        goodput = answers.bytes / (now - answers.began)
        self._wary -= 1
        if self._doubling:
            rate = len(answers.taken) / (now - answers.began)
            self._judge_doubling(self._waits(answers), goodput, rate, now)
        elif self._before:
            self._judge_attempt(goodput, now)
        else:
            self._base = goodput if not self._base else 0.7 * self._base + 0.3 * goodput
            self._calm -= 1
            if self._calm <= 0:
                self._attempt(now)

    def _judge_doubling(self, waits: float, goodput: float, rate: float, now: float) -> None:
        self.filling = math.ceil(rate * self._alone)
        if waits >= _CROWDED:
            self._enough = int(rate * (_CROWDED * self._alone + _PAUSE_SECONDS))
            self._settle(min(self._enough, self.limit), now)
        elif goodput < self._base * _DOUBLING_PAYS:
            # Twice as many brought little: the truth lies between, where attempts find it.
            self._settle(int(0.75 * self.limit), now)
        elif self.limit == self.bounds.most:
            self._settle(self.limit, now)
        else:
            self._base = goodput
            self._move(2 * self.limit, now)

    def _waits(self, answers: _Round) -> float:
        """How many times as long as the very first ones the requests of a round took."""
        taken = [seconds for _, seconds in answers.taken]
        if not self._alone:
            # In the order of sending, which does not favour quick ones.
            first = sorted(answers.taken)[: max(1, len(taken) // 4)]
            self._alone = median(seconds for _, seconds in first)
            taken = taken[len(taken) // 2 :]
        return median(taken) / self._alone if self._alone else 0.0

    def _judge_attempt(self, goodput: float, now: float) -> None:
        wanted = self._base * (_MORE_PAYS if self.limit > self._before else _LESS_COSTS)
        if goodput >= wanted:
            self._base = goodput
            self._calm = 1  # the same direction again, soon
        else:
            self._move(self._before, now)
            self._try_less = not self._try_less
            self._calm = _CALM_ROUNDS
        self._before = 0

    def _attempt(self, now: float) -> None:
        self._before = self.limit
        if self._try_less:
            self._move(min(self.limit, max(int(self.limit * _LESS), self._enough)), now)
        else:
            self._move(int(self.limit * _MORE) + 1, now)
        if self.limit == self._before:  # at a bound: the other way next time
            self._before, self._calm = 0, _CALM_ROUNDS
            self._try_less = not self._try_less

    def _settle(self, limit: int, now: float) -> None:
        self._doubling, self._before = False, 0
        self._calm = _CALM_ROUNDS
        self._move(limit, now)

    def _move(self, limit: int, now: float) -> None:
        most = self._ceiling if self._wary > 0 else self.bounds.most
        self.limit = max(min(limit, most), self.bounds.least)
        self.reached = max(self.reached, self.limit)
        self._moved = now
        self._round = _Round()


_LOOK_SECONDS = 0.02  # between two looks for late requests, while some are on their way
_SHORTEST_SECONDS = 0.001
_OVERTAKEN = 8  # by so many requests a late one was, unless fewer are on their way
_FEW, _FEW_OF = 2, 16  # so many are late by themselves, or this part of those on their way
_MUCH = 2.0  # times as long as is late
_FOLLOWING = 2  # times as many as fill the link may be on their way with the first step


@dataclass(slots=True, eq=False)
class RunJob:
    """A run on its way. `order` counts runs as they will be taken.

    Attributes:
        reads: whether loading it reads from the store more than its pieces.
        missing: number of its pieces that are not there.
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
    pieces: list[PagePiece]


@dataclass(slots=True, eq=False)
class Read:
    """One request, and what became of it up to now."""

    order: int
    span: PieceRequest
    number: int = 0  # of those sent
    flying: int = 0
    began: float = 0.0
    hedged: bool = False
    answered: bool = False
    failures: int = 0
    damages: int = 0


Job = RunJob | Look | Read
_Heap = list[tuple[int, int, Job]]


class RequestQueue:
    """What is to be done for runs on their way.

    Attributes:
        reading: jobs that read from the store, now.
    """

    def __init__(self, bounds: RequestLimits, local_threads: int, stats: FetchStats) -> None:
        """Without jobs; `local_threads` may be begun at once of those that do not read."""
        self._concurrency, self._hedging = Concurrency(bounds), HedgedRequests()
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

    def work(self, job: RunJob | Look) -> None:
        """This can be done without the store."""
        self._push(self._local, job)

    def read(self, job: RunJob | Read) -> None:
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
        by_lateness = [(self._lateness(read, now), read) for read in self._flying]
        late = [each for each in by_lateness if each[0] >= 1]
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
