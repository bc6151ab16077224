"""From which size on does a number belong to the largest share of all?

Found exactly without holding or sorting them: sizes are compared as the integers that their bits
are, whose order is that of the numbers, and each pass over the numbers settles 16 of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGIT_BITS: Final = 16


def kept_from(parts: Callable[[], Iterable[NDArray[Any]]], density: float) -> float:
    """The smallest number of the largest ones; all of equal size are kept, or none.

    Args:
        parts: gives all numbers, none below zero, part by part; called once for each pass.
        density: the share to keep, in (0, 1]; at least one number is kept.

    Returns:
        0.0 when all are kept, or there are none. What is NaN counts as the largest.
    """
    if density >= 1:
        return 0.0
    prefix, rank = 0, -1
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts, total = _count(parts(), prefix, shift)
        if rank < 0:
            if not total:
                return 0.0
            rank = max(1, ceil(density * total)) - 1  # of the wanted one, counted from the largest
        above = np.cumsum(counts[::-1])
        digit = len(counts) - 1 - int(np.searchsorted(above, rank, side="right"))
        rank -= int(above[len(counts) - 1 - digit] - counts[digit])
        prefix = prefix << _DIGIT_BITS | digit
    found = np.array([prefix], np.uint64).view(np.float64)[0]
    return float(found)


def _count(parts: Iterable[NDArray[Any]], prefix: int, shift: int) -> tuple[NDArray[np.int64], int]:
    """How many numbers that begin with `prefix` go on with each digit; and how many all are."""
    counts = np.zeros(1 << _DIGIT_BITS, np.int64)
    total = 0
    for part in parts:
        bits = np.ascontiguousarray(part, np.float64).view(np.uint64)
        total += len(bits)
        if shift + _DIGIT_BITS < 64:
            bits = bits[bits >> np.uint64(shift + _DIGIT_BITS) == np.uint64(prefix)]
        digits = bits >> np.uint64(shift) & np.uint64((1 << _DIGIT_BITS) - 1)
        counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
    return counts, total
