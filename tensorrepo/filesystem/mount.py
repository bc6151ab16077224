"""A commit mounted as a folder, read-only, by FUSE.

Sizes and names are of metadata alone. The size of a table is known when it was made, so tables are
made, and listed from then on, when a program names them.

Nothing in a commit ever changes, so the kernel keeps names, sizes and bytes for as long as it
likes: what was read once is read again at the speed of a local file. Calls come on threads of
libfuse; blocks of files are read ahead on threads of our own, in bounded memory.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np

from tensorrepo.filesystem.libfuse import (
    FILESYSTEM,
    Attributes,
    keep_in_kernel,
    mount_here,
    raise_read_ahead,
)
from tensorrepo.formats.files.base import PresentedFile
from tensorrepo.formats.files.commit_files import CommitFiles, FileFacts
from tensorrepo.repo.backends.mounts import mount_over
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from tensorrepo.repo.objects.cache import LimitedCache

BLOCK_BYTES: Final = 4 << 20
BLOCKS_AHEAD: Final = 2
BLOCKS_BYTES: Final = 64 << 20  # the kernel keeps what was read: few of ours stay in the cache
LISTINGS_BYTES: Final = 256 << 20
_NAME_BYTES: Final = 200  # of a name in a listing
_READERS: Final = 4
_LOGGER = logging.getLogger(__name__)
_NOTHING: Final = (ctypes.c_char * 0)()
_NOT_MADE: Final = FileFacts(is_folder=False)  # a table whose size nobody knows yet
_SERVER_IS_GONE: Final = (errno.ENOTCONN, errno.ECONNABORTED)
_STATUS_OF: Final = ((NotFoundError, errno.ENOENT), (InvalidInputError, errno.EINVAL))


class BlockReader:
    """Reads files in blocks, of which the last ones are kept, and some ahead of who reads on."""

    def __init__(self) -> None:
        self._blocks: LimitedCache[memoryview] = LimitedCache(BLOCKS_BYTES)
        self._ahead: dict[tuple[int, int], Future[memoryview]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="mount-read")

    def read(self, handle: int, file: PresentedFile, start: int, size: int) -> memoryview:
        """Bytes ``[start, start + size)`` of a file, fewer at its end, as they lie in a block."""
        stop = min(start + size, file.size_bytes)
        if start >= stop:
            return memoryview(b"")
        number = start // BLOCK_BYTES
        while file.piece_start(number * BLOCK_BYTES) > start:
            number -= 1  # the last piece of a block before reaches into this one
        parts, at = [], start
        while at < stop:
            begin, end = _span(file, number)
            if at < end:
                block = self._block(handle, file, number)
                parts.append(block[at - begin : min(stop, end) - begin])
                at = min(stop, end)
            number += 1
        if file.size_bytes > BLOCK_BYTES:
            for ahead in range(number, number + BLOCKS_AHEAD):
                self._begin(handle, file, ahead)
        return parts[0] if len(parts) == 1 else memoryview(bytearray().join(parts))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget(self, handle: int) -> None:
        """Whoever opened the file has closed it."""
        with self._lock:
            for key in [key for key in self._ahead if key[0] == handle]:
                self._ahead.pop(key).cancel()

    def _block(self, handle: int, file: PresentedFile, number: int) -> memoryview:
        known = self._blocks.get((handle, number))
        if known is not None:
            return known
        self._begin(handle, file, number)
        with self._lock:
            future = self._ahead.get((handle, number))
        if future is None:  # it was done meanwhile
            known = self._blocks.get((handle, number))
            return _read_block(file, number) if known is None else known
        return future.result()

    def _begin(self, handle: int, file: PresentedFile, number: int) -> None:
        key = (handle, number)
        if number * BLOCK_BYTES >= file.size_bytes or self._blocks.get(key) is not None:
            return
        with self._lock:
            if key in self._ahead:
                return
            future = self._ahead[key] = self._pool.submit(_read_block, file, number)
        future.add_done_callback(lambda done: self._keep(key, done))

    def _keep(self, key: tuple[int, int], done: Future[memoryview]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._blocks.put(key, done.result(), done.result().nbytes)
        with self._lock:
            self._ahead.pop(key, None)


def _span(file: PresentedFile, number: int) -> tuple[int, int]:
    """Where a block begins and ends: at the first pieces that begin in it, and in the next."""
    start = number * BLOCK_BYTES
    return file.piece_start(start), file.piece_start(start + BLOCK_BYTES)


def _read_block(file: PresentedFile, number: int) -> memoryview:
    start, stop = _span(file, number)
    block, at = np.empty(stop - start, np.uint8), 0
    for piece in file.pieces(start, stop):
        part = np.frombuffer(piece, np.uint8)
        block[at : at + len(part)] = part  # other threads run meanwhile
        at += len(part)
    return block.data


class MountedFiles:
    """What libfuse asks of a mounted commit; see `mfusepy.Operations`, whose names these are."""

    use_ns = True

    def __init__(self, files: CommitFiles, time_ns: int, folder: Path | None = None) -> None:
        self._files = files
        self._folder = folder  # where it is mounted, until its read-ahead was raised
        self._listings: LimitedCache[dict[str, FileFacts]] = LimitedCache(LISTINGS_BYTES)
        self._open: dict[int, PresentedFile] = {}
        self._handles = count(1)
        self._blocks: BlockReader | None = None
        user = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        times = dict.fromkeys(("st_mtime", "st_ctime", "st_atime"), time_ns)
        self._same = user | times
        self._folder_attributes = {
            "st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_size": 0, "st_blocks": 0,
            **self._same,
        }  # fmt: skip

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Called in the process that serves, before anything else."""
        self._blocks = BlockReader()
        keep_in_kernel(connection, config)

    def destroy(self, _path: str) -> None:
        if self._blocks is not None:
            self._blocks.close()

    def getattr(self, path: str, _handle: int | None = None) -> Attributes:
        return self._attributes(self._answered(self._facts, path.strip("/")))

    def listed(self, path: str) -> Iterator[tuple[str, Attributes]]:
        """Names in a folder, and what `getattr` says of them."""
        # A table that was not made yet is there for who names it: listings make nothing.
        names = self._answered(self._names, path.strip("/"))
        yield from ((each, self._folder_attributes) for each in (".", ".."))
        yield from (
            (name, self._attributes(facts)) for name, facts in names.items() if facts != _NOT_MADE
        )

    def readdir(self, path: str, _handle: int) -> list[str]:
        return [name for name, _ in self.listed(path)]

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "read-only")
        folder, self._folder = self._folder, None
        if folder is not None:  # while it was being mounted the kernel would have lowered it again
            raise_read_ahead(folder)
        handle = next(self._handles)
        self._open[handle] = self._answered(self._files.open, path.strip("/"))
        return handle

    def read(self, path: str, size: int, offset: int, handle: int) -> ctypes.Array[ctypes.c_char]:
        """The bytes where they lie: mfusepy copies from there, and lets other threads run."""
        assert self._blocks is not None, "init came first"
        blocks, file = self._blocks, self._open[handle]
        data: memoryview = self._answered(lambda _: blocks.read(handle, file, offset, size), path)
        if not data:
            return _NOTHING
        return (ctypes.c_char * data.nbytes).from_buffer(data)

    def release(self, _path: str, handle: int) -> int:
        self._open.pop(handle, None)
        if self._blocks is not None:
            self._blocks.forget(handle)
        return 0

    def statfs(self, _path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255}

    def _attributes(self, facts: FileFacts) -> Attributes:
        if facts.is_folder:
            return self._folder_attributes
        size = facts.size_bytes or 0
        return {
            "st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": size,
            "st_blocks": -(-size // 512), **self._same,
        }  # fmt: skip

    def _names(self, folder: str) -> dict[str, FileFacts]:
        def load() -> tuple[dict[str, FileFacts], int]:
            found = self._files.names(folder)
            return found, _NAME_BYTES * (len(found) + 1)

        return self._listings.get_or_load(folder, load)

    def _facts(self, path: str) -> FileFacts:
        if not path:
            return FileFacts(is_folder=True)
        folder, _, name = path.rpartition("/")
        facts = self._names(folder).get(name)
        if facts is None:
            raise NotFoundError(f"there is no {path!r:.300}")
        if not facts.is_folder and facts.size_bytes is None:  # a table that was not made yet
            facts = FileFacts(False, self._files.open(path).size_bytes)
            self._names(folder)[name] = facts
        return facts

    def _answered(self, ask: Callable[[str], Any], path: str) -> Any:
        """What `ask` answers; an error as the number that programs know, told in the log."""
        try:
            return ask(path)
        except Error as error:
            status = next((each for kind, each in _STATUS_OF if isinstance(error, kind)), errno.EIO)
            if status != errno.ENOENT:
                _LOGGER.error("%s: %s", path, error)  # noqa: TRY400  no bug
            raise OSError(status, os.strerror(status)) from None


def check_mountpoint(folder: Path) -> None:
    """Make `folder` ready to be mounted over: what a process that was killed left goes.

    Raises:
        ConflictError: it is in use, or holds files.
        NotFoundError: there is no such folder, nor one that it could be made in.
    """
    try:
        folder.mkdir(exist_ok=True)
        names = os.listdir(folder)
    except FileNotFoundError:
        raise NotFoundError(f"{folder.parent} does not exist: make it first") from None
    except FileExistsError:
        raise ConflictError(f"{folder} is a file: a commit is mounted over a folder") from None
    except OSError as error:
        if error.errno not in _SERVER_IS_GONE:
            raise StorageError(f"{folder}: {error.strerror}") from error
        unmount(folder)
        names = os.listdir(folder)
    if mounted_at(folder):
        raise ConflictError(
            f"something is mounted at {folder} already: `tensorrepo unmount {folder}`"
        )
    if names:
        raise ConflictError(f"{folder} is not empty: name an empty folder, or a new one")


def mounted_at(folder: Path) -> bool:
    """Whether a file system is mounted over `folder`."""
    return mount_over(folder) is not None


def unmount(folder: Path) -> None:
    """Take a mounted commit away; who has files of it open keeps them.

    Raises:
        NotFoundError: no commit is mounted there.
        StorageError: the system refuses.
    """
    mount = mount_over(folder)
    if mount is None or not mount.type.startswith(f"fuse.{FILESYSTEM}"):
        raise NotFoundError(f"no commit is mounted at {folder}")
    unmount_lazily(folder)


def unmount_lazily(folder: Path) -> None:
    """Take away whatever is mounted at `folder`, seen or not. Raises StorageError."""
    told = "neither fusermount3, fusermount nor umount is there"
    for command in (["fusermount3", "-uz"], ["fusermount", "-uz"], ["umount", "-l"]):
        try:
            subprocess.run(  # noqa: S603  nothing of it is a shell's
                [*command, folder], check=True, capture_output=True, text=True
            )
        except FileNotFoundError:
            continue
        except subprocess.CalledProcessError as error:
            told = error.stderr.strip()
            continue
        return
    raise StorageError(f"cannot unmount {folder}: {told}")


def serve_mount(files: CommitFiles, time_ns: int, folder: Path, *, source: str) -> None:
    """Serve a commit at `folder` until it is unmounted or the process ends.

    Args:
        files: files of the commit.
        time_ns: time of all of them, ns since 1970 in UTC.
        folder: see `check_mountpoint`.
        source: what `mount` shows as the device.

    Raises:
        UnsupportedError: libfuse, or its Python module, is missing.
        StorageError: the system refuses.
    """
    try:
        mount_here(MountedFiles(files, time_ns, folder), folder, source=source)
    except RuntimeError as error:
        raise StorageError(
            f"cannot mount at {folder} (libfuse says {error}): /dev/fuse must be there, and you "
            "must be allowed to use it"
        ) from error
