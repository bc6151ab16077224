"""Token buckets: so much a second on average, so much at once.

Pure but for the clock, which comes in. A bucket may be overdrawn: who was given a large answer
waits for as long as it takes to make up for it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass

_MAX_BUCKETS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` on average, `burst` at once."""

    per_second: float
    burst: float

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst <= 0:
            raise ValueError(f"a rate is more than nothing, got {self}")


@dataclass(slots=True)
class _Bucket:
    filled: float
    at: float


class TokenBuckets:
    """A bucket for each key; those that were used least lately are forgotten. Not thread-safe."""

    def __init__(self, rate: Rate, *, most: int = _MAX_BUCKETS) -> None:
        self._rate, self._most = rate, most
        self._held: OrderedDict[bytes, _Bucket] = OrderedDict()

    def wait(self, key: bytes, amount: float, now: float) -> float:
        """Take `amount`; gives 0. Where it is not there: takes nothing, gives seconds to wait."""
        bucket = self._filled(key, now)
        missing = min(amount, self._rate.burst) - bucket.filled
        if missing > 0:
            return missing / self._rate.per_second
        bucket.filled -= amount
        return 0.0

    def charge(self, key: bytes, amount: float, now: float) -> None:
        """Take `amount`, whether or not it is there."""
        self._filled(key, now).filled -= amount

    def _filled(self, key: bytes, now: float) -> _Bucket:
        bucket = self._held.pop(key, None) or _Bucket(self._rate.burst, now)
        grown = bucket.filled + (now - bucket.at) * self._rate.per_second
        bucket.filled, bucket.at = min(self._rate.burst, grown), now
        self._held[key] = bucket
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return bucket
