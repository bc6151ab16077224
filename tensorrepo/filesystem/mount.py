"""A commit mounted as a folder, read-only, by FUSE.

Sizes and names are of metadata alone. The size of a table is known when it was made, so tables are
made, and listed from then on, when a program names them.

Nothing in a commit ever changes, so the kernel keeps names, sizes and bytes for as long as it
likes: what was read once is read again at the speed of a local file. Calls come on threads of
libfuse; blocks of files are read ahead on threads of our own, in bounded memory.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tensorrepo.formats.files.base import PresentedFile
from tensorrepo.formats.files.commit_files import CommitFiles, FileFacts
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.objects.cache import LimitedCache

BLOCK_BYTES: Final = 4 << 20
BLOCKS_AHEAD: Final = 2
MEMORY_BYTES: Final = 256 << 20  # of blocks, and as much of listings
FILESYSTEM: Final = "tensorrepo"
_KEEP_SECONDS: Final = 86400 * 365  # a commit never changes
_NAME_BYTES: Final = 200  # of a name in a listing
_READERS: Final = 4
_LOGGER = logging.getLogger(__name__)
_NOT_MADE: Final = FileFacts(is_folder=False)  # a table whose size nobody knows yet
_SERVER_IS_GONE: Final = (errno.ENOTCONN, errno.ECONNABORTED)
_STATUS_OF: Final = ((NotFoundError, errno.ENOENT), (InvalidInputError, errno.EINVAL))


class BlockReader:
    """Reads files in blocks, of which the last ones are kept, and some ahead of who reads on."""

    def __init__(self) -> None:
        self._blocks: LimitedCache[bytes] = LimitedCache(MEMORY_BYTES)
        self._ahead: dict[tuple[int, int], Future[bytes]] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="mount-read")

    def read(self, handle: int, file: PresentedFile, start: int, size: int) -> bytes:
        """Bytes ``[start, start + size)`` of a file, fewer at its end."""
        stop = min(start + size, file.size_bytes)
        if start >= stop:
            return b""
        first, last = start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        parts = []
        for number in range(first, last + 1):
            block = self._block(handle, file, number)
            at = number * BLOCK_BYTES
            parts.append(block[max(start - at, 0) : stop - at])
        if file.size_bytes > BLOCK_BYTES:
            for number in range(last + 1, last + 1 + BLOCKS_AHEAD):
                self._begin(handle, file, number)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def forget(self, handle: int) -> None:
        """Whoever opened the file has closed it."""
        with self._lock:
            for key in [key for key in self._ahead if key[0] == handle]:
                self._ahead.pop(key).cancel()

    def _block(self, handle: int, file: PresentedFile, number: int) -> bytes:
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

    def _keep(self, key: tuple[int, int], done: Future[bytes]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._blocks.put(key, done.result(), len(done.result()))
        with self._lock:
            self._ahead.pop(key, None)


def _read_block(file: PresentedFile, number: int) -> bytes:
    start = number * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, file.size_bytes)
    return b"".join(file.pieces(start, stop))


class MountedFiles:
    """What libfuse asks of a mounted commit; see `mfusepy.Operations`, whose names these are."""

    use_ns = True

    def __init__(self, files: CommitFiles, time_ns: int) -> None:
        self._files = files
        self._listings: LimitedCache[dict[str, FileFacts]] = LimitedCache(MEMORY_BYTES)
        self._open: dict[int, PresentedFile] = {}
        self._handles = count(1)
        self._blocks: BlockReader | None = None
        user = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        times = dict.fromkeys(("st_mtime", "st_ctime", "st_atime"), time_ns)
        self._same = user | times

    def init_with_config(self, _connection: Any, config: Any) -> None:
        """Called in the process that serves, before anything else."""
        self._blocks = BlockReader()
        if config is not None:  # libfuse 3 takes here what are options of libfuse 2
            config.kernel_cache = 1
            config.attr_timeout = config.entry_timeout = config.negative_timeout = _KEEP_SECONDS

    def destroy(self, _path: str) -> None:
        if self._blocks is not None:
            self._blocks.close()

    def getattr(self, path: str, _handle: int | None = None) -> Mapping[str, Any]:
        facts = self._answered(self._facts, path.strip("/"))
        if facts.is_folder:
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, **self._same}
        return {
            "st_mode": stat.S_IFREG | 0o444,
            "st_nlink": 1,
            "st_size": facts.size_bytes,
            "st_blocks": -(-(facts.size_bytes or 0) // 512),
            **self._same,
        }

    def readdir(self, path: str, _handle: int) -> list[str]:
        # A table that was not made yet is there for who names it: listings make nothing.
        names = self._answered(self._names, path.strip("/"))
        listed = (name for name, facts in names.items() if facts != _NOT_MADE)
        return [".", "..", *listed]

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "read-only")
        handle = next(self._handles)
        self._open[handle] = self._answered(self._files.open, path.strip("/"))
        return handle

    def read(self, _path: str, size: int, offset: int, handle: int) -> bytes:
        assert self._blocks is not None, "init came first"
        blocks, file = self._blocks, self._open[handle]
        data: bytes = self._answered(lambda _: blocks.read(handle, file, offset, size), _path)
        return data

    def release(self, _path: str, handle: int) -> int:
        self._open.pop(handle, None)
        if self._blocks is not None:
            self._blocks.forget(handle)
        return 0

    def statfs(self, _path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255}

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
    return str(folder) in _mounts()


def unmount(folder: Path) -> None:
    """Take a mounted commit away; who has files of it open keeps them.

    Raises:
        NotFoundError: no commit is mounted there.
        StorageError: the system refuses.
    """
    if not _mounts().get(str(folder), "").startswith(f"fuse.{FILESYSTEM}"):
        raise NotFoundError(f"no commit is mounted at {folder}")
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
    fuse = _fuse()
    options: dict[str, Any] = {
        "foreground": True, "ro": True, "fsname": source.replace(",", "_"), "subtype": FILESYSTEM,
    }  # fmt: skip
    if fuse.fuse_version_major == 2:
        times = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), _KEEP_SECONDS)
        options |= {"kernel_cache": True, **times}
    try:
        fuse.FUSE(MountedFiles(files, time_ns), str(folder), **options)
    except RuntimeError as error:
        raise StorageError(
            f"cannot mount at {folder} (libfuse says {error}): /dev/fuse must be there, and you "
            "must be allowed to use it"
        ) from error


def _fuse() -> Any:
    try:
        import mfusepy
    except ImportError:
        raise UnsupportedError("mounting needs mfusepy: pip install 'tensorrepo[mount]'") from None
    except OSError:
        raise UnsupportedError(
            "mounting needs libfuse: on Debian, apt-get install fuse3 libfuse3-3"
        ) from None
    return mfusepy


def _mounts() -> dict[str, str]:
    """Types of mounted file systems by where they are; without /proc none is known."""
    if sys.platform != "linux":
        return {}
    lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    fields = [line.split(" ") for line in lines]
    return {_unescaped(each[1]): each[2] for each in fields}


def _unescaped(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("unicode_escape")
