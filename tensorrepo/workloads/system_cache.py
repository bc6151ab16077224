"""The operating system's cache of files: what it holds of a folder, dropped and measured.

A benchmark of a disk measures memory where the system still holds what was written or read before.
Linux gives up the pages of a file that nobody maps and that are on the disk; what it holds on to is
told by mincore(2), which changes nothing. Of a read that is not to wait (`RWF_NOWAIT`) Linux begins
to read what it asks for, which a quick disk has there before the answer: it told of up to two
fifths of what was dropped that they were held, and brought back every page that it looked at.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

_LEAST_BYTES: Final = 1 << 20  # of files that are looked at: smaller ones matter to nobody
_MAPPED_BYTES: Final = 1 << 30  # at once; a byte of the answer for each page


def drop(folder: Path) -> None:
    """Ask the system to give up what it holds of the files below `folder`; some it may keep.

    Does nothing where the system knows no such request.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in _files(folder):
        with suppress(OSError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(folder: Path) -> None:
    """Read all files below `folder` once, so that the system holds them as far as it has room."""
    block = bytearray(1 << 20)
    for path in _files(folder):
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def held_share(folder: Path) -> float | None:
    """Share of the pages of large files below `folder` that the system holds.

    None where that cannot be told: there are none, or none that this user could write to, since of
    other ones Linux says that it holds them, whether it does or not.
    """
    held = pages = 0
    for path in _files(folder):
        with suppress(OSError):
            if path.stat().st_size >= _LEAST_BYTES and os.access(path, os.W_OK):
                for present in _present(path):
                    held, pages = held + int(np.count_nonzero(present)), pages + len(present)
    return held / pages if pages else None


def _present(path: Path) -> Iterator[NDArray[np.bool_]]:
    """Which pages of a file the system holds, in parts of it.

    Raises:
        OSError: the system knows no such question, or the file cannot be mapped.
    """
    ask = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if ask is None:
        raise OSError(errno.ENOSYS, "there is no mincore")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, _MAPPED_BYTES):
            length = min(_MAPPED_BYTES, size - start)
            with mmap(file.fileno(), length, access=ACCESS_READ, offset=start) as mapped:
                answer = np.empty(-(-length // PAGESIZE), np.uint8)
                address = np.frombuffer(mapped, np.uint8).ctypes.data
                to = ctypes.c_void_p(answer.ctypes.data)
                if ask(ctypes.c_void_p(address), ctypes.c_size_t(length), to):
                    raise OSError(ctypes.get_errno(), "mincore failed", str(path))
            yield answer & 1 == 1


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
