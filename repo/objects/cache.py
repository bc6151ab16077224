"""Caches: in memory, and of verified bytes on disk, least recently used or a fixed share of pages.

On disk it is a folder of immutable byte strings by name. Each carries a checksum of its name and
bytes; what does not verify is dropped, so a killed writer or a full disk costs a download and
nothing else. There are no locks: files appear by rename and go by unlink, and several processes
share one folder. Each file names the repository that it was first kept for, so that people can be
told what takes the room; who else reads the same bytes is not known.
Values are read, never mapped: a mapped file that is cut short kills the process that touches it.

A folder is used only if a cache made it, if it is empty, or if it holds nothing but files of
caches, since users may name folders that hold their data. A file that backup programs know, too,
marks it.

An epoch reads every page once, so no policy can hit more often than the share of the pages that the
cache holds, and the least recently used go just before they would be read again. So a fixed part is
kept: every page has a number in [0, 1) made of its name, and those below a threshold stay.
Processes that stream the same data choose the same pages without agreeing; those that stream
several datasets through one folder meet at a common threshold, as the pages with the highest
numbers go first when there is too much. Pages that were not used for days go before them.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from math import inf
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Generic, NamedTuple, Self, TypeAlias, TypeVar

import xxhash
from xxhash import xxh3_64_intdigest

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer

_V = TypeVar("_V")
# Whether a cache made this: a name of a folder in it, and of a file in that folder.
IsOwn: TypeAlias = "Callable[[str, str], bool]"

MARKER = "CACHEDIR.TAG"  # of the Cache Directory Tagging Specification
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_OWNER = b"# A cache of tensorrepo"
_TEXT = _SIGNATURE + _OWNER + b", which deletes files in it. It can be deleted as a whole.\n"
_PARTIAL = re.compile(r"\.\d+-[0-9a-f]{16}")
_HEX_FOLDER = re.compile(r"[0-9a-f]{2}")


class LimitedCache(Generic[_V]):
    """The values used last, within a limit in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._items: OrderedDict[object, tuple[_V, int]] = OrderedDict()
        self._loading: dict[tuple[int, object], Future[_V]] = {}
        self._lock = Lock()

    def get(self, key: object) -> _V | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: object, value: _V, size: int) -> None:
        with self._lock:
            if key in self._items or size > self._limit_bytes:
                return
            self._items[key] = value, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                self._bytes -= self._items.popitem(last=False)[1][1]

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def drop(self, key: object) -> None:
        with self._lock:
            self._bytes -= self._items.pop(key, (None, 0))[1]

    def get_or_load(self, key: object, load: Callable[[], tuple[_V, int]]) -> _V:
        """The value of `key`; `load` gives it and its bytes, once for all who ask meanwhile."""
        found = self.get(key)
        if found is not None:
            return found
        # A forked process has the keys of threads that it does not have: nobody answers there.
        loading = (os.getpid(), key)
        with self._lock:
            other = self._loading.get(loading)
            if other is None:
                self._loading[loading] = mine = Future[_V]()
        if other is not None:
            return other.result()
        try:
            value, size = load()
            self.put(key, value, size)
            mine.set_result(value)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loading[loading]
        return value


def partial_name() -> str:
    """What a file is called while it is written."""
    return f".{os.getpid()}-{secrets.token_hex(8)}"


def is_partial(name: str) -> bool:
    """Whether `partial_name` made it."""
    return _PARTIAL.fullmatch(name) is not None


def claim(root: Path, is_own: IsOwn) -> bool:
    """Make `root` a cache that only this user can write into: its checksums stop no attacker.

    Returns:
        Whether it may be used. What `refusal` tells of is left as it is.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if refusal(root, is_own) is not None:
            return False
        _mark(root)
        if root.stat().st_mode & 0o077:
            root.chmod(0o700)
    except OSError:
        return False
    return True


def refusal(root: Path, is_own: IsOwn) -> str | None:
    """Why `root` cannot be a cache; None where it can, or is not there yet."""
    try:
        status = root.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        if status.st_uid != os.geteuid():
            return f"it belongs to user {status.st_uid}, not to user {os.geteuid()} who reads"
        if _is_marked(root):
            return None
        foreign = next(_foreign(root, is_own), None)
        # Looked at again: another process may have begun to use the folder meanwhile.
        if foreign is None or _is_marked(root):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"it holds what no cache wrote ({foreign!r:.100}), and a cache deletes files"


def _foreign(root: Path, is_own: IsOwn) -> Iterator[str]:
    """Whatever else there is than in caches that were made before they were marked."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name == MARKER or is_partial(entry.name):  # a damaged one of ours
                continue
            if not _HEX_FOLDER.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                yield entry.name
                continue
            names = os.listdir(entry.path)
            yield from (f"{entry.name}/{name}" for name in names if not is_own(entry.name, name))


def _is_marked(root: Path) -> bool:
    try:
        with open(root / MARKER, "rb") as file:
            return file.read(len(_TEXT)).startswith(_SIGNATURE + _OWNER)
    except FileNotFoundError:
        return False


def _mark(root: Path) -> None:
    if _is_marked(root):
        return
    partial = root / partial_name()
    with suppress(OSError):  # a disk that is full or can only be read: it is a cache all the same
        partial.write_bytes(_TEXT)
        partial.rename(root / MARKER)


# Layout: value | origin | bytes of origin | xxh3_64 of the name and all before | magic. It is a
# cache: another layout is another magic, and old files are misses.
TRAILER = Struct("<HQ8s")
assert TRAILER.size == 18
_PROOF = Struct("<Q8s")
_ORIGIN_BYTES = Struct("<H")
MAGIC = b"TRCACHE2"
_MOST_ORIGIN_BYTES = 1024  # of a URL: what is longer is cut, it is only shown
_MOST_END_BYTES = _MOST_ORIGIN_BYTES + TRAILER.size

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_STALE_SECONDS = 3600.0
_TOUCH_SECONDS = 600.0  # a use is noted this often: every hit would cost a write
_LOOKS = 64  # the folder is measured about once for each 1/64 of the limit that is written
_LEAST_BYTES = 4096  # that a small file takes of most disks
_KEPT = 0.9  # eviction goes down to this share, so that it is not due again at once


class Stored(NamedTuple):
    """One file of a cache: when it was used last, its bytes on disk, and where it is."""

    used: float
    bytes: int
    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a cache holds of one repository.

    Attributes:
        origin: URL of the repository that it was first kept for; "" where nobody said.
        files: number of values.
        bytes: bytes that they take on disk.
        oldest: when the one that was not used for longest was used, in seconds since the epoch.
        newest: when one was used last.
    """

    origin: str
    files: int
    bytes: int
    oldest: float
    newest: float


class Trimmed(NamedTuple):
    """What was deleted to make room."""

    files: int
    bytes: int


class DiskCache:
    """Immutable named byte strings below `root`, the least recently used of which go first.

    Args:
        root: a folder of its own; it is made, for this user alone. One that belongs to somebody
            else, holds other files, or cannot be made, is not used: everything is a miss.
        limit_bytes: how much of the disk it may take.
        origin: URL of the repository whose bytes are put here, for people.
        clock: seconds since the epoch.
        chance: numbers in [0, 1).
    """

    _kept = _KEPT
    _names = _NAME

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        *,
        origin: str = "",
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self.origin = origin
        self._clock = clock
        self._chance = chance
        self._usable: bool | None = None

    def __repr__(self) -> str:
        return f"DiskCache({str(self.root)!r}, {self.limit_bytes})"

    def refusal(self) -> str | None:
        """Why the folder is not used, as far as that can be told without making it."""
        return refusal(self.root, self._is_own)

    def of(self, origin: str) -> Self:
        """The same folder, for what is read of the repository at the URL `origin`."""
        same = copy(self)
        same.origin = origin
        return same

    def holds(self, name: str) -> bool:
        """Whether something lies under `name`; it is proved when it is read."""
        return self._is_usable() and os.path.exists(self._path(name))

    def get(self, name: str) -> memoryview | None:
        """The value under `name`, its checksum verified, or None."""
        path = self._path(name)
        if not self._is_usable():
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            value = self._verified(fd, name)
        except OSError:  # the disk does not give it now: that says nothing of the value
            return None
        finally:
            os.close(fd)
        if value is None:
            self._drop(path)
        return value

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Remember a value. Fails silently: no space and no permission are misses later."""
        path = self._path(name)
        views = [memoryview(part).cast("B") for part in parts]
        origin = self.origin.encode("utf-8", "replace")[:_MOST_ORIGIN_BYTES]
        size_bytes = sum(view.nbytes for view in views) + len(origin) + TRAILER.size
        if size_bytes > self.limit_bytes or not self._is_usable():
            return
        views += [memoryview(origin), memoryview(_ORIGIN_BYTES.pack(len(origin)))]
        proof = _PROOF.pack(_checksum(name, views), MAGIC)
        with suppress(OSError):
            self._write(path, [*views, memoryview(proof)])
        # Each written byte has the same chance to cause a look at the folder, in whichever of the
        # processes that share it; a count per process would never come due in short ones.
        if self._chance() < max(size_bytes, _LEAST_BYTES) * _LOOKS / self.limit_bytes:
            self.evict()

    def evict(self) -> list[Stored]:
        """Remove what killed writers left, and while there is too much what is worth least.

        Returns:
            What had to go to make room.
        """
        found = list(self._scan())
        total_bytes = sum(file.bytes for file in found)
        goal_bytes = self.limit_bytes * self._kept if total_bytes > self.limit_bytes else inf
        return self._make_room(found, goal_bytes)

    def trim(self, to_bytes: int, origin: str | None = None) -> Trimmed:
        """Delete what is worth least until no more than `to_bytes` are left.

        With an `origin`, only what was first kept for this repository, until so much of that is.
        """
        found = [file for file in self._scan() if origin is None or self._origin_of(file) == origin]
        goal_bytes = to_bytes if sum(file.bytes for file in found) > to_bytes else inf
        gone = self._make_room(found, goal_bytes)
        return Trimmed(len(gone), sum(file.bytes for file in gone))

    def uses(self) -> list[CacheUse]:
        """What it holds, by repository, that with the most bytes first."""
        found: dict[str, list[Stored]] = {}
        for file in self._scan():
            if not file.name.startswith("."):
                found.setdefault(self._origin_of(file), []).append(file)
        uses = [
            CacheUse(
                origin,
                len(files),
                sum(file.bytes for file in files),
                min(file.used for file in files),
                max(file.used for file in files),
            )
            for origin, files in found.items()
        ]
        return sorted(uses, key=lambda use: (-use.bytes, use.origin))

    def _make_room(self, found: Sequence[Stored], goal_bytes: float) -> list[Stored]:
        now = self._clock()
        total_bytes = sum(file.bytes for file in found)
        gone = []
        for file in sorted(found, key=lambda file: self._worth(file, now)):
            if file.name.startswith(".") and now - file.used > _STALE_SECONDS:
                self._drop(file.path)
                total_bytes -= file.bytes
            elif total_bytes > goal_bytes:
                self._drop(file.path)
                total_bytes -= file.bytes
                gone.append(file)
        return gone

    def drop_objects(self, digests: Collection[str]) -> int:
        """Delete all that is kept of some objects, whole or in parts; gives the number of files."""
        gone = 0
        for file in self._scan():
            if file.name.partition(".")[0] in digests:
                self._drop(file.path)
                gone += 1
        return gone

    def clear(self) -> None:
        """Delete all of it."""
        for file in self._scan():
            self._drop(file.path)

    def _worth(self, file: Stored, now: float) -> tuple[float, float]:  # noqa: ARG002
        """What goes first is what is worth least: here what was used longest ago."""
        return (0.0, file.used)

    def _path(self, name: str) -> str:
        if not self._names.fullmatch(name):
            raise InvalidInputError(f"{name!r:.200} cannot name a cached value")
        return f"{self.root}/{name[:2]}/{name}"

    def _is_usable(self) -> bool:
        if self._usable is None:
            self._usable = claim(self.root, self._is_own)
        return self._usable

    def _is_own(self, folder: str, name: str) -> bool:
        """Whether a cache wrote this file, by its name: nothing else is deleted."""
        if is_partial(name):
            return True
        return name[:2] == folder and self._names.fullmatch(name) is not None

    def _verified(self, fd: int, name: str) -> memoryview | None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < TRAILER.size:
            return None
        stored = _read(fd, status.st_size)
        if stored is None:
            return None
        origin_bytes, checksum, magic = TRAILER.unpack(stored[-TRAILER.size :])
        if magic != MAGIC or checksum != _checksum(name, [stored[: -_PROOF.size]]):
            return None
        value = stored[: -TRAILER.size - origin_bytes]
        now = self._clock()
        if abs(now - status.st_mtime) > _TOUCH_SECONDS:
            with suppress(OSError):
                os.utime(fd, (now, now))
        return value.toreadonly()

    def _write(self, path: str, views: list[memoryview]) -> None:
        folder = os.path.dirname(path)
        partial = f"{folder}/{partial_name()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(partial, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, 0o700, exist_ok=True)
            fd = os.open(partial, flags, 0o600)
        try:
            with os.fdopen(fd, "wb", buffering=0) as file:
                for view in views:
                    while view.nbytes:
                        view = view[file.write(view) or 0 :]  # noqa: PLW2901  what is left of it
            os.rename(partial, path)
        except BaseException:
            self._drop(partial)
            raise

    @staticmethod
    def _taken(status: os.stat_result) -> int:
        """Bytes of the disk that a file takes: whole blocks, which small ones are mostly of."""
        return max(status.st_size, getattr(status, "st_blocks", 0) * 512)

    def _scan(self) -> Iterator[Stored]:
        with suppress(OSError), os.scandir(self.root) as folders:
            for folder in folders:
                if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                    yield from self._scan_folder(folder)

    def _scan_folder(self, folder: os.DirEntry[str]) -> Iterator[Stored]:
        with suppress(OSError), os.scandir(folder.path) as files:
            for file in files:
                with suppress(OSError):
                    if self._is_own(folder.name, file.name):
                        status = file.stat(follow_symlinks=False)
                        yield Stored(status.st_mtime, self._taken(status), file.path)

    def _origin_of(self, file: Stored) -> str:
        """The repository that a file was first kept for, as its end says, not proved."""
        try:
            with open(file.path, "rb", buffering=0) as opened:
                start = max(0, os.fstat(opened.fileno()).st_size - _MOST_END_BYTES)
                end = os.pread(opened.fileno(), _MOST_END_BYTES, start)
            size_bytes, _, magic = TRAILER.unpack(end[-TRAILER.size :])
        except (OSError, struct.error):  # it went meanwhile, or was cut short
            return ""
        if magic != MAGIC or not size_bytes:
            return ""
        return end[-TRAILER.size - size_bytes : -TRAILER.size].decode("utf-8", "replace")

    def _drop(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(path)


def _read(fd: int, size_bytes: int) -> memoryview | None:
    """So many bytes of a file; None where it was cut short meanwhile."""
    data = os.pread(fd, size_bytes, 0)  # of bytes: no memory is set to zero first
    if len(data) == size_bytes:
        return memoryview(data)
    parts, at = [data], len(data)  # one call reads no more than 2 GiB
    while at < size_bytes:
        part = os.pread(fd, size_bytes - at, at)
        if not part:
            return None
        parts.append(part)
        at += len(part)
    return memoryview(b"".join(parts))


def _checksum(name: str, views: Sequence[memoryview]) -> int:
    hasher = xxhash.xxh3_64(name.encode())
    for view in views:
        hasher.update(view)
    return hasher.intdigest()


# Chunk, payload bytes, and the tag that proved them. Pages kept before tags were in names have
# none: nobody asks for those any more, and they go like others.
_PAGE_NAME = re.compile(r"[0-9a-f]{64}\.\d{1,20}-\d{1,20}(\.[0-9a-f]{32})?")
_SURE = 1.1  # times the limit is admitted, so that chance does not leave room; eviction cuts it
_FORGOTTEN_SECONDS = 2 * 86400.0  # longer than nearly every epoch
_CUT_SECONDS = 3600.0  # a threshold learned by evicting holds for so long
_SPARE = 0.05  # of the disk is left to others


class PageDiskCache(DiskCache):
    """A `DiskCache` that keeps a fixed part of what is streamed.

    Args:
        root: a folder of its own.
        limit_bytes: how much of the disk it may take.
        wanted_bytes: what all readers of one stream read in an epoch; None: everything is taken
            that may stay.
        origin: URL of the repository whose pages are put here, for people.
        clock: seconds since the epoch.
        chance: numbers in [0, 1).
        spare: share of the disk that must stay free.
    """

    _kept = 0.95
    _names = _PAGE_NAME

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        *,
        wanted_bytes: int | None = None,
        origin: str = "",
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        spare: float = _SPARE,
    ) -> None:
        super().__init__(root, limit_bytes, origin=origin, clock=clock, chance=chance)
        self._spare = spare
        self._threshold = _SURE * limit_bytes / wanted_bytes if wanted_bytes else 1.0
        self._cut, self._cut_until = 1.0, 0.0

    def for_stream(self, wanted_bytes: int) -> PageDiskCache:
        """The same folder, for a stream that reads so many bytes an epoch."""
        return PageDiskCache(
            self.root,
            self.limit_bytes,
            wanted_bytes=wanted_bytes,
            origin=self.origin,
            clock=self._clock,
            chance=self._chance,
            spare=self._spare,
        )

    @staticmethod
    def _taken(status: os.stat_result) -> int:
        return status.st_size  # as `wanted_bytes` are counted: pages are many blocks

    def admits(self, name: str) -> bool:
        """Whether a page is one of those that are kept."""
        cut = self._cut if self._clock() < self._cut_until else 1.0
        return _number(name) < min(self._threshold, cut)

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        if self.admits(name) and not self._is_full():
            super().put(name, parts)

    def evict(self) -> list[Stored]:
        gone = super().evict()
        now = self._clock()
        numbers = [_number(file.name) for file in gone if not self._is_forgotten(file, now)]
        if numbers:
            self._cut, self._cut_until = min(numbers), now + _CUT_SECONDS
        return gone

    def _worth(self, file: Stored, now: float) -> tuple[float, float]:
        if self._is_forgotten(file, now):
            return (0.0, file.used)
        return (1.0, -_number(file.name))

    def _is_forgotten(self, file: Stored, now: float) -> bool:
        return now - file.used > _FORGOTTEN_SECONDS

    def _is_full(self) -> bool:
        """Whether others need the rest of the disk more."""
        try:
            disk = os.statvfs(self.root)
        except OSError:
            return False  # the folder is not there yet
        return disk.f_bavail < self._spare * disk.f_blocks


def _number(name: str) -> float:
    """In [0, 1), evenly spread and the same everywhere."""
    return xxh3_64_intdigest(name.encode()) / 2**64
