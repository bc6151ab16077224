"""What did it take to bring runs from a store?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FetchStats:
    """What was asked of a store and of the page cache; all zero for data on a local disk.

    Attributes:
        requests: sent, second and repeated ones too.
        fetched_bytes: that came, twice where two answers came.
        fetching_seconds: during which at least one request was on its way.
        hedged_requests: sent because the first one was late.
        hedged_bytes: of answers that came second, for nothing.
        repeated_requests: sent again because the store failed for a moment.
        refused_requests: answered by "slow down" (429, 503).
        refetched_requests: sent again because the answer was damaged.
        cache_hits: pages that the cache of this machine had.
        cache_misses: pages that it had not.
        cache_hit_bytes: of the pages that it had.
        concurrency: how many requests may be in flight now.
        concurrency_reached: the most that might be.
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
    concurrency: int = 0
    concurrency_reached: int = 0

    @property
    def goodput(self) -> float:
        """Useful bytes a second, while requests were on their way."""
        useful_bytes = self.fetched_bytes - self.hedged_bytes
        return useful_bytes / self.fetching_seconds if self.fetching_seconds else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of the pages looked for that the cache had."""
        looks = self.cache_hits + self.cache_misses
        return self.cache_hits / looks if looks else 0.0
