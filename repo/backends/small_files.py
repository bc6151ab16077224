"""Reads of many small files of one disk: a check or a collection reads a million of them.

One by one, each is reached from the root, folder by folder, in some fifteen system calls. Here
folders stay open, and each file takes an open, a read and a close.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Self

from tensorrepo.repo.errors import Error

# A pipe must not block us; a link is never followed.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_FOLDERS: Final = 256  # as objects have
_SHARE: Final = 4  # of the descriptors that this process may have, one in so many is for folders


class SmallFiles:
    """Small files below one root, for as long as this is entered. For one thread.

    Whoever moves the root away meanwhile moves what is read here.
    """

    def __init__(self, open_folder: Callable[[str], AbstractContextManager[int]]) -> None:
        """Prepare; `open_folder` enters a folder without following a link."""
        self._open_folder = open_folder
        self._folders: dict[str, int] = {}
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST_FOLDERS if most < 0 else min(_MOST_FOLDERS, most // _SHARE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            os.close(self._folders.popitem()[1])

    def read(self, key: str, size_bytes: int) -> bytes | None:
        """All bytes of a file; None where there is none of so many bytes, whatever is there."""
        folder, _, name = key.rpartition("/")
        try:
            at = self._folders.get(folder) or self._open(folder)
            fd = os.open(name, _READ, dir_fd=at)
        except (OSError, Error):
            return None
        try:
            data = os.read(fd, size_bytes + 1)
        except OSError:
            return None
        finally:
            os.close(fd)
        return data if len(data) == size_bytes else None

    def _open(self, folder: str) -> int:
        if len(self._folders) >= self._most:
            os.close(self._folders.pop(next(iter(self._folders))))
        with self._open_folder(folder) as at:
            self._folders[folder] = os.dup(at)
        return self._folders[folder]
