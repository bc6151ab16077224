"""Local storage backend: keys are files below a folder of this machine.

`Disk` has the steps that make a file durable under its name; here they are put in order, a few
files side by side, for any number of threads.

`link` is exclusive and `fsync` means it on local file systems. On network and user-space ones it
depends on the server, so they get one writer at a time unless the option `force` says otherwise.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tensorrepo.repo.backends.base import (
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
from tensorrepo.repo.backends.disk import (
    LARGE_BYTES,
    TEMPORARY,
    Disk,
    StagedFile,
    explain,
    split,
)
from tensorrepo.repo.backends.mounts import mount_of
from tensorrepo.repo.backends.small_files import SmallFiles
from tensorrepo.repo.errors import (
    InvalidInputError,
    StorageError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.threads import StandingThreads, ThreadFlights

T = TypeVar("T")

# A file of `LARGE_BYTES` is synced in the background while the next one is encoded. Smaller ones
# wait for each other: files that begin to be written together share a commit of the file system's
# journal, which made 64 of them 3 times faster to sync than one after the other.
_BATCH_FILES = 64
_BATCH_BYTES = 1 << 20  # a transfer that is killed fetches what had not landed once more
_SYNC_THREADS = 2
# Each sync waits until the drive wrote out its cache: those that wait at once share that. A thread
# for each of a few costs more, where the processor is busy.
_SYNCS_AT_ONCE = 8
_SYNCS_EACH = 4
_SYNCING = StandingThreads(_SYNCS_AT_ONCE - 1, "disk-sync")
_UNSYNCED_BYTES = 256 << 20
# Smaller files are written when they land, with the folders still open.
_HELD_BYTES = 64 << 10


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
        return self.size_of(_check(key))

    def size_of(self, key: str) -> int | None:
        """As `size`, of a key that was checked."""
        try:
            status = self._disk.stat(key)
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
        staged = self._disk.stage(byte_views(parts), named=True)
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

    def remove_folders(self, prefix: str) -> None:
        """See `KeepsFolders`."""
        for folder, _, _ in os.walk(self.local_root / check_prefix(prefix), topdown=False):
            with suppress(OSError):  # something is in it
                os.rmdir(folder)

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

    def durable_folders(self, keys: Iterable[str]) -> set[str]:
        """Those folders of `keys` whose own names are known to be durable."""
        return self._durable_folders.intersection(split(key)[0] for key in keys)

    def _walk(self, folder: str) -> Iterator[StoredKey]:
        try:
            found = self._disk.scan(folder)
        except FileNotFoundError:
            return
        prefix = f"{folder}/" if folder else ""
        # A folder sorts by its name with "/" behind it, so that whole keys ascend.
        entries = [(f"{e[0]}/", *e[1:]) if stat.S_ISDIR(e[1]) else e for e in found]
        entries.sort()
        for name, mode, size_bytes, changed in entries:
            if stat.S_ISREG(mode):
                yield StoredKey(prefix + name, size_bytes, changed)
            elif stat.S_ISDIR(mode) and prefix + name != f"{TEMPORARY}/":
                yield from self._walk(prefix + name[:-1])

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
        self._small: list[tuple[str, StagedFile | list[memoryview]]] = []
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
            views = byte_views(parts)
            size_bytes = sum(view.nbytes for view in views)
            if size_bytes < _HELD_BYTES:
                self._land(self._wait(key, views, size_bytes))
            elif self._backend.size_of(key) is None:
                self._store(key, views, size_bytes)
        except BaseException:
            with self._lock:  # it may be tried again
                self._created.pop(key, None)
            raise

    def finish(self) -> dict[str, bool]:
        with self._turns.finish(), self._disk.keeping_folders():
            return self._finish()

    def _finish(self) -> dict[str, bool]:
        with self._lock:
            batch = self._take_small()
        synced = self._land(batch, is_last=True)
        self._flights.drain()
        self._backend.sync_folders({split(key)[0] for key in self._created} - synced)
        created, self._created = self._created, {}
        return created

    def abort(self) -> None:
        self._flights.stop()
        with self._lock:
            staged, self._staged = self._staged, {}
            self._small, self._created, self._aborted = [], {}, True
        for file in staged.values():
            self._disk.discard(file)

    def _store(self, key: str, views: list[memoryview], size_bytes: int) -> None:
        """Write a file now; it is synced, and gets its key, later."""
        staged = self._stage(key, views)
        if size_bytes >= LARGE_BYTES:
            self._flights.submit(partial(self._land_by_steps, [(key, staged)]), size_bytes)
        else:
            self._land(self._wait(key, staged, size_bytes))

    def _stage(self, key: str, views: list[memoryview]) -> StagedFile:
        """A temporary file that this upload is in charge of."""
        # Without hard links a file gets its key by a rename, which takes a name.
        named = self._backend.guarantee is not Guarantee.ATOMIC
        staged = self._disk.stage(views, named=named)
        with self._lock:
            if not self._aborted:
                self._staged[key] = staged
                return staged
        self._disk.discard(staged)
        raise self._was_aborted()

    def _wait(
        self, key: str, what: StagedFile | list[memoryview], size_bytes: int
    ) -> list[tuple[str, StagedFile | list[memoryview]]]:
        """Let a small file, or what will be one, wait for others; those that are to land now."""
        with self._lock:
            if self._aborted:
                raise self._was_aborted()
            self._small.append((key, what))
            self._small_bytes += size_bytes
            full = self._small_bytes >= _BATCH_BYTES
            # Each holds a descriptor then.
            return self._take_small() if full or len(self._small) >= _BATCH_FILES else []

    def _was_aborted(self) -> StorageError:
        return StorageError(f"{self._backend.url}: this upload was aborted")

    def _take_small(self) -> list[tuple[str, StagedFile | list[memoryview]]]:
        """The small files that wait for each other; the caller holds the lock."""
        batch, self._small, self._small_bytes = self._small, [], 0
        return batch

    def _land(
        self, batch: list[tuple[str, StagedFile | list[memoryview]]], *, is_last: bool = False
    ) -> set[str]:
        """Write what is not written, sync the files, then give them their keys.

        Returns the folders that are synced with that, some of those of the last batch.
        """
        together = {key: what for key, what in batch if isinstance(what, list)}
        synced = self._land_in_one_call(together, is_last=is_last) if together else None
        if synced is not None:
            batch = [(key, what) for key, what in batch if key not in together]
        if batch:
            with self._disk.keeping_folders():
                self._land_by_steps(batch)
        return synced or set()

    def _land_in_one_call(
        self, files: dict[str, list[memoryview]], *, is_last: bool
    ) -> set[str] | None:
        """As `_land`; None: nothing was done."""
        if self._backend.guarantee is not Guarantee.ATOMIC:
            return None
        folders: set[str] = set()
        with self._lock:
            if self._aborted:
                raise self._was_aborted()
            if is_last:  # large files may be on their way to the same folders
                others = {split(key)[0] for key in self._created if key not in files}
                folders = self._backend.durable_folders(files) - others
        created = self._disk.store_together(files, sorted(folders))
        if created is None:
            return None
        with self._lock:
            self._created |= created
        return folders

    def _land_by_steps(self, batch: list[tuple[str, StagedFile | list[memoryview]]]) -> None:
        files: list[tuple[str, StagedFile]] = []
        for key, what in batch:
            if isinstance(what, StagedFile):
                files.append((key, what))
            elif self._backend.size_of(key) is None:
                files.append((key, self._stage(key, what)))
        if len(files) > 1:
            for _, staged in files:
                self._disk.start_sync(staged)
        _side_by_side(self._disk.sync, [staged for _, staged in files])
        exclusive = self._backend.guarantee is Guarantee.ATOMIC
        for key, staged in files:
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
    _SYNCING.each(sync, items, threads=threads)


def _cut_short(key: str) -> bytes:
    raise StorageError(f"{key} became shorter while it was read. Run `tensorrepo fsck`.")


def _check(key: str) -> str:
    check_key(key)
    if key.startswith(f"{TEMPORARY}/"):
        raise InvalidInputError(f"{key!r}: {TEMPORARY}/ holds files that have no key yet")
    return key
