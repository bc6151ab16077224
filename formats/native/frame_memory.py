"""Memory for frames that is used again: fresh pages cost more than a copy.

A save of a model takes and gives back the same few buffers, on any thread. What a save or a thread
leaves behind when it ends, the next one finds: `IDLE`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST_KEPT_BYTES: Final = 64 << 10  # malloc has smaller ones at hand
MOST_IDLE_BYTES: Final = 32 << 20


class FrameMemory:
    """Buffers by size. Thread-safe: lists are appended to and popped in one step."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` bounds what is kept while nobody uses it."""
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._most_bytes = most_bytes

    def take(self, size: int) -> NDArray[np.uint8]:
        """An array of so many bytes, of any value."""
        if size < LEAST_KEPT_BYTES:
            return np.empty(size, np.uint8)
        # A quarter of a power of two: little is wasted, and few sizes differ.
        step = 1 << (size - 1).bit_length() - 3
        whole = -(-size // step) * step
        try:
            kept = self._free[whole].pop()
        except IndexError:
            return np.empty(whole, np.uint8)[:size]
        return kept[:size]

    def give(self, taken: NDArray[np.uint8]) -> None:
        """Let others use what `take` gave; nobody may look at it any more."""
        whole = taken.base
        if taken.size < LEAST_KEPT_BYTES or not isinstance(whole, np.ndarray):
            return
        # Added up and not counted along: no lock, which a fork could leave locked for ever.
        idle = sum([size * len(kept) for size, kept in tuple(self._free.items())])
        if idle + whole.size <= self._most_bytes:
            self._free[whole.size].append(whole)


# Of the process: memory of threads that ended, and of saves between two of them.
IDLE: Final = FrameMemory(MOST_IDLE_BYTES)
