"""Memory for chunks and base frames that is used again: fresh pages cost more than a copy.

A save of a model takes and gives back the same few buffers, on any thread.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST_KEPT_BYTES: Final = 64 << 10  # malloc has smaller ones at hand


class FrameMemory:
    """Buffers by size. Thread-safe: lists are appended to and popped in one step."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` bounds what is kept while nobody uses it."""
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._left = most_bytes

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
        self._left += whole
        return kept[:size]

    def give(self, taken: NDArray[np.uint8]) -> None:
        """Let others use what `take` gave; nobody may look at it any more."""
        whole = taken.base
        if (
            taken.size < LEAST_KEPT_BYTES
            or not isinstance(whole, np.ndarray)
            or self._left < whole.size
        ):
            return
        self._left -= whole.size
        self._free[whole.size].append(whole)
