"""The operating system's cache of files: what it holds of a folder, dropped and measured.

A benchmark of a disk measures memory where the system still holds what was written or read before.
Linux gives up the pages of a file that nobody maps and that are on the disk; what it holds on to is
told by reads that are to fail rather than wait for the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEAST_BYTES: Final = 1 << 20  # of files that are looked at: smaller ones matter to nobody
_LOOKS: Final = 512  # at single pages, spread over all files
_NOT_HERE: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


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
    """Share of the bytes of large files below `folder` that the system holds, by a sample.

    None where that cannot be told.
    """
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return None
    sizes = {path: path.stat().st_size for path in _files(folder)}
    sizes = {path: size for path, size in sizes.items() if size >= _LEAST_BYTES}
    stride = max(1, sum(sizes.values()) // _LOOKS)
    looks = [
        held
        for path, size in sizes.items()
        for held in _looks(path, range(size // 2 % stride, size, stride))
    ]
    known = [held for held in looks if held is not None]
    return sum(known) / len(known) if known else None


def _looks(path: Path, places: range) -> Iterator[bool | None]:
    """Whether the system holds the byte at each of these places; None: it does not say."""
    byte = bytearray(1)
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # a look reads nothing ahead
        for place in places:
            try:
                yield os.preadv(file.fileno(), [byte], place, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                yield False
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                yield None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
