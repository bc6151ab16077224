"""Buffers that each thread keeps: memory for what is computed on the way, and not kept itself.

Memory of a frame's size that is got anew costs more, page by page, than what it is for. When a
thread ends, the next one finds its buffers: loads and saves have threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.frame_memory import IDLE

_LARGEST: Final = 8 << 20  # bytes of a frame; what is larger is not kept
_LEAST: Final = 4 << 10


class _ByUse(dict[str, NDArray[np.uint8]]):
    """Buffers of one thread, which goes away with it."""

    def __del__(self, give: Callable[[NDArray[np.uint8]], None] = IDLE.give) -> None:
        for kept in self.values():
            give(kept)


class _Buffers(local):
    def __init__(self) -> None:
        self.by_use = _ByUse()


_BUFFERS: Final = _Buffers()


def buffer_for(use: str, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`count` numbers of any value, good until this thread asks for that use again, or ends."""
    size = count * dtype.itemsize
    if size > _LARGEST:
        return np.empty(count, dtype)
    kept = _BUFFERS.by_use.get(use)
    if kept is None or kept.size < size:
        kept = _BUFFERS.by_use[use] = IDLE.take(1 << (max(size, _LEAST) - 1).bit_length())
    return kept[:size].view(dtype)
