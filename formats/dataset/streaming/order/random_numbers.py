"""Counter-based random numbers (SplitMix64) and keyed permutations.

Every shuffled order is a function of keyed numbers: `number(key, x)` is output x of SplitMix64
seeded with `key`. Nothing here keeps state, so any place of any order is reached directly, and
two machines always agree: unsigned 64-bit integers that wrap, and no floats.

Source:
    docs/spec/stream-order.md, section "Keyed numbers".
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, odd
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_ROUNDS = 6
_IN_CACHE = 1 << 13  # numbers handled at once: 64 KiB an array


class Purpose(IntEnum):
    """What a key of an epoch is for: different purposes never share numbers."""

    RUNS = 1
    ROWS = 2
    LANES = 3
    GLOBAL = 4
    MIX = 5
    WEIGHTS = 6
    BUCKETS = 7
    IMAGES = 8
    GROUPS = 9


def number(key: int, x: int) -> int:
    """H(key, x): one keyed number."""
    z = (key + (x + 1) * GOLDEN) & _MASK
    z = ((z ^ z >> 30) * _MIX_1) & _MASK
    z = ((z ^ z >> 27) * _MIX_2) & _MASK
    return z ^ z >> 31


def numbers(key: int | NDArray[np.uint64], x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """H(key, x) for all of `x` at once; `key` is one key, or an array that broadcasts."""
    z = (x + np.uint64(1)) * np.uint64(GOLDEN)
    z = z + (np.uint64(key) if isinstance(key, int) else key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    return z


def epoch_key(seed: int, epoch: int, purpose: Purpose) -> int:
    """key(p): the key of one epoch for one purpose."""
    return number(number(seed & _MASK, epoch), purpose)


def low_bits(count: int) -> int:
    """How many low bits hold a place in ``[0, count)``: at least one."""
    return max(1, (count - 1).bit_length())


def low_bits_of(counts: Ints) -> Ints:
    """`low_bits` of many counts, each from 1 to 2^53."""
    return np.maximum(np.frexp(counts - 1)[1], 1).astype(np.int64)


def permutation(key: int, count: int) -> Ints:
    """perm(key, count): the places ``0..count-1``, shuffled.

    The numbers of the places are sorted; their low bits are replaced by the place, so no two are
    equal and the sorted numbers carry the answer.
    """
    keys = np.array([key], dtype=np.uint64)
    return permutations(keys, np.array([count])).reshape(count)


def permutations(keys: NDArray[np.uint64], counts: Ints) -> Ints:
    """Several permutations at once.

    Args:
        keys: one key per permutation.
        counts: the places of each; they should be of one magnitude, shorter ones are padded.

    Returns:
        Array ``(len(keys), max(counts))``: row i begins with ``perm(keys[i], counts[i])``; what
        follows it means nothing.
    """
    most = int(counts.max(initial=0))
    places = np.arange(most, dtype=np.uint64)
    bits = low_bits_of(counts).view(np.uint64)
    mask = ((np.uint64(1) << bits) - np.uint64(1))[:, None]
    drawn = numbers(keys[:, None], places[None, :])
    drawn &= ~mask
    drawn |= places
    # A padding place sorts last. A real number may equal it only when its low bits do too.
    drawn[places[None, :] >= counts.astype(np.uint64)[:, None]] = np.uint64(_MASK)
    drawn.sort(axis=1)
    drawn &= mask
    return drawn.view(np.int64)


def scattered(key: int, count: int, positions: Ints) -> Ints:
    """The global order: which of `count` rows stands at each of `positions`.

    A six-round Feistel network over the next power of two, walked on while it leaves the range.
    Each position costs the same wherever it is, and nothing of size `count` is made.
    """
    width = max(2, (count - 1).bit_length())
    low_width = width // 2
    rows = np.empty(positions.shape, dtype=np.uint64)
    for start in range(0, positions.size, _IN_CACHE):
        piece = slice(start, start + _IN_CACHE)
        rows[piece] = _walk(key, count, low_width, width, positions[piece].astype(np.uint64))
    return rows.view(np.int64)


def _walk(
    key: int, count: int, low_width: int, width: int, rows: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    rows = _feistel(key, low_width, width, rows)
    outside = np.flatnonzero(rows >= np.uint64(count))
    while outside.size:
        moved = _feistel(key, low_width, width, rows[outside])
        rows[outside] = moved
        outside = outside[moved >= np.uint64(count)]
    return rows


def _feistel(key: int, low_width: int, width: int, value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low_mask = np.uint64((1 << low_width) - 1)
    high_mask = np.uint64((1 << (width - low_width)) - 1)
    low, high = value & low_mask, value >> np.uint64(low_width)
    for turn in range(_ROUNDS):
        round_key = number(key, turn)
        if turn % 2 == 0:
            high ^= numbers(round_key, low) & high_mask
        else:
            low ^= numbers(round_key, high) & low_mask
    return high << np.uint64(low_width) | low
