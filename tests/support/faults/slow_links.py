"""A link to a store, simulated: latency, bandwidth, and a store that refuses too many at once."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from tensorrepo.formats.dataset.streaming.load.requests import (
    Concurrency,
    PieceRequest,
    Read,
    RequestLimits,
    RequestQueue,
)
from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tests.support.faults.scripted import CHUNK


@dataclass(frozen=True)
class Link:
    """Answers cross the link one after another, each `latency_seconds` after it was asked for.

    `refuses_above` requests at once are answered with "slow down"; `noise` is the relative spread
    of latencies.
    """

    bytes_per_second: float
    latency_seconds: float
    refuses_above: int = 10**9
    noise: float = 0.0


@dataclass(frozen=True)
class Simulated:
    """What came of it, in the second half of the time."""

    goodput: float
    limit: float
    refused: int


def simulate(
    link: Link, concurrency: Concurrency, *, seconds: float, size_bytes: int = 1 << 20
) -> Simulated:
    """Ask for pages of `size_bytes` without end, as many at once as `concurrency` says."""
    chance = random.Random(7)
    flying: list[tuple[float, float, bool]] = []  # when it is answered, when asked, whether refused
    now = free = 0.0
    arrived = refused = 0
    limits: list[int] = []
    while now < seconds:
        while len(flying) < concurrency.limit:
            is_refused = len(flying) >= link.refuses_above
            began = now + 1e-6 * len(flying)  # one after another, as threads do
            first_byte = now + link.latency_seconds * (1 + link.noise * chance.random())
            if is_refused:
                heapq.heappush(flying, (first_byte, began, True))
                continue
            free = max(free, first_byte) + size_bytes / link.bytes_per_second
            heapq.heappush(flying, (free, began, False))
        now, began, is_refused = heapq.heappop(flying)
        if is_refused:
            concurrency.slowed_down(began, now)
        else:
            concurrency.answered(size_bytes, began, now, binding=True)
        if now > seconds / 2:
            arrived += not is_refused
            refused += is_refused
            limits.append(concurrency.limit)
    return Simulated(arrived * size_bytes / (seconds / 2), sum(limits) / len(limits), refused)


@dataclass(frozen=True)
class ColdStart:
    """When the first step could be handed out, and bytes a second from the start to the end."""

    first_seconds: float
    goodput: float


class _Answers:
    """Answers on their way over a link that they share evenly, or cross one after another."""

    def __init__(self, link: Link, *, shared: bool) -> None:
        self._link, self._shared = link, shared
        self._chance = random.Random(7)
        self._waiting: list[tuple[float, int]] = []  # when the first byte of which answer comes
        self._missing: dict[int, float] = {}  # bytes of answers that have begun, in that order

    def ask(self, number: int, now: float) -> None:
        link = self._link
        delay = link.latency_seconds * (1 + link.noise * self._chance.random())
        heapq.heappush(self._waiting, (now + delay, number))

    def next_at(self, now: float) -> float:
        """When the next answer begins or ends."""
        begins = self._waiting[0][0] if self._waiting else float("inf")
        parts = self._parts()
        ends = [now + self._missing[one] / part for one, part in parts.items()]
        return min([begins, *ends])

    def pass_time(self, now: float, until: float, size_bytes: int) -> list[int]:
        """Let time pass; the answers that are there then."""
        for one, part in self._parts().items():
            self._missing[one] -= (until - now) * part
        while self._waiting and self._waiting[0][0] <= until:
            self._missing[heapq.heappop(self._waiting)[1]] = size_bytes
        there = [one for one, left in self._missing.items() if left < 1e-3]
        for one in there:
            del self._missing[one]
        return there

    def _parts(self) -> dict[int, float]:
        """Bytes a second of each answer that has some."""
        some = list(self._missing) if self._shared else list(self._missing)[:1]
        return {one: self._link.bytes_per_second / len(some) for one in some}


def cold_start(
    link: Link, *, bounds: RequestLimits, first: int, total: int, size_bytes: int, shared: bool
) -> ColdStart:
    """Ask for `total` pages, of which `first` are waited for at the beginning."""
    jobs = RequestQueue(bounds, 1, FetchStats())
    jobs.await_next(first)
    for order in range(total):
        jobs.read(Read(order, PieceRequest(CHUNK, 0, size_bytes, ())))
    answers, reads = _Answers(link, shared=shared), dict[int, Read]()
    now, first_at, answered, missing = 0.0, 0.0, 0, set(range(first))
    while answered < total:
        look = jobs.due(now)
        while isinstance(read := jobs.next(now), Read):
            reads[len(reads)] = read
            answers.ask(len(reads) - 1, now)
        until = min(answers.next_at(now), float("inf") if look is None else now + look)
        for number in answers.pass_time(now, until, size_bytes):
            read = reads[number]
            answered += not read.answered
            jobs.answered(read, read.began, until)
            read.answered = True
            missing.discard(read.order)
        now = until
        if not missing and not first_at:
            first_at = now
            jobs.calm()
    return ColdStart(first_at, total * size_bytes / now)
