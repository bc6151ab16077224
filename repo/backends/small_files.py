"""Reads of many small files of one disk: a check or a collection reads a million of them.

One by one, each is reached from the root, folder by folder, in some fifteen system calls. Here
folders stay open, and each file takes an open, a read and a close; those of some hundred files are
one call of C (`_reading.c`).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, Self

from tensorrepo.repo.errors import Error

try:
    from tensorrepo.repo.backends import _reading
except ImportError:  # no compiler when this was installed, or built for another machine
    _reading = None  # type: ignore[assignment]

# A pipe must not block us; a link is never followed.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_FOLDERS: Final = 256  # as objects have
_SHARE: Final = 4  # of the descriptors that this process may have, one in so many is for folders
_FILES_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 4 << 20

_File = tuple[int, str, int]  # descriptor of its folder, name, expected bytes


def _read_one(folder: int, name: str, size_bytes: int) -> bytes | None:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(fd, size_bytes + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if len(data) == size_bytes else None


def _read_in_python(files: Sequence[_File]) -> list[bytes | None]:
    """All bytes of each file; None where there is none of so many bytes, whatever is there."""
    return [_read_one(*each) for each in files]


PYTHON: Final = _read_in_python
NATIVE: Final = None if _reading is None else _reading.read
_BEST: Final = PYTHON if _reading is None else _reading.read

FolderEntry = tuple[str, int, int, float]  # name, mode, bytes, seconds since 1970 of its change


def list_in_python(folder: int) -> list[FolderEntry]:
    """What an open folder has, in no order; links are not followed."""
    found: list[FolderEntry] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = entry.stat(follow_symlinks=False)
                found.append((entry.name, status.st_mode, status.st_size, status.st_mtime))
    return found


list_folder: Final = list_in_python if _reading is None else _reading.scan


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
        at = self._folders.get(folder) or self._open(folder)
        return None if at is None else _read_one(at, name, size_bytes)

    def read_all(self, wanted: Iterable[tuple[str, int]]) -> Iterator[bytes | None]:
        """The same of many, in their order, some at a time, as long as somebody takes them."""
        some: list[_File | None] = []
        waiting_bytes = 0
        for key, size_bytes in wanted:
            folder, _, name = key.rpartition("/")
            at = self._folders.get(folder)
            if at is None:
                if len(self._folders) >= self._most:  # one is closed that `some` may be in
                    yield from self._read_some(some)
                    some, waiting_bytes = [], 0
                at = self._open(folder)
            some.append(None if at is None else (at, name, size_bytes))
            waiting_bytes += size_bytes
            if len(some) >= _FILES_AT_ONCE or waiting_bytes >= _BYTES_AT_ONCE:
                yield from self._read_some(some)
                some, waiting_bytes = [], 0
        yield from self._read_some(some)

    @staticmethod
    def _read_some(some: Sequence[_File | None]) -> Iterator[bytes | None]:
        there = tuple(each for each in some if each is not None)
        read = iter(_BEST(there))
        return (None if each is None else next(read) for each in some)

    def _open(self, folder: str) -> int | None:
        """A descriptor of a folder; None where it is none, or cannot be opened."""
        if folder in self._folders:  # by another read since somebody looked
            return self._folders[folder]
        if len(self._folders) >= self._most:
            os.close(self._folders.pop(next(iter(self._folders))))
        try:
            with self._open_folder(folder) as at:
                self._folders[folder] = os.dup(at)
        except (OSError, Error):
            return None
        return self._folders[folder]
