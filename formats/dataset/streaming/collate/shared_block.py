"""Blocks of memory that a process shares with the one that it starts, and lends by views.

A block has no name: one process makes it and its child inherits it. The kernel frees it with the
last map, so whichever process is killed, nothing stays in ``/dev/shm``, whose size is no limit
either where the kernel has `memfd_create`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROUNDED_BYTES = 1 << 20


class SharedBlock:
    """Memory that grows, to be passed to a process as it is started."""

    def __init__(self) -> None:
        self._fd = _file_without_name()
        self.memory = np.empty(0, np.uint8)

    @property
    def capacity(self) -> int:
        """Bytes of the block, as this process knows it."""
        return self.memory.nbytes

    def grow(self, needed: int) -> None:
        """Have room for `needed` bytes at least."""
        if needed > self.capacity:
            rounded = -(-needed // _ROUNDED_BYTES) * _ROUNDED_BYTES
            os.ftruncate(self._fd, rounded)
            self.map(rounded)

    def map(self, size: int) -> None:
        """See the first `size` bytes, which the other process made. Older views stay valid."""
        if size != self.capacity:
            self.memory = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)

    def lend(self, size: int, returned: Callable[[], None]) -> NDArray[np.uint8]:
        """The first `size` bytes; `returned` is called when nothing refers to them any more."""
        return np.asarray(_Lease(self.memory[:size], returned))

    def close(self) -> None:
        """Give the descriptor back. What was lent stays valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.memory = np.empty(0, np.uint8)

    def __getstate__(self) -> Any:
        return DupFd(self._fd)

    def __setstate__(self, duplicate: Any) -> None:
        self._fd = duplicate.detach()
        self.memory = np.empty(0, np.uint8)


class _Lease:
    """Tells numpy about some memory; every view of the array made of this refers to it."""

    def __init__(self, memory: NDArray[np.uint8], returned: Callable[[], None]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._returned = returned

    def __del__(self) -> None:
        self._returned()


def _file_without_name() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tensorrepo")
    descriptor, path = tempfile.mkstemp(prefix="tensorrepo-")
    os.unlink(path)
    return descriptor
