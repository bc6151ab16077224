"""A link to a store, simulated: latency, bandwidth, and a store that refuses too many at once."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.streaming.fetching.concurrency import Concurrency


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
            first_byte = now + link.latency_seconds * (1 + link.noise * chance.random())
            if is_refused:
                heapq.heappush(flying, (first_byte, now, True))
                continue
            free = max(free, first_byte) + size_bytes / link.bytes_per_second
            heapq.heappush(flying, (free, now, False))
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


def shared_goodput(
    link: Link, concurrency: Concurrency, *, total_bytes: int, size_bytes: int
) -> float:
    """Bytes a second of a cold start to the end, when answers share the link evenly."""
    chance = random.Random(7)
    waiting: list[tuple[float, int]] = []  # when the first byte of which answer comes
    missing: dict[int, float] = {}  # bytes of answers that have begun
    began: list[float] = []
    now, requests, answers = 0.0, total_bytes // size_bytes, 0
    while answers < requests:
        paced = concurrency.pace(now)
        while len(began) < requests and len(began) - answers < concurrency.limit:
            delay = link.latency_seconds * (1 + link.noise * chance.random())
            heapq.heappush(waiting, (now + delay, len(began)))
            began.append(now)
            concurrency.sent(now)
        nexts = [waiting[0][0]] if waiting else []
        if missing:
            nexts.append(now + min(missing.values()) * len(missing) / link.bytes_per_second)
        if paced is not None:
            nexts.append(now + paced + 1e-9)
        until = min(nexts)
        for one in missing:
            missing[one] -= (until - now) * link.bytes_per_second / len(missing)
        now = until
        while waiting and waiting[0][0] <= now:
            missing[heapq.heappop(waiting)[1]] = size_bytes
        for one in [one for one, left in missing.items() if left < 1e-3]:
            del missing[one]
            answers += 1
            concurrency.answered(size_bytes, began[one], now, binding=len(began) < requests)
    return requests * size_bytes / now
