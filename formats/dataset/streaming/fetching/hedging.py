"""When is a read so late that asking once more is better than waiting on?

Some answers of a store take many times as long as the others, and a step waits for the last of its
pages. A read that passes the 95th percentile of reads of its size, and twice their median, is asked
for again; the first answer wins. Where nobody waits for it yet, it has twice as long. What the
second one costs is bounded by a share of all bytes, so that a link which is slow for everybody is
not made slower.

Pure: durations come in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

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
class Hedging:
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
        known = self._by_size.get(size_bytes.bit_length())
        allowed = self._extra_bytes + size_bytes <= self.extra_share * self._asked_bytes
        if known is None or known.patience is None or not allowed:
            return None
        return known.patience if needed else _UNHURRIED * known.patience

    def hedged(self, size_bytes: int) -> None:
        """It was asked for a second time."""
        self._extra_bytes += size_bytes
