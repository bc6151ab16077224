"""Maps of files in memory that keep no file descriptor.

Python's own maps keep one each until 3.13, and a process may hold a thousand descriptors or fewer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Final

MAPPED_BYTES: Final = 64 << 30
LEAST_MAPPED_BYTES: Final = MAPPED_BYTES // 4096  # what a map counts: so many of them at most
_FAILED: Final = ctypes.c_void_p(-1).value


def map_file(path: Path) -> memoryview | None:
    """The bytes of a file, private and copy-on-write; None where the system has no room.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            raise ValueError("an empty file cannot be mapped")
        return map_descriptor(descriptor, size)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, size: int) -> memoryview | None:
    """The first `size` bytes of an open file, as `map_file`; it may be closed afterwards."""
    library = _library()
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = library.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _FAILED:
        return None
    array = (ctypes.c_ubyte * size).from_address(address)
    # Views hold the array: when the last one is gone, so is the map.
    ending = weakref.finalize(array, library.munmap, address, size)
    ending.atexit = False  # other threads may look at it until the very end
    return memoryview(array).cast("B")


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def map_limit() -> int:
    """Bytes of maps that a store remembers: less where addresses are limited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return MAPPED_BYTES if limit == resource.RLIM_INFINITY else min(MAPPED_BYTES, limit // 4)
