"""Steps of reading and writing on a local disk: durable, create-only, below one root.

Write temporary files, fsync them, link them to their names, fsync the folders: in this order, and
an acknowledged key is durable, a taken name is noticed, and a crash leaves only temporaries. Other
libraries check for the name and then write (two winners), or never fsync. Where Linux has files
without a name (O_TMPFILE), temporary ones are such: they vanish with their writer.

Every call starts at the root and opens one folder after the other without following links, so that
a link inside a foreign repository never leads out of it. Each method is one step whose order
matters: tests record and interrupt them here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tensorrepo.repo.backends.base import (
    PART_PREFIX,
)
from tensorrepo.repo.backends.small_files import FolderEntry, list_folder
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    Error,
    PermissionDenied,
    StorageError,
)

try:
    from tensorrepo.repo.backends import _storing
except ImportError:  # no compiler when this was installed, or built for another machine
    _storing = None  # type: ignore[assignment]

TEMPORARY = "tmp"  # the folder of what has no name yet; no key begins with it
STALE_SECONDS = 3600.0
STALE_PART_SECONDS = 14 * 86400.0  # of a transfer, which somebody may take up again
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block us
_HAS_ADVICE = hasattr(os, "posix_fadvise")
_UNNAMED = getattr(os, "O_TMPFILE", None)
# What a kernel, a file system, a sandbox or a machine without /proc says that cannot do it.
_NO_UNNAMED = frozenset(
    {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EXDEV}
    | {errno.EPERM, errno.EACCES, errno.ELOOP}
)
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone stops at the drive's cache
LARGE_BYTES = 1 << 20  # their room is reserved, and each is synced by itself
_MAX_PARTS = 1024  # IOV_MAX
# Given more at once, the kernel takes memory for it in large pieces, which it has to look for:
# writes of 8 MiB reached between 0.3 and 2.3 GB/s here, writes of 256 KiB always more than 2.
# Each ends at a multiple of that in the file: only there has the kernel one piece for it, and many
# small ones are slower to write, and slower to map later.
_WRITE_BYTES = 256 << 10
STAGE, SYNC, LINK, SYNC_FOLDER = 1, 2, 3, 4  # verbs of _storing.c
_MOST_KEPT = 48  # folders: with the files of a batch some 110 descriptors; macOS allows 256
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_ADVICE = {
    errno.ENOSPC: (
        "No space is left on the disk: free some, then repeat. What failed writes left there goes "
        "by `tensorrepo gc --grace 0s`, while nobody else writes."
    ),
    errno.EDQUOT: "The disk quota is used up: free some space, then repeat.",
    errno.ENOENT: "It vanished meanwhile: does somebody delete files by hand?",
    errno.EIO: "The disk reports a defect. Save a copy now, then run `tensorrepo fsck`.",
    errno.EMFILE: "Too many files are open: raise `ulimit -n`.",
    errno.ENFILE: "Too many files are open on this machine.",
    errno.ENOTDIR: "A file or a link stands where a folder must be; links are not followed.",
    errno.ELOOP: "It is a link, and links inside a repository are not followed.",
    errno.EISDIR: "A folder, a pipe or a device stands where a file must be.",
    errno.ESTALE: "The network file system lost track of the file.",
}
_TRANSIENT = frozenset({errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EAGAIN, errno.EINTR})


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A written file without a key: its name below `TEMPORARY`, if any, and its open descriptor."""

    name: str | None
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
        reserves: bool = False,
        unnamed: bool = True,
    ) -> None:
        """Prepare.

        Args:
            root: the folder below which all is.
            clock: seconds since 1970.
            link: `os.link`.
            reserves: whether to reserve the room of large files before writing them.
            unnamed: whether to make files without a name where that is possible.
        """
        self.root = root
        self._root_name = os.fspath(root)
        self._reserves = reserves
        self._clock = clock
        self._link = link
        self._swept = False
        self._makes_unnamed = None if unnamed and _UNNAMED is not None else False
        self._keeping = _Keeping()

    def open(self, key: str) -> int:
        """A descriptor to read `key`; the caller closes it."""
        folder, name = split(key)
        with self._step("read", key, folder, expect=False) as at:
            fd = os.open(name, _READ, dir_fd=at)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))

    def stat(self, key: str) -> os.stat_result:
        folder, name = split(key)
        with self._step("look up", key, folder, expect=False) as at:
            return os.stat(name, dir_fd=at, follow_symlinks=False)

    def scan(self, folder: str) -> list[FolderEntry]:
        """What is in `folder`, in no order."""
        with self._step("list", folder, folder, expect=False) as at:
            return list_folder(at)

    def stage(self, parts: Sequence[memoryview], *, named: bool = False) -> StagedFile:
        """Write `parts` to a new temporary file; one that is to be renamed must be `named`."""
        self._sweep()
        with self._step("write", TEMPORARY, TEMPORARY, make=True) as at:
            if named or not self._can_make_unnamed(at):
                staged = _new_temporary(at)
            else:
                staged = StagedFile(None, _open_unnamed(at))
            try:
                size_bytes = sum(part.nbytes for part in parts)
                if self._reserves and size_bytes >= LARGE_BYTES:
                    os.posix_fallocate(staged.fd, 0, size_bytes)
                self._write(staged.fd, parts, size_bytes)
            except BaseException:
                self.discard(staged)
                raise
        return staged

    def _write(self, fd: int, parts: Sequence[memoryview], size_bytes: int) -> None:
        if self._calls_c and size_bytes > _WRITE_BYTES:
            _storing.write(fd, list(parts), _WRITE_BYTES)
        else:
            _write(fd, parts)

    def reopen(self, name: str) -> StagedFile:
        """A file of `TEMPORARY` that is whole."""
        with self._step("open", TEMPORARY, TEMPORARY) as at:
            return StagedFile(
                name, os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            )

    def start_sync(self, staged: StagedFile) -> None:
        """Let the kernel begin to write. Many files begun together share one journal commit."""
        if _HAS_ADVICE:
            try:
                os.posix_fadvise(staged.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise explain(error, "write", self.root / TEMPORARY) from error

    def sync(self, staged: StagedFile) -> None:
        # Sync the file before linking it. Without this a power cut can leave the final name on
        # an empty file. After a failure the kernel forgets what it could not write: a second
        # fsync would succeed, so nobody may try again with this file.
        try:
            _fsync(staged.fd)
        except OSError as error:
            raise explain(error, "write", self.root / TEMPORARY) from error

    def link(self, staged: StagedFile, key: str, *, exclusive: bool = True) -> bool:
        """Give a synced file its key in place of its name; False when the key is taken.

        Args:
            staged: what to name.
            key: its name.
            exclusive: False allows a check and a rename of a named file, where the file system
                has no links.
        """
        if staged.name is None:
            return self._link_unnamed(staged.fd, key)
        folder, name = split(key)
        with (
            self._step("create", key, folder, make=True) as at,
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
            with suppress(OSError):  # else `_sweep` takes it some day
                os.unlink(staged.name, dir_fd=source)
        return True

    def _link_unnamed(self, fd: int, key: str) -> bool:
        folder, name = split(key)
        with self._step("create", key, folder, make=True) as at:
            try:
                self._link(_path_of(fd), name, dst_dir_fd=at, follow_symlinks=True)
            except FileExistsError:
                return False
        return True

    def replace(self, staged: StagedFile, key: str) -> None:
        """Give a named file its key, whoever has it."""
        folder, name = split(key)
        assert staged.name is not None, "only what has a name can be renamed"
        with (
            self._step("overwrite", key, folder, make=True) as at,
            self._folder(TEMPORARY) as source,
        ):
            os.rename(staged.name, name, src_dir_fd=source, dst_dir_fd=at)

    def sync_folder(self, folder: str) -> None:
        """Make the names in `folder` durable; "" is the root."""
        with self._step("sync", folder, folder) as at:
            _fsync_folder(at)

    def store_together(
        self, files: Mapping[str, Sequence[memoryview]], folders: Sequence[str]
    ) -> dict[str, bool] | None:
        """Go the steps from `stage` of small files to `sync_folder` in one call.

        Around each by itself a thread waits for the interpreter, which others have.

        Args:
            files: their bytes by their keys.
            folders: what to sync at the end.

        Returns:
            Whether each got its key. None: nothing was done, and the steps are to be gone one by
            one, which makes missing folders or tells what is wrong.
        """
        return self._store_together(files, folders) if self._stores_together else None

    @property
    def _stores_together(self) -> bool:
        return self._calls_c and self._makes_unnamed is True

    @property
    def _calls_c(self) -> bool:
        return _storing is not None and self._link is os.link

    def _store_together(
        self,
        files: Mapping[str, Sequence[memoryview]],
        folders: Sequence[str],
        *noted: bytearray,
    ) -> dict[str, bool] | None:
        places = {folder: place for place, folder in enumerate(folders)}
        items = []
        for key, parts in files.items():
            folder, name = split(key)
            items.append((places.setdefault(folder, len(places)), name, b"".join(parts)))
        root, opened = os.fsencode(self._root_name), tuple(places)
        created, verb, place, error = _storing.store(
            root, TEMPORARY, opened, len(folders), tuple(items), *noted
        )
        if not error:
            return dict(zip(files, map(bool, created), strict=True))
        if verb < SYNC:
            return None
        failed = OSError(error, os.strerror(error))
        if verb == SYNC:
            raise explain(failed, "write", self.root / TEMPORARY) from failed
        if verb == LINK:
            raise explain(failed, "create", self.root / tuple(files)[place]) from failed
        raise explain(failed, "sync", self.root / opened[place]) from failed

    def close(self, staged: StagedFile) -> None:
        """Let go of a file that has a key."""
        with suppress(OSError):
            os.close(staged.fd)

    def discard(self, staged: StagedFile) -> None:
        """Close and remove a temporary file. Never raises an `OSError`."""
        self.close(staged)
        if staged.name is None:
            return
        with suppress(OSError), self._folder(TEMPORARY) as at:
            os.unlink(staged.name, dir_fd=at)

    def remove(self, key: str) -> None:
        folder, name = split(key)
        with self._step("delete", key, folder, expect=False) as at:
            os.unlink(name, dir_fd=at)

    def folder(self, folder: str) -> AbstractContextManager[int]:
        """A descriptor of a folder, reached without following a link."""
        return self._folder(folder)

    @contextmanager
    def keeping_folders(self) -> Iterator[None]:
        """Leave folders that this thread comes by open until the block ends, up to a number.

        Whoever moves the root away meanwhile moves what is stored in the block.
        """
        if self._keeping.folders is not None:  # an outer block keeps them
            yield
            return
        kept = self._keeping.folders = {}
        try:
            yield
        finally:
            self._keeping.folders = None
            while kept:
                os.close(kept.popitem()[1])

    def _folder(self, folder: str) -> _Folder:
        return _Folder(self, folder)

    def _step(
        self, doing: str, where: str, folder: str, *, make: bool = False, expect: bool = True
    ) -> _Folder:
        """As `_folder`, for a block whose errors become ours: `doing` something to `where`.

        `expect` is False where a file may be missing.
        """
        return _Folder(self, folder, make, doing, where, expect)

    def kept_folder(self, folder: str, *, make: bool) -> int | None:
        """A descriptor of a folder that stays open; None where none is kept, or too many are."""
        kept = self._keeping.folders
        if kept is None or (at := kept.get(folder)) is not None:
            return None if kept is None else at
        if len(kept) >= _MOST_KEPT:
            return None
        if not folder:
            kept[folder] = self.open_root(make=make)
            return kept[folder]
        outer, name = split(folder)
        above = self.kept_folder(outer, make=make)
        if above is None:
            return None
        kept[folder] = _open_folder(name, above, make=make)
        return kept[folder]

    def open_root(self, *, make: bool) -> int:
        """A descriptor of the root; the caller closes it."""
        try:
            return os.open(self._root_name, _FOLDER & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            if not make:
                raise
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_path(path.parent)
        return os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)

    def _can_make_unnamed(self, at: int) -> bool:
        """Whether a file can be made without a name, and named later; tried once, in `at`.

        All of it is tried: what can make such files may still be unable to link them.
        """
        if self._makes_unnamed is None:
            try:
                self._try_unnamed(at)
                self._makes_unnamed = True
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise
                self._makes_unnamed = False
        return self._makes_unnamed

    def _try_unnamed(self, at: int) -> None:
        fd = _open_unnamed(at)
        try:
            name = _temporary_name()
            self._link(_path_of(fd), name, dst_dir_fd=at, follow_symlinks=True)
        finally:
            os.close(fd)
        with suppress(OSError):  # else `_sweep` takes it some day
            os.unlink(name, dir_fd=at)

    def _sweep(self) -> None:
        """Remove what writers that were killed left behind, once per process.

        A living writer holds a lock on each of its temporary files; the age covers the moment
        between opening and locking.
        """
        if self._swept:
            return
        self._swept = True
        with suppress(OSError, Error), self._folder(TEMPORARY) as at:
            for name, mode, _, changed in self.scan(TEMPORARY):
                age_seconds = self._clock() - changed
                stale = STALE_PART_SECONDS if name.startswith(PART_PREFIX) else STALE_SECONDS
                if stat.S_ISREG(mode) and age_seconds > stale:
                    _remove_unlocked(name, at)


# Each step of each file enters one of these: generators took a tenth of a small commit.
class _Folder:
    """A descriptor of a folder, reached without following a link below the root; see `_step`."""

    __slots__ = ("_at", "_disk", "_doing", "_expect", "_folder", "_is_kept", "_make", "_where")

    def __init__(
        self,
        disk: Disk,
        folder: str,
        make: bool = False,
        doing: str = "",
        where: str = "",
        expect: bool = True,
    ) -> None:
        self._disk, self._folder, self._make = disk, folder, make
        self._doing, self._where, self._expect = doing, where, expect

    def __enter__(self) -> int:
        try:
            kept = self._disk.kept_folder(self._folder, make=self._make)
            self._is_kept = kept is not None
            return self._opened() if kept is None else kept
        except OSError as error:
            self._explain(error)
            raise

    def __exit__(self, _: object, error: BaseException | None, at: object) -> None:
        if not self._is_kept:
            os.close(self._at)
        if isinstance(error, OSError):
            self._explain(error)

    def _opened(self) -> int:
        self._at = self._disk.open_root(make=self._make)
        try:
            for name in self._folder.split("/") if self._folder else ():
                outer, self._at = self._at, _open_folder(name, self._at, make=self._make)
                # Only what `_at` no longer names: Ctrl-C may come between any two lines, and a
                # descriptor that is closed twice may be another thread's by then.
                os.close(outer)
        except BaseException:
            os.close(self._at)
            raise
        return self._at

    def _explain(self, error: OSError) -> None:
        """Raise one of our errors instead, where somebody told what was being done."""
        if self._doing and (self._expect or not isinstance(error, FileNotFoundError)):
            raise explain(error, self._doing, self._disk.root / self._where) from error


class _Keeping(threading.local):
    """The folders that a thread keeps open, by their names; None: it keeps none."""

    folders: dict[str, int] | None = None


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


def _new_temporary(at: int) -> StagedFile:
    """A new file that is locked, so that nobody sweeps it; see `Disk._sweep`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        name = _temporary_name()
        staged = StagedFile(name, os.open(name, flags, 0o666, dir_fd=at))
        sweeping = False
        try:
            fcntl.flock(staged.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sweeping = True
        except OSError:  # some network file systems have no locks
            pass
        if os.fstat(staged.fd).st_nlink and not sweeping:
            return staged
        os.close(staged.fd)  # swept before it was locked, by somebody whose clock is ahead


def _temporary_name() -> str:
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def _open_unnamed(at: int) -> int:
    """A new file without a name, on the file system of a folder; it is gone when it is closed."""
    assert _UNNAMED is not None, "asked before"
    return os.open(".", _UNNAMED | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=at)


def _path_of(fd: int) -> str:
    """The link to an open file: to follow it is the only way to name a file without privileges."""
    return f"/proc/self/fd/{fd}"


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
    """What to hand to one system call: at most so many parts, up to the next multiple of so many
    bytes in the file.
    """
    batch: list[memoryview] = []
    room_bytes = _WRITE_BYTES
    for part in parts:
        start = 0
        while start < part.nbytes:
            piece = part[start : start + room_bytes]
            batch.append(piece)
            start += piece.nbytes
            room_bytes -= piece.nbytes
            if not room_bytes or len(batch) == _MAX_PARTS:
                yield batch
                batch, room_bytes = [], room_bytes or _WRITE_BYTES
    if batch:
        yield batch


def _fsync(fd: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
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
