"""Statistics of an iteration: batches, seconds of each part, and requests to a store."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.native.rows import BEST
from tensorrepo.repo.deferred_dataclass import dataclass

SLOWEST_BATCHES: Final = 3
_SLOW_ROWS: Final = 1024  # of a batch that are remembered


@dataclass(slots=True)
class FetchStats:
    """Requests to a store and to the page cache; all zero for data on a local disk.

    Attributes:
        requests: requests sent, hedged and repeated ones included.
        fetched_bytes: bytes received, counting both replies of a hedged request.
        fetching_seconds: time during which at least one request was in flight.
        hedged_requests: second requests, sent because the first one was late.
        hedged_bytes: bytes of replies that came second, received for nothing.
        repeated_requests: requests sent again after a transient failure of the store.
        refused_requests: requests answered by "slow down" (429, 503).
        refetched_requests: requests sent again because their reply was damaged.
        cache_hits: pages found in this machine's cache.
        cache_misses: pages looked for there in vain.
        cache_hit_bytes: bytes of the pages found there.
        peer_requests: requests that a cache peer answered instead of the store.
        peer_bytes: bytes of these answers.
        concurrency: current limit of requests in flight.
        concurrency_reached: highest limit so far.
    """

    requests: int = 0
    fetched_bytes: int = 0
    fetching_seconds: float = 0.0
    hedged_requests: int = 0
    hedged_bytes: int = 0
    repeated_requests: int = 0
    refused_requests: int = 0
    refetched_requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit_bytes: int = 0
    peer_requests: int = 0
    peer_bytes: int = 0
    concurrency: int = 0
    concurrency_reached: int = 0

    @property
    def goodput(self) -> float:
        """Useful bytes a second, while requests were in flight."""
        useful_bytes = self.fetched_bytes - self.hedged_bytes
        return useful_bytes / self.fetching_seconds if self.fetching_seconds else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of the pages looked for that the cache had."""
        lookups = self.cache_hits + self.cache_misses
        return self.cache_hits / lookups if lookups else 0.0


@dataclass(slots=True)
class StreamStats(FetchStats):
    """Counts and seconds of an iteration up to now, with its requests (see `FetchStats`).

    Each number is written by one thread, or behind a lock.

    Attributes:
        batches: batches made.
        rows: rows in these batches.
        runs: runs read, verified and decoded.
        run_bytes: decoded bytes of these runs.
        plan_seconds: time that the thread which makes batches waited for the order.
        fetch_seconds: time that it waited for runs.
        gather_seconds: time in which it brought rows together.
        idle_seconds: time that it waited for the consumer, with `prefetch` batches ready.
        decode_seconds: time spent decoding images, summed over threads.
        transform_seconds: time spent in the transform, summed over threads.
        derived_found: rows that were made before, and found in the cache of derived rows.
        derived_made: rows that the transform made, and that were kept there.
        waited_seconds: time that the consumer waited for batches.
        slowest: batches that the transform took longest for, slowest first: seconds, and numbers of
            the first rows in them, int64 ``(rows,)``.
        skipped: number of rows left out, by cause: "image" or "page".
        replaced: number of rows for which `on_error` gave a replacement, by cause.
        bad: first few of both: row id, column and reason.
        kernel: kernel that gathers rows: "native", in C, or "numpy" where that was not built.
    """

    batches: int = 0
    rows: int = 0
    runs: int = 0
    run_bytes: int = 0
    plan_seconds: float = 0.0
    fetch_seconds: float = 0.0
    gather_seconds: float = 0.0
    idle_seconds: float = 0.0
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0
    derived_found: int = 0
    derived_made: int = 0
    waited_seconds: float = 0.0
    slowest: list[tuple[float, Ints]] = field(default_factory=list, compare=False)
    skipped: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    kernel: str = BEST.name

    def note_transform(self, seconds: float, rows: Ints) -> None:
        """A batch of these rows was transformed in so many seconds. Called behind a lock."""
        self.transform_seconds += seconds
        if len(self.slowest) < SLOWEST_BATCHES or seconds > self.slowest[-1][0]:
            noted = [*self.slowest, (seconds, rows[:_SLOW_ROWS].copy())]
            self.slowest = heapq.nlargest(SLOWEST_BATCHES, noted, key=lambda each: each[0])

    def follow(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Be what processes counted together; what the consumer waited for is counted here."""
        counted = [each for each in told if each]
        for name in counted[0].keys() - {"waited_seconds", "kernel"}:
            values = [each[name] for each in counted]
            if name == "slowest":
                every = [each for value in values for each in value]
                self.slowest = heapq.nlargest(SLOWEST_BATCHES, every, key=lambda each: each[0])
            elif isinstance(values[0], dict):
                setattr(self, name, dict(sum(map(Counter, values), Counter())))
            elif isinstance(values[0], list):
                setattr(self, name, [each for value in values for each in value])
            else:
                setattr(self, name, sum(values))
        self.kernel = counted[0]["kernel"]
