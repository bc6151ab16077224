"""Maps of files in memory that keep no file descriptor, within a limit of bytes.

Python's own maps keep one each until 3.13, and a process may hold a thousand descriptors or fewer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Final

MAPS: Final = 4096
MAPPED_BYTES: Final = 64 << 30
_FAILED: Final = ctypes.c_void_p(-1).value


class MapCache:
    """Maps that were asked for last. Those that views are left of stay, whatever is forgotten."""

    def __init__(self) -> None:
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._maps)

    def get(self, name: str, make: Callable[[], memoryview | None]) -> memoryview | None:
        """The map called `name`, which `make` gives; None where the system has no room for it."""
        with self._lock:
            known = self._maps.get(name)
            if known is not None:
                self._maps.move_to_end(name)
                return known
        made = make()
        if made is None:
            self.clear()  # what nobody looks at makes room
            made = make()
        if made is not None:
            self._put(name, made)
        return made

    def clear(self) -> None:
        with self._lock:
            self._maps.clear()
            self._bytes = 0

    def _put(self, name: str, made: memoryview) -> None:
        with self._lock:
            if name in self._maps:
                return
            self._maps[name] = made
            self._bytes += made.nbytes
            while len(self._maps) > 1 and (len(self._maps) > MAPS or self._bytes > _most_bytes()):
                self._bytes -= self._maps.popitem(last=False)[1].nbytes


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
        library = _library()
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = library.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
    finally:
        os.close(descriptor)
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


@cache
def _most_bytes() -> int:
    """Bytes of maps that are remembered: less where addresses are limited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return MAPPED_BYTES if limit == resource.RLIM_INFINITY else min(MAPPED_BYTES, limit // 4)
