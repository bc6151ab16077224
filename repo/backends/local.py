"""How does a repository survive a power cut on a local disk?

Write temporary files, fsync them, link them to their names, fsync the folders: in this order, and
an acknowledged key is durable, a taken name is noticed, and a crash leaves only temporaries. Other
libraries check for the name and then write (two winners), or never fsync.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.repo.backends.base import Guarantee, StoredKey
from tensorrepo.repo.backends.disk import TEMPORARY, Disk, Staged, explain, split
from tensorrepo.repo.backends.flights import ThreadFlights
from tensorrepo.repo.backends.keys import byte_views, check_key, check_length, check_prefix
from tensorrepo.repo.backends.mounts import mount_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    from tensorrepo.repo.ids import Buffer

# A file this large is synced in the background while the next one is encoded. Smaller ones wait
# for each other: files that begin to be written together share a commit of the file system's
# journal, which made 64 of them 3 times faster to sync than one after the other.
LARGE_BYTES = 1 << 20
_BATCH_FILES = 64
_SYNC_THREADS = 2
_UNSYNCED_BYTES = 256 << 20


class LocalBackend:
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
        self.guarantee = guarantee or mount_of(self.local_root).guarantee
        self._disk = disk or Disk(self.local_root)
        self._durable_folders: set[str] = {""}  # their own names are durable

    def __repr__(self) -> str:
        return f"LocalBackend({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.local_root, self.guarantee)

    def read(self, key: str) -> bytes:
        with os.fdopen(self._open(key), "rb", buffering=0) as file:
            try:
                return file.readall()
            except OSError as error:
                raise explain(error, "read", self.local_root / key) from error

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        fd = self._open(key)
        try:
            # Look before allocating: a lying index must not ask for all memory.
            found_bytes = max(0, min(stop, os.fstat(fd).st_size) - start)
            check_length(self._name(key), start, stop, found_bytes)
            data = os.pread(fd, found_bytes, start)
            while len(data) < found_bytes:  # one call gives at most 2 GiB
                data += os.pread(fd, found_bytes - len(data), start + len(data)) or _cut_short(key)
        except OSError as error:
            raise explain(error, "read", self.local_root / key) from error
        finally:
            os.close(fd)
        return data

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        fd = self._open(key)
        try:
            self._fill(fd, key, start, buffer.cast("B"))
        except OSError as error:
            raise explain(error, "read", self.local_root / key) from error
        finally:
            os.close(fd)

    def size(self, key: str) -> int | None:
        try:
            status = self._disk.stat(_check(key))
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                f"{self._name(key)} is a folder, a link or a device where a file is expected. "
                "Run `tensorrepo doctor`."
            )
        return status.st_size

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        with self.uploads() as uploads:
            uploads.create(key, parts)
            return uploads.finish()[key]

    def uploads(self) -> LocalUploads:
        return LocalUploads(self, self._disk)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        staged = self._disk.stage(byte_views(parts))
        try:
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

    def close(self) -> None:
        """Nothing stays open between calls."""

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make the names in `folders` durable, and those of the folders themselves."""
        wanted = set(folders)
        above: set[str] = set()
        for folder in wanted:
            inner = folder
            while inner not in self._durable_folders:
                above.add(inner)
                inner = split(inner)[0]
        # Somebody else may have made the folder a moment ago: who first uses it syncs its name.
        for folder in sorted(wanted | {split(inner)[0] for inner in above}, reverse=True):
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

    def _open(self, key: str) -> int:
        try:
            return self._disk.open(_check(key))
        except FileNotFoundError:
            raise NotFoundError(f"{self.url} has no key {key!r}") from None

    def _fill(self, fd: int, key: str, start: int, buffer: memoryview) -> None:
        filled = 0
        while filled < buffer.nbytes:
            got = os.preadv(fd, [buffer[filled:]], start + filled)
            filled += got
            if not got:
                check_length(self._name(key), start, start + buffer.nbytes, filled)

    def _name(self, key: str) -> str:
        return f"{self.url}/{key}"


class LocalUploads:
    """Files on their way to durable names.

    Large files are synced and linked by threads as they come, small ones in batches; `finish`
    syncs the folders.
    """

    def __init__(self, backend: LocalBackend, disk: Disk) -> None:
        self._backend = backend
        self._disk = disk
        self._lock = threading.Lock()
        self._flights = ThreadFlights(_SYNC_THREADS, _UNSYNCED_BYTES, "tensorrepo-sync")
        self._small: list[tuple[str, Staged]] = []
        self._staged: dict[str, Staged] = {}
        self._created: dict[str, bool] = {}
        self._aborted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
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
        with self._lock:
            batch, self._small = self._small, []
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
        batch = self._enter(key, self._disk.stage(views), large=size_bytes >= LARGE_BYTES)
        if size_bytes >= LARGE_BYTES:
            self._flights.submit(lambda: self._land(batch), size_bytes)
        else:
            self._land(batch)

    def _enter(self, key: str, staged: Staged, *, large: bool) -> list[tuple[str, Staged]]:
        """Take charge of a temporary file; the files that are to land now."""
        with self._lock:
            if not self._aborted:
                self._staged[key] = staged
                if large:
                    return [(key, staged)]
                self._small.append((key, staged))
                if len(self._small) < _BATCH_FILES:  # each holds a descriptor
                    return []
                batch, self._small = self._small, []
                return batch
        self._disk.discard(staged)
        raise StorageError(f"{self._backend.url}: this upload was aborted")

    def _land(self, batch: list[tuple[str, Staged]]) -> None:
        """Sync files, then give them their keys."""
        if len(batch) > 1:
            for _, staged in batch:
                self._disk.start_sync(staged)
        for _, staged in batch:
            self._disk.sync(staged)
        exclusive = self._backend.guarantee is Guarantee.ATOMIC
        for key, staged in batch:
            created = self._disk.link(staged, key, exclusive=exclusive)
            with self._lock:
                self._created[key] = created
                del self._staged[key]
            self._disk.discard(staged)


def _cut_short(key: str) -> bytes:
    raise StorageError(f"{key} became shorter while it was read. Run `tensorrepo doctor`.")


def _check(key: str) -> str:
    check_key(key)
    if key.startswith(f"{TEMPORARY}/"):
        raise InvalidInputError(f"{key!r}: {TEMPORARY}/ holds files that have no key yet")
    return key


def _reopen(root: Path, guarantee: Guarantee) -> LocalBackend:
    return LocalBackend(root, guarantee=guarantee)
