"""Storage backend protocol, and the rules of its keys.

Keys are ASCII paths that we make ourselves (`objects/ab/cdef...`, `log/00000000000000000001.json`);
user text never becomes part of one. A backend stores bytes under keys, creates without ever
overwriting, reads ranges, and lists. It knows nothing of objects, digests or the log.

Errors are ours: `NotFoundError`, `PermissionDenied`, `StorageError` (with `transient`), and
nothing else for what a store can do wrong. **Any** error of a create means that its outcome is
unknown: the bytes may be there, or may land later.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, Protocol, Self, runtime_checkable

from tensorrepo.repo.backends.small_files import SmallFiles
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, StorageError
from tensorrepo.repo.ids import Buffer, byte_view
from tensorrepo.repo.threads import Flights, Waiting


class Guarantee(Enum):
    """What a store promises when two writers create the same key."""

    ATOMIC = "atomic"  # exactly one create wins
    SINGLE_WRITER = "single writer"  # create is check-then-write: one process may write at a time
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key of a listing. `modified_seconds` is the store's clock (None when it has none)."""

    key: str
    bytes: int
    modified_seconds: float | None


class Uploads(ABC):
    """Many creates that become durable together; safe to call from several threads.

    Between `create` and `finish` nothing is promised: a key may be visible or not. Parts must
    not change until `finish` returns. As a context manager, leaving it calls `abort`, which has
    nothing left to stop once `finish` returned.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @abstractmethod
    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        """Start to store `parts`. Blocks while too many bytes are in flight."""

    @abstractmethod
    def finish(self) -> dict[str, bool]:
        """Make all durable. For each key: True when created, False when it existed before.

        An existing key is durable too when this returns: it may be adopted. A key given twice is
        stored once, from the first parts. May be called again after more creates, and tells of
        those since the call before. Raises the first failure.
        """

    @abstractmethod
    def abort(self) -> None:
        """Stop, and remove what is not visible yet. Never raises."""


class UploadTurns:
    """Lets creates go on at the same time, and `finish` alone.

    It tells of what others began, so all of that must have come to its end by then.
    """

    def __init__(self) -> None:
        self._creating = 0
        self._finishing = False
        self._lock = threading.Lock()
        self._changed = Waiting()

    def create(self) -> UploadTurn:
        """Waits for a `finish` to be over."""
        return UploadTurn(self._begin_create, self._end_create)

    def finish(self) -> UploadTurn:
        """Waits for each `create` that has begun, and for another `finish`."""
        return UploadTurn(self._begin_finish, self._end_finish)

    def _begin_create(self) -> None:
        while True:
            with self._lock:
                if not self._finishing:
                    self._creating += 1
                    return
                wait = self._changed.add()
            wait()

    def _end_create(self) -> None:
        with self._lock:
            self._creating -= 1
            self._changed.wake()

    def _begin_finish(self) -> None:
        begun = False
        while True:
            with self._lock:
                if begun and not self._creating:
                    return
                if not begun and not self._finishing:
                    # Nothing begins from here on, so that this comes to its end.
                    begun = self._finishing = True
                    continue
                wait = self._changed.add()
            wait()

    def _end_finish(self) -> None:
        with self._lock:
            self._finishing = False
            self._changed.wake()


class UploadTurn:
    """What is done between two calls. A class, for every commit comes by three of them."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._end()


class FlyingUploads(Uploads):
    """Creates in flight, a few at a time, each of which says whether it made its key."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._lock = threading.Lock()
        self._turns = UploadTurns()
        self._created: dict[str, bool] = {}

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._turns.create():
            with self._lock:
                if check_key(key) in self._created:
                    return
                self._created[key] = False
            self._send(key, byte_views(parts))

    def finish(self) -> dict[str, bool]:
        with self._turns.finish():
            self._flights.drain()
            created, self._created = self._created, {}
            return created

    def abort(self) -> None:
        self._flights.stop()
        self._created = {}

    @abstractmethod
    def _send(self, key: str, views: list[memoryview]) -> None:
        """Start to create a key that was not given before."""


class Backend(Protocol):
    """One place that holds keys and bytes. Thread-safe, and picklable (it reconnects)."""

    @property
    def url(self) -> str:
        """Where it is, for people: never with a password or key."""

    @property
    def guarantee(self) -> Guarantee: ...

    @property
    def local_root(self) -> Path | None:
        """The folder on this machine's disk, or None."""

    def read(self, key: str) -> bytes:
        """All bytes of `key`, or NotFoundError."""

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        """Exactly bytes ``[start, stop)``; StorageError when the value is shorter."""

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` from byte `start`; StorageError when the value is shorter."""

    def size(self, key: str) -> int | None:
        """Bytes stored under `key`, None when absent."""

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Store durably unless the key exists: True created, False exists (nothing changed)."""

    def uploads(self) -> Uploads: ...

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store whether or not the key exists; readers see old or new, never a mixture.

        Not necessarily durable: for hints and caches. See `overwrite_durably`.
        """

    def delete(self, key: str) -> None:
        """Remove `key`; absent is fine."""

    def list(self, prefix: str) -> Iterator[StoredKey]:
        """Keys that start with `prefix` (which ends in "/" or is ""), in ascending order."""

    def close(self) -> None: ...


class CommonBackend:
    """What most backends do alike: whole values and creates by their parts, and no connection."""

    url: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def read_into(self: Backend, key: str, start: int, buffer: memoryview) -> None:
        flat = buffer.cast("B")
        flat[:] = memoryview(self.read_range(key, start, start + flat.nbytes))

    def create(self: Backend, key: str, parts: Sequence[Buffer]) -> bool:
        with self.uploads() as uploads:
            uploads.create(key, parts)
            return uploads.finish()[key]

    def close(self) -> None:
        """Nothing stays open between calls, or it goes with the backend."""

    def no_key(self, key: str) -> NotFoundError:
        return NotFoundError(f"{self.url} has no key {key!r}")


@runtime_checkable
class BackendReadsOnce(Protocol):
    """A backend that can leave it to the caller to repeat a read."""

    def read_once(self, key: str, start: int, stop: int) -> Buffer:
        """As `Backend.read_range` by a single request: what fails for a moment is raised."""


@runtime_checkable
class ReadsUpTo(Protocol):
    """A backend that tells the size of a value by the request that reads it, if it is small."""

    def read_up_to(self, key: str, most_bytes: int) -> bytes | int:
        """All of `key` where it has at most `most_bytes`, else how many. Raises NotFoundError."""


@runtime_checkable
class ExpectsKeys(Protocol):
    """A backend that can prepare for reads that are going to come."""

    def expect_keys(self, sizes: Mapping[str, int]) -> None:
        """Several ranges of each of these keys, with its bytes, will be read soon. Never waits."""


@runtime_checkable
class StreamsRanges(Protocol):
    """A backend that gives a range while it comes: what came is not lost when the rest does not."""

    def stream_range(self, key: str, start: int, stop: int) -> Iterator[Buffer]:
        """As `Backend.read_range`, little by little, in order; it is asked before this returns."""


@runtime_checkable
class KeepsParts(Protocol):
    """A backend on this machine's disk, in which unfinished objects may lie, too."""

    @property
    def part_folder(self) -> Path:
        """Where they lie: on the same file system as the objects, under no key."""

    def adopt_part(self, name: str, key: str) -> bool:
        """Give a whole file of that folder its key, durably; False when the key is taken.

        The file is gone from the folder either way.
        """

    def sync_folders(self, folders: Iterable[str]) -> None:
        """Make the names in `folders` durable."""


@runtime_checkable
class KeepsFolders(Protocol):
    """A backend whose keys lie in folders, which stay when the last key of one is deleted."""

    def remove_folders(self, prefix: str) -> None:
        """Remove `prefix`, and what is below it, as far as it is empty. Never raises."""


@runtime_checkable
class SendsParts(Protocol):
    """A backend that sends what is too large for one request in parts, which the store joins."""

    def with_parts(self, part_bytes: int) -> Backend:
        """The same store, to which whatever is larger is sent in parts of so many bytes."""


@runtime_checkable
class OpensFiles(Protocol):
    """A backend on this machine's disk, whose values are files."""

    def open_file(self, key: str) -> int:
        """A descriptor to read `key`, which the caller closes. Raises NotFoundError."""


@runtime_checkable
class ReadsSmallFiles(Protocol):
    """A backend on this machine's disk, of which whoever reads all small values may keep folders
    open.
    """

    def small_files(self) -> SmallFiles:
        """What reads them, once it is entered; of what cannot be read it says nothing."""


@runtime_checkable
class SendsRanges(Protocol):
    """A backend that gives a long range piece by piece, on an event loop."""

    def send_range(self, key: str, start: int, stop: int) -> AsyncIterator[Buffer]:
        """Bytes ``[start, stop)`` of `key` in pieces; no more is read than is taken."""


NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@runtime_checkable
class SignsRequests(Protocol):
    """A backend that others may ask for one thing, by a URL that is good for a while."""

    def signed_url(
        self,
        key: str,
        seconds: int,
        *,
        method: Literal["GET", "PUT"] = "GET",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> str | None:
        """Where a request of that method, with these headers, reads or writes this one key.

        None: this store signs nothing. Where no key to sign with is known, as with logins that a
        cloud gives its machines, reads are not bound to their headers, and nothing is written.
        """


@dataclass(frozen=True, slots=True)
class ToldState:
    """A state of the log as JSON, as its reader may see it; `digest` names its record."""

    generation: int
    digest: str
    state: bytes


@runtime_checkable
class TellsState(Protocol):
    """A backend that gives a part of a repository, whose log is not for its reader.

    Objects are read by the way that leads to them: it is told of those that do.
    """

    def read_state(self) -> ToldState: ...

    def note_links(self, digest: str, children: Iterable[str]) -> None:
        """Remember that an object leads to others, which are no commits."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The records of a log behind one of them, of which `digest` is the name: up to the newest."""

    digest: str
    records: tuple[bytes, ...]


@runtime_checkable
class TellsTail(Protocol):
    """A backend that gives the newest records by one call."""

    def log_tail(self, generation: int) -> LogTail | None:
        """Records behind that one; None where they are too many, or there is no such record."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where entries landed that a service appended.

    Attributes:
        generation: number of their record.
        entries: what the service wrote for them, as canonical JSON: actors are its own words, and
            a commit may have been merged onto a branch that moved.
        records: bytes of the records behind the one that the entries were decided on, up to theirs
            or further; none where they are too many, or not for this caller.
    """

    generation: int
    entries: bytes
    records: tuple[bytes, ...]


@runtime_checkable
class AppendsEntries(Protocol):
    """A backend behind which a service writes the log: nobody else creates a slot.

    Attributes:
        caller: ``Name <email>`` that it writes for this client, as an entry's actor; "": not told.
    """

    caller: str

    def gathering(self) -> AbstractContextManager[None]:
        """Let small objects that this thread finishes wait for its next `append_entries`.

        Who leaves the block without one has them sent by themselves.
        """

    def append_entries(self, entries: bytes, generation: int, *, merges: bool) -> Landing:
        """Append entries of one transaction, at most once however often it is called.

        Args:
            entries: their JSON, as records have it.
            generation: number of the record that they were decided on.
            merges: whether a commit may be merged onto a branch that moved meanwhile.

        Raises:
            ConflictError: nothing was written: decide anew.
            StorageError: not known whether it was written, if it is transient; call again.
            Error: nothing was written, for that reason.
        """


@runtime_checkable
class ComposesCommits(AppendsEntries, Protocol):
    """A backend behind which a service makes commits of the paths that they change.

    Attributes:
        most_paths: number of paths that one commit may change; 0: this service composes none.
    """

    most_paths: int

    def append_commit(self, commit: bytes, beside: bytes, generation: int) -> Landing:
        """Have a commit composed, and appended, at most once however often it is called.

        Args:
            commit: what is wanted, as `repo.history.composing` encodes it.
            beside: JSON of the entries that go into the same record.
            generation: number of the record that it was decided on.

        Returns:
            Where it landed, the commit's entry first; no entries where nothing would change.

        Raises as `append_entries`.
        """


@runtime_checkable
class TellsEvents(Protocol):
    """A backend that says when refs move."""

    def events(self, ref: str, silence_seconds: float) -> Iterator[None]:
        """One item as soon as it listens, at every move of the ref, and at signs of life.

        Ends when nothing was heard for `silence_seconds`, or the connection broke.

        Raises:
            Error: it is not told, for that reason.
        """


@runtime_checkable
class OverwritesDurably(Protocol):
    """A backend on which overwriting and making durable are two things."""

    def overwrite_durably(self, key: str, parts: Sequence[Buffer]) -> None:
        """As `Backend.overwrite`, and durable when it returns."""


def overwrite_durably(backend: Backend, key: str, parts: Sequence[Buffer]) -> None:
    """Store `parts` whether or not the key exists, durably: what is repaired must stay so."""
    if isinstance(backend, OverwritesDurably):
        backend.overwrite_durably(key, parts)
    else:
        backend.overwrite(key, parts)


PART_PREFIX = "part-"
MAX_KEY_BYTES = 512
_SEGMENT = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


def check_key(key: str) -> str:
    """`key` itself when every store can hold it and it names nothing outside the root.

    Raises:
        InvalidInputError: not segments of ``[A-Za-z0-9._-]`` joined by "/", or one is "." or "..".
    """
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise InvalidInputError(
            f"{key!r:.200} is no storage key: segments of A-Z a-z 0-9 . _ - joined by '/', "
            f"none of them '.' or '..', at most {MAX_KEY_BYTES} bytes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself when it is "" or a key with "/" behind it."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"a listing's prefix ends in '/', got {prefix!r:.200}")
        check_key(prefix[:-1])
    return prefix


def byte_views(parts: Sequence[Buffer]) -> list[memoryview]:
    """The parts that hold anything, as flat bytes; nothing is copied."""
    return [view for view in map(byte_view, parts) if view.nbytes]


def check_length(where: str, start: int, stop: int, found_bytes: int) -> None:
    """Refuse an answer that is not exactly bytes ``[start, stop)``.

    Raises:
        StorageError: the value ends before `stop`.
        InvalidInputError: no range at all.
    """
    if not 0 <= start <= stop:
        raise InvalidInputError(f"{where}: a range needs 0 <= start <= stop, got [{start}, {stop})")
    if found_bytes != stop - start:
        raise StorageError(
            f"{where}: asked for bytes [{start}, {stop}), the store gave {found_bytes} "
            f"instead of {stop - start}: the value is cut short. Run `tensorrepo fsck`."
        )
