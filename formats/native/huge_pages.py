"""Memory in huge pages: what is got anew and filled once, at a fifth of what small pages cost.

The kernel gives memory page by page as it is first touched, and clears each: half a nanosecond a
byte in pages of 4 KiB, a tenth in those of 2 MiB, where a copy takes a twentieth. Linux hands out
huge ones where it is asked to; elsewhere this is ordinary memory.
"""

from __future__ import annotations

import mmap
from threading import local
from typing import Final

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE: Final = 2 << 20
LEAST_BYTES: Final = 64 << 10  # malloc has smaller ones at hand
SLAB_BYTES: Final = 4 * HUGE_PAGE
_LINE: Final = 64  # bytes that neighbours in a slab are apart, so that no two share them
_KNOWN: Final = hasattr(mmap, "MADV_HUGEPAGE")


class _Slab(local):
    """What is left of the slab that a thread takes from."""

    def __init__(self) -> None:
        self.left = np.empty(0, np.uint8)


_SLAB: Final = _Slab()


def new_bytes(size: int) -> NDArray[np.uint8]:
    """So many bytes of any value, the caller's alone, for as long as anything refers to them.

    Of a slab of SLAB_BYTES that they may share with others that this thread takes: what refers to
    one of them keeps all.
    """
    if size < LEAST_BYTES:
        return np.empty(size, np.uint8)
    if size > SLAB_BYTES // 2:
        return new_pages(size)
    if size > _SLAB.left.size:
        _SLAB.left = new_pages(SLAB_BYTES)
    taken = _SLAB.left[:size]
    _SLAB.left = _SLAB.left[-(-size // _LINE) * _LINE :]
    return taken


def new_pages(size: int) -> NDArray[np.uint8]:
    """So many bytes of any value in pages of their own."""
    if not _KNOWN or size < HUGE_PAGE:
        return np.empty(size, np.uint8)
    # A whole number of huge pages: then kernels since 6.7 begin it where a huge page may begin.
    whole = -(-size // HUGE_PAGE) * HUGE_PAGE
    pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)[:size]
