"""Local storage backend: durable, create-only files on a disk.

Write temporary files, fsync them, link them to their names, fsync the folders: in this order, and
an acknowledged key is durable, a taken name is noticed, and a crash leaves only temporaries. Other
libraries check for the name and then write (two winners), or never fsync.

Every call starts at the root and opens one folder after the other without following links, so that
a link inside a foreign repository never leads out of it. Each method is one step whose order
matters: tests record and interrupt them here.

`link` is exclusive and `fsync` means it on local file systems. On network and user-space ones it
depends on the server, so they get one writer at a time unless the option `force` says otherwise.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tensorrepo.repo.backends.base import (
    PART_PREFIX,
    CommonBackend,
    Guarantee,
    StoredKey,
    Uploads,
    UploadTurns,
    byte_views,
    check_key,
    check_length,
    check_prefix,
)
from tensorrepo.repo.backends.mounts import mount_of
from tensorrepo.repo.backends.small_files import SmallFiles
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.threads import ThreadFlights, ordered_map

T = TypeVar("T")

TEMPORARY = "tmp"  # the folder of what has no name yet; no key begins with it
STALE_SECONDS = 3600.0
STALE_PART_SECONDS = 14 * 86400.0  # of a transfer, which somebody may take up again
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block us
_MAX_PARTS = 1024  # IOV_MAX
# Given more at once, the kernel takes memory for it in large pieces, which it has to look for:
# writes of 8 MiB reached between 0.3 and 2.3 GB/s here, writes of 256 KiB always more than 2.
# Each ends at a multiple of that in the file: only there has the kernel one piece for it, and many
# small ones are slower to write, and slower to map later.
_WRITE_BYTES = 256 << 10
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_ADVICE = {
    errno.ENOSPC: "No space is left on the disk: free some, then repeat.",
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
        reserves: bool = False,
    ) -> None:
        """Prepare; `reserves` says to reserve the room of large files before writing them."""
        self.root = root
        self._root_name = os.fspath(root)
        self._reserves = reserves
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

    def stage(self, parts: Sequence[memoryview]) -> StagedFile:
        """Write `parts` to a new temporary file."""
        self._sweep()
        with self._explained("write", TEMPORARY), self._folder(TEMPORARY, make=True) as at:
            staged = _new_temporary(at)
            try:
                size_bytes = sum(part.nbytes for part in parts)
                if self._reserves and size_bytes >= LARGE_BYTES:
                    os.posix_fallocate(staged.fd, 0, size_bytes)
                _write(staged.fd, parts)
            except BaseException:
                self.discard(staged)
                raise
        return staged

    def reopen(self, name: str) -> StagedFile:
        """A file of `TEMPORARY` that is whole."""
        with self._explained("open", TEMPORARY), self._folder(TEMPORARY) as at:
            return StagedFile(
                name, os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            )

    def start_sync(self, staged: StagedFile) -> None:
        """Let the kernel begin to write. Many files begun together share one journal commit."""
        if hasattr(os, "posix_fadvise"):
            with self._explained("write", TEMPORARY):
                os.posix_fadvise(staged.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, staged: StagedFile) -> None:
        # Sync the file before linking it. Without this a power cut can leave the final name on
        # an empty file. After a failure the kernel forgets what it could not write: a second
        # fsync would succeed, so nobody may try again with this file.
        with self._explained("write", TEMPORARY):
            _fsync(staged.fd)

    def link(self, staged: StagedFile, key: str, *, exclusive: bool = True) -> bool:
        """Give a synced file its key in place of its name; False when the key is taken.

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
            with suppress(OSError):  # else `_sweep` takes it some day
                os.unlink(staged.name, dir_fd=source)
        return True

    def replace(self, staged: StagedFile, key: str) -> None:
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

    def close(self, staged: StagedFile) -> None:
        """Let go of a file that has a key."""
        with suppress(OSError):
            os.close(staged.fd)

    def discard(self, staged: StagedFile) -> None:
        """Close and remove a temporary file. Never raises an `OSError`."""
        self.close(staged)
        with suppress(OSError), self._folder(TEMPORARY) as at:
            os.unlink(staged.name, dir_fd=at)

    def remove(self, key: str) -> None:
        folder, name = split(key)
        with self._explained("delete", key, expect=False), self._folder(folder) as at:
            os.unlink(name, dir_fd=at)

    def folder(self, folder: str) -> AbstractContextManager[int]:
        """A descriptor of a folder, reached without following a link."""
        return self._folder(folder)

    def _folder(self, folder: str, *, make: bool = False) -> _Folder:
        return _Folder(self, folder, make)

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
                stale = STALE_PART_SECONDS if name.startswith(PART_PREFIX) else STALE_SECONDS
                if stat.S_ISREG(status.st_mode) and age_seconds > stale:
                    _remove_unlocked(name, at)

    def _explained(self, doing: str, where: str, *, expect: bool = True) -> _Explained:
        return _Explained(self.root, doing, where, expect)


# Each step of each file enters both of these: as generators they took a tenth of a small commit.
class _Folder:
    """A descriptor of a folder, reached without following a link below the root."""

    __slots__ = ("_at", "_disk", "_folder", "_make")

    def __init__(self, disk: Disk, folder: str, make: bool) -> None:
        self._disk, self._folder, self._make = disk, folder, make

    def __enter__(self) -> int:
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

    def __exit__(self, *_: object) -> None:
        os.close(self._at)


class _Explained:
    """Makes an `OSError` one of our errors; `expect` is False where a file may be missing."""

    __slots__ = ("_doing", "_expect", "_root", "_where")

    def __init__(self, root: Path, doing: str, where: str, expect: bool) -> None:
        self._root, self._doing, self._where, self._expect = root, doing, where, expect

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, at: object) -> None:
        if not isinstance(error, OSError):
            return
        if self._expect or not isinstance(error, FileNotFoundError):
            raise explain(error, self._doing, self._root / self._where) from error


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
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
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


# A file this large is synced in the background while the next one is encoded. Smaller ones wait
# for each other: files that begin to be written together share a commit of the file system's
# journal, which made 64 of them 3 times faster to sync than one after the other.
LARGE_BYTES = 1 << 20
_BATCH_FILES = 64
_BATCH_BYTES = 1 << 20  # a transfer that is killed fetches what had not landed once more
_SYNC_THREADS = 2
# Each sync waits until the drive wrote out its cache: those that wait at once share that. A thread
# for each of a few costs more, where the processor is busy.
_SYNCS_AT_ONCE = 8
_SYNCS_EACH = 4
_UNSYNCED_BYTES = 256 << 20


class LocalBackend(CommonBackend):
    """A folder on this machine.

    Args:
        root: the folder; it comes into being with the first write.
        guarantee: what its file system promises; None looks at the mount.
        disk: the system calls; tests give one that records or fails.
    """

    def __init__(
        self, root: Path, *, guarantee: Guarantee | None = None, disk: Disk | None = None
    ) -> None:
        self.local_root = root.absolute().resolve()
        self.url = str(self.local_root)
        self.is_mount_known = guarantee is None  # else somebody vouches for it
        mount = mount_of(self.local_root)
        self.guarantee = guarantee or mount.guarantee
        self._disk = disk or Disk(self.local_root, reserves=mount.reserves)
        self._durable_folders: set[str] = {""}  # their own names are durable

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LocalBackend, guarantee=self.guarantee), (self.local_root,)

    def read(self, key: str) -> bytes:
        with self._opened(key) as fd, os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            return file.readall()

    def open_file(self, key: str) -> int:
        """See `OpensFiles`."""
        try:
            return self._disk.open(_check(key))
        except FileNotFoundError:
            raise self.no_key(key) from None

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        with self._opened(key) as fd:
            # Look before allocating: a lying index must not ask for all memory.
            found_bytes = max(0, min(stop, os.fstat(fd).st_size) - start)
            check_length(self._name(key), start, stop, found_bytes)
            data = os.pread(fd, found_bytes, start)
            while len(data) < found_bytes:  # one call gives at most 2 GiB
                data += os.pread(fd, found_bytes - len(data), start + len(data)) or _cut_short(key)
        return data

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        flat, filled = buffer.cast("B"), 0
        with self._opened(key) as fd:
            while filled < flat.nbytes:
                got = os.preadv(fd, [flat[filled:]], start + filled)
                filled += got
                if not got:
                    check_length(self._name(key), start, start + flat.nbytes, filled)

    def small_files(self) -> SmallFiles:
        """See `ReadsSmallFiles`."""
        return SmallFiles(self._disk.folder)

    def size(self, key: str) -> int | None:
        try:
            status = self._disk.stat(_check(key))
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                f"{self._name(key)} is a folder, a link or a device where a file is expected. "
                "Run `tensorrepo fsck`."
            )
        return status.st_size

    def uploads(self) -> LocalUploads:
        return LocalUploads(self, self._disk)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._overwrite(key, parts, durably=False)

    def overwrite_durably(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `OverwritesDurably`."""
        self._overwrite(key, parts, durably=True)
        self.sync_folders({split(key)[0]})

    def _overwrite(self, key: str, parts: Sequence[Buffer], *, durably: bool) -> None:
        staged = self._disk.stage(byte_views(parts))
        try:
            if durably:
                self._disk.sync(staged)
            self._disk.replace(staged, _check(key))
        finally:
            self._disk.discard(staged)

    def delete(self, key: str) -> None:
        try:
            self._disk.remove(_check(key))
        except FileNotFoundError:
            return

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return self._walk(check_prefix(prefix)[:-1])

    @property
    def part_folder(self) -> Path:
        """See `KeepsParts`."""
        return self.local_root / TEMPORARY

    def adopt_part(self, name: str, key: str) -> bool:
        """See `KeepsParts`."""
        staged = self._disk.reopen(name)
        try:
            self._disk.sync(staged)
            exclusive = self.guarantee is Guarantee.ATOMIC
            created = self._disk.link(staged, _check(key), exclusive=exclusive)
        finally:
            self._disk.discard(staged)
        self.sync_folders({split(key)[0]})
        return created

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make the names in `folders` durable, and those of the folders themselves."""
        wanted = set(folders)
        above: set[str] = set()
        for folder in wanted:
            inner = folder
            while inner not in self._durable_folders:
                above.add(inner)
                inner = split(inner)[0]
        _side_by_side(self._disk.sync_folder, sorted(wanted, reverse=True))
        # Somebody else may have made the folder a moment ago: who first uses it syncs its name.
        for folder in sorted({split(inner)[0] for inner in above} - wanted, reverse=True):
            self._disk.sync_folder(folder)
        self._durable_folders |= above

    def _walk(self, folder: str) -> Iterator[StoredKey]:
        try:
            found = self._disk.scan(folder)
        except FileNotFoundError:
            return
        # A folder sorts by its name with "/" behind it, so that whole keys ascend.
        names = sorted(
            (name + "/" * stat.S_ISDIR(status.st_mode), status) for name, status in found
        )
        for name, status in names:
            path = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                if path != f"{TEMPORARY}/":
                    yield from self._walk(path[:-1])
            elif stat.S_ISREG(status.st_mode):
                yield StoredKey(path, status.st_size, status.st_mtime)

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """A descriptor to read `key`; what reading it raises is explained."""
        fd = self.open_file(key)
        try:
            yield fd
        except OSError as error:
            raise explain(error, "read", self.local_root / key) from error
        finally:
            os.close(fd)

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"


class LocalUploads(Uploads):
    """Files on their way to durable names.

    Large files are synced and linked by threads as they come, small ones in batches; `finish`
    syncs the folders.
    """

    def __init__(self, backend: LocalBackend, disk: Disk) -> None:
        self._backend = backend
        self._disk = disk
        self._lock = threading.Lock()
        self._flights = ThreadFlights(_SYNC_THREADS, _UNSYNCED_BYTES, "tensorrepo-sync")
        self._small: list[tuple[str, StagedFile]] = []
        self._small_bytes = 0
        self._staged: dict[str, StagedFile] = {}
        self._created: dict[str, bool] = {}
        self._aborted = False
        self._turns = UploadTurns()

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._turns.create():
            self._create(key, parts)

    def _create(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._lock:
            if _check(key) in self._created:
                return
            self._created[key] = False
        try:
            if self._backend.size(key) is None:
                self._store(key, byte_views(parts))
        except BaseException:
            with self._lock:  # it may be tried again
                self._created.pop(key, None)
            raise

    def finish(self) -> dict[str, bool]:
        with self._turns.finish():
            return self._finish()

    def _finish(self) -> dict[str, bool]:
        with self._lock:
            batch = self._take_small()
        self._land(batch)
        self._flights.drain()
        self._backend.sync_folders({split(key)[0] for key in self._created})
        created, self._created = self._created, {}
        return created

    def abort(self) -> None:
        self._flights.stop()
        with self._lock:
            staged, self._staged = self._staged, {}
            self._small, self._created, self._aborted = [], {}, True
        for file in staged.values():
            self._disk.discard(file)

    def _store(self, key: str, views: list[memoryview]) -> None:
        size_bytes = sum(view.nbytes for view in views)
        batch = self._enter(key, self._disk.stage(views), size_bytes)
        if size_bytes >= LARGE_BYTES:
            self._flights.submit(lambda: self._land(batch), size_bytes)
        else:
            self._land(batch)

    def _enter(self, key: str, staged: StagedFile, size_bytes: int) -> list[tuple[str, StagedFile]]:
        """Take charge of a temporary file; the files that are to land now."""
        with self._lock:
            if not self._aborted:
                self._staged[key] = staged
                if size_bytes >= LARGE_BYTES:
                    return [(key, staged)]
                self._small.append((key, staged))
                self._small_bytes += size_bytes
                full = self._small_bytes >= _BATCH_BYTES
                if full or len(self._small) >= _BATCH_FILES:  # each holds a descriptor
                    return self._take_small()
                return []
        self._disk.discard(staged)
        raise StorageError(f"{self._backend.url}: this upload was aborted")

    def _take_small(self) -> list[tuple[str, StagedFile]]:
        """The small files that wait for each other; the caller holds the lock."""
        batch, self._small, self._small_bytes = self._small, [], 0
        return batch

    def _land(self, batch: list[tuple[str, StagedFile]]) -> None:
        """Sync files, then give them their keys."""
        if len(batch) > 1:
            for _, staged in batch:
                self._disk.start_sync(staged)
        _side_by_side(self._disk.sync, [staged for _, staged in batch])
        exclusive = self._backend.guarantee is Guarantee.ATOMIC
        for key, staged in batch:
            created = self._disk.link(staged, key, exclusive=exclusive)
            with self._lock:
                self._created[key] = created
                del self._staged[key]
            if created:
                self._disk.close(staged)
            else:
                self._disk.discard(staged)


def _side_by_side(sync: Callable[[T], None], items: Sequence[T]) -> None:
    """Sync all of them; raises what the first that failed did, when none is under way."""
    threads = min(len(items) // _SYNCS_EACH, _SYNCS_AT_ONCE)
    if threads < 2:
        for item in items:
            sync(item)
        return

    def sync_some(first: int) -> None:
        for item in items[first::threads]:
            sync(item)

    deque(ordered_map(range(threads), sync_some, threads=threads, name="sync"), maxlen=0)


def _cut_short(key: str) -> bytes:
    raise StorageError(f"{key} became shorter while it was read. Run `tensorrepo fsck`.")


def _check(key: str) -> str:
    check_key(key)
    if key.startswith(f"{TEMPORARY}/"):
        raise InvalidInputError(f"{key!r}: {TEMPORARY}/ holds files that have no key yet")
    return key
