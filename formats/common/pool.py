"""Array pool: memory that is lent and taken back without a word.

Fresh memory costs several times what filling it costs. A pool lends parts of blocks that it keeps:
a block is free again when nobody but the pool refers to it. Views, slices and tensors made of a
lent array all refer to its block, so there is nothing to give back and nothing to get wrong.
"""

from __future__ import annotations

import sys
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
_SMALL_BYTES = 4 << 10  # the allocator recycles these well
_ROUNDED_BYTES = 64 << 10
_IN_THE_LIST = 2  # references to a free block: the list's, and the one getrefcount asks with


class Pool:
    """Lends arrays. Thread-safe; what it lends is not cleared."""

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        """Keep blocks of up to `limit_bytes` in all; arrays beyond that are not pooled."""
        self._limit_bytes = limit_bytes
        self._blocks: list[NDArray[np.uint8]] = []
        self._lock = Lock()

    @property
    def kept_bytes(self) -> int:
        with self._lock:
            return sum(block.nbytes for block in self._blocks)

    def array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, room_bytes: int = 0
    ) -> NDArray[Any]:
        """An array of that shape with any content, aligned to 64 bytes.

        It is cut from a block of at least `room_bytes`, for which larger arrays will ask: memory
        that is touched for it is theirs later, and what it leaves of a new block is not touched.
        """
        needed = prod(shape) * dtype.itemsize
        if needed < _SMALL_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            # Inside the lock until somebody else refers to the block.
            block = self._free_block(max(needed, room_bytes))
            start = -block.__array_interface__["data"][0] % _ALIGNMENT
            return block[start : start + needed].view(dtype).reshape(shape)

    def _free_block(self, needed: int) -> NDArray[np.uint8]:
        wanted = -(-(needed + _ALIGNMENT) // _ROUNDED_BYTES) * _ROUNDED_BYTES
        blocks = self._blocks
        for at in range(len(blocks)):
            fits = wanted <= blocks[at].nbytes <= 2 * wanted
            if fits and sys.getrefcount(blocks[at]) == _IN_THE_LIST:
                return blocks[at]
        fresh = np.empty(wanted, np.uint8)
        kept = sum(block.nbytes for block in blocks)
        if kept + wanted > self._limit_bytes:
            free = [at for at in range(len(blocks)) if sys.getrefcount(blocks[at]) == _IN_THE_LIST]
            for at in reversed(free):
                kept -= blocks.pop(at).nbytes
        if kept + wanted <= self._limit_bytes:
            blocks.append(fresh)
        return fresh
