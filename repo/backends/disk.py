"""Which system calls does a repository on a disk make?

Every call starts at the root and opens one folder after the other without following links, so that
a link inside a repository that came from somebody else never leads out of it. Each method is one
step whose order matters: tests record and interrupt them here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import Error, PermissionDenied, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TEMPORARY = "tmp"  # the folder of what has no name yet; no key begins with it
STALE_SECONDS = 3600.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block us
_MAX_PARTS = 1024  # IOV_MAX
# Given more at once, the kernel takes memory for it in large pieces, which it has to look for:
# writes of 8 MiB reached between 0.3 and 2.3 GB/s here, writes of 256 KiB always more than 2.
_WRITE_BYTES = 256 << 10
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_ADVICE = {
    errno.ENOSPC: "No space is left on the disk: free some, then repeat.",
    errno.EDQUOT: "The disk quota is used up: free some space, then repeat.",
    errno.ENOENT: "It vanished meanwhile: does somebody delete files by hand?",
    errno.EIO: "The disk reports a defect. Save a copy now, then run `tensorrepo doctor`.",
    errno.EMFILE: "Too many files are open: raise `ulimit -n`.",
    errno.ENFILE: "Too many files are open on this machine.",
    errno.ENOTDIR: "A file or a link stands where a folder must be; links are not followed.",
    errno.ELOOP: "It is a link, and links inside a repository are not followed.",
    errno.EISDIR: "A folder, a pipe or a device stands where a file must be.",
    errno.ESTALE: "The network file system lost track of the file.",
}
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EAGAIN, errno.EINTR})


@dataclass(frozen=True, slots=True)
class Staged:
    """A written file without a key: its name below `TEMPORARY` and its open descriptor."""

    name: str
    fd: int


class Disk:
    """The steps of reading and writing below `root`, which must be absolute and resolved.

    Every `OSError` becomes one of our errors, but `open`, `stat`, `scan` and `remove` raise
    `FileNotFoundError` for what is not there: the caller knows what that means.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        link: Callable[..., None] = os.link,
    ) -> None:
        self.root = root
        self._clock = clock
        self._link = link
        self._swept = False

    def open(self, key: str) -> int:
        """A descriptor to read `key`; the caller closes it."""
        folder, name = split(key)
        with self._explained("read", key, expect=False), self._folder(folder) as at:
            fd = os.open(name, _READ, dir_fd=at)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def stat(self, key: str) -> os.stat_result:
        folder, name = split(key)
        with self._explained("look up", key, expect=False), self._folder(folder) as at:
            return os.stat(name, dir_fd=at, follow_symlinks=False)

    def scan(self, folder: str) -> list[tuple[str, os.stat_result]]:
        """Names in `folder` with what they are, in no order."""
        found = []
        with (
            self._explained("list", folder, expect=False),
            self._folder(folder) as at,
            os.scandir(at) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found

    def stage(self, parts: Sequence[memoryview]) -> Staged:
        """Write `parts` to a new temporary file."""
        self._sweep()
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        with self._explained("write", TEMPORARY), self._folder(TEMPORARY, make=True) as at:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            staged = Staged(name, os.open(name, flags, 0o666, dir_fd=at))
            try:
                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(staged.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # see _sweep
                _write(staged.fd, parts)
            except BaseException:
                self.discard(staged)
                raise
        return staged

    def start_sync(self, staged: Staged) -> None:
        """Let the kernel begin to write. Many files begun together share one journal commit."""
        if hasattr(os, "posix_fadvise"):
            with self._explained("write", TEMPORARY):
                os.posix_fadvise(staged.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, staged: Staged) -> None:
        # Sync the file before linking it. Without this a power cut can leave the final name on
        # an empty file. After a failure the kernel forgets what it could not write: a second
        # fsync would succeed, so nobody may try again with this file.
        with self._explained("write", TEMPORARY):
            _fsync(staged.fd)

    def link(self, staged: Staged, key: str, *, exclusive: bool = True) -> bool:
        """Give a synced file its key; False when the key is taken.

        Args:
            staged: what to name.
            key: its name.
            exclusive: False allows a check and a rename where the file system has no links.
        """
        folder, name = split(key)
        with (
            self._explained("create", key),
            self._folder(folder, make=True) as at,
            self._folder(TEMPORARY) as source,
        ):
            try:
                self._link(
                    staged.name, name, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=False
                )
            except FileExistsError:
                return False
            except OSError as error:
                if exclusive or error.errno not in _NO_LINKS:
                    raise
                with suppress(FileNotFoundError):
                    os.stat(name, dir_fd=at, follow_symlinks=False)
                    return False
                os.rename(staged.name, name, src_dir_fd=source, dst_dir_fd=at)
        return True

    def replace(self, staged: Staged, key: str) -> None:
        """Give a file its key, whoever has it."""
        folder, name = split(key)
        with (
            self._explained("overwrite", key),
            self._folder(folder, make=True) as at,
            self._folder(TEMPORARY) as source,
        ):
            os.rename(staged.name, name, src_dir_fd=source, dst_dir_fd=at)

    def sync_folder(self, folder: str) -> None:
        """Make the names in `folder` durable; "" is the root."""
        with self._explained("sync", folder), self._folder(folder) as at:
            _fsync_folder(at)

    def discard(self, staged: Staged) -> None:
        """Close and remove a temporary file. Never raises an `OSError`."""
        with suppress(OSError):
            os.close(staged.fd)
        with suppress(OSError), self._folder(TEMPORARY) as at:
            os.unlink(staged.name, dir_fd=at)

    def remove(self, key: str) -> None:
        folder, name = split(key)
        with self._explained("delete", key, expect=False), self._folder(folder) as at:
            os.unlink(name, dir_fd=at)

    @contextmanager
    def _folder(self, folder: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of `folder`, reached without following a link below the root."""
        at = self._open_root(make=make)
        try:
            for name in folder.split("/") if folder else ():
                inner = _open_folder(name, at, make=make)
                os.close(at)
                at = inner
            yield at
        finally:
            os.close(at)

    def _open_root(self, *, make: bool) -> int:
        try:
            return os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            if not make:
                raise
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_path(path.parent)
        return os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind, once per process.

        A living writer holds a lock on each of its temporary files; the age covers the moment
        between opening and locking.
        """
        if self._swept:
            return
        self._swept = True
        with suppress(OSError, Error), self._folder(TEMPORARY) as at:
            for name, status in self.scan(TEMPORARY):
                age_seconds = self._clock() - status.st_mtime
                if stat.S_ISREG(status.st_mode) and age_seconds > STALE_SECONDS:
                    _remove_unlocked(name, at)

    @contextmanager
    def _explained(self, doing: str, where: str, *, expect: bool = True) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not expect:
                raise
            raise explain(error, doing, self.root / where) from error


def explain(error: OSError, doing: str, where: Path) -> Error:
    """Our error for an `OSError`: what failed, where, why, and what to do."""
    what = f"cannot {doing} {where}: {os.strerror(error.errno or 0)}."
    if error.errno == errno.EROFS:
        return PermissionDenied(f"{what} The disk is mounted read-only.")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return PermissionDenied(f"{what} Ask the folder's owner, or use a folder of your own.")
    advice = _ADVICE.get(error.errno or 0, "Run `tensorrepo doctor`.")
    return StorageError(f"{what} {advice}", transient=error.errno in _TRANSIENT)


def split(key: str) -> tuple[str, str]:
    """Folder and name of a key."""
    folder, _, name = key.rpartition("/")
    return folder, name


def _open_folder(name: str, at: int, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=at)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=at)
    return os.open(name, _FOLDER, dir_fd=at)


def _write(fd: int, parts: Sequence[memoryview]) -> None:
    for batch in _batches(parts):
        left = batch
        while left:
            written = os.writev(fd, left)
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if written:
                left[0] = left[0][written:]


def _batches(parts: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """What to hand to one system call: at most so many parts and so many bytes."""
    batch: list[memoryview] = []
    size_bytes = 0
    for part in parts:
        for start in range(0, part.nbytes, _WRITE_BYTES):
            piece = part[start : start + _WRITE_BYTES]
            if len(batch) == _MAX_PARTS or size_bytes + piece.nbytes > _WRITE_BYTES:
                yield batch
                batch, size_bytes = [], 0
            batch.append(piece)
            size_bytes += piece.nbytes
    if batch:
        yield batch


def _fsync(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _fsync_folder(fd: int) -> None:
    try:
        _fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # SMB and some user-space file systems can't
            raise


def _sync_path(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _fsync_folder(fd)
    finally:
        os.close(fd)


def _remove_unlocked(name: str, at: int) -> None:
    with suppress(OSError):
        fd = os.open(name, _READ, dir_fd=at)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=at)
        finally:
            os.close(fd)
