"""Buffers that each thread keeps: memory for what is computed on the way, and not kept itself.

Memory of a frame's size that is got anew costs more, page by page, than what it is for.
"""

from __future__ import annotations

from threading import local
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LARGEST: Final = 8 << 20  # bytes of a frame; what is larger is not kept


class _Buffers(local):
    def __init__(self) -> None:
        self.by_use: dict[str, NDArray[np.uint8]] = {}


_BUFFERS: Final = _Buffers()


def buffer_for(use: str, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`count` numbers of any value, good until this thread asks for that use again."""
    size = count * dtype.itemsize
    if size > _LARGEST:
        return np.empty(count, dtype)
    kept = _BUFFERS.by_use.get(use)
    if kept is None or kept.size < size:
        kept = _BUFFERS.by_use[use] = np.empty(1 << max(12, (size - 1).bit_length()), np.uint8)
    return kept[:size].view(dtype)
