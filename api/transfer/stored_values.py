"""Stored values on their way out: by range, as they lie, in pieces, in bounded memory.

A file is mapped, and views of the map go to the socket: nothing is copied, and what waits for a
slow reader holds no thread. Before a piece is touched one byte of it is asked for without waiting
(`RWF_NOWAIT`); what the page cache lacks is read on another thread first, so that a cold disk does
not stop everybody else. Of other stores pieces come by asynchronous reads.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import monotonic
from typing import Final, Protocol

from starlette.concurrency import run_in_threadpool

from tensorrepo.repo.backends.base import (
    Backend,
    OpensFiles,
    ReadsUpTo,
    SendsRanges,
    SignsRequests,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, StorageError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.mapping import map_descriptor

PIECE_BYTES: Final = 512 << 10
WHOLE_BYTES: Final = 256 << 10  # smaller values are read at once
SIGNED_SECONDS: Final = 15 * 60
_KNOWN_SECONDS: Final = 60.0
_KNOWN_BYTES: Final = 8 << 20
_SIZE_BYTES: Final = 300  # that one takes in memory, about
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)


class StoredValue(Protocol):
    """A value whose size is known, and that can be read piece by piece."""

    @property
    def size_bytes(self) -> int: ...

    def pieces(self, start: int, stop: int) -> AsyncIterator[Buffer]:
        """Bytes ``[start, stop)``, piece by piece. May be called once."""

    def close(self) -> None: ...


@dataclass(slots=True)
class SmallValue:
    """A value that was read whole."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    async def pieces(self, start: int, stop: int) -> AsyncIterator[Buffer]:
        """See `StoredValue`."""
        yield self.data if (start, stop) == (0, len(self.data)) else self.data[start:stop]

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True)
class FileValue:
    """A large value on this machine's disk, by an open descriptor."""

    descriptor: int
    size_bytes: int

    async def pieces(self, start: int, stop: int) -> AsyncIterator[Buffer]:
        """See `StoredValue`."""
        whole = map_descriptor(self.descriptor, self.size_bytes)
        if whole is None:
            raise StorageError("no room in memory to map a file", transient=True)
        for at in range(start, stop, PIECE_BYTES):
            end = min(at + PIECE_BYTES, stop)
            if not self._is_in_memory(end - 1):
                await run_in_threadpool(self._read_ahead, at, min(end + PIECE_BYTES, stop))
            yield whole[at:end]

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def _is_in_memory(self, at: int) -> bool:
        if _NO_WAIT is None:
            return False
        try:
            return os.preadv(self.descriptor, [bytearray(1)], at, _NO_WAIT) == 1
        except OSError:
            return False

    def _read_ahead(self, start: int, stop: int) -> None:
        for at in range(start, stop, PIECE_BYTES):
            os.pread(self.descriptor, min(PIECE_BYTES, stop - at), at)


class KnownObjects:
    """Sizes of objects of a store afar, and small ones whole: each range of one would ask the store
    for its size again, and each reader that opens the repository for the same few objects.

    An object never changes; for a minute nobody looks whether it was collected. Thread-safe.
    """

    def __init__(self, _served: object = None, *, timer: Callable[[], float] = monotonic) -> None:
        self._known = LimitedCache[bytes | int](_KNOWN_BYTES)
        self._timer = timer

    def size(self, backend: Backend, key: str) -> int:
        """Bytes under `key`, asked for once by all who want it. Raises NotFoundError."""
        known = self._known.get_or_load(
            self._place(key), lambda: (_size(backend, key), _SIZE_BYTES)
        )
        return known if isinstance(known, int) else len(known)

    def read(self, backend: Backend, key: str) -> bytes | int:
        """A small object, or the size of a large one; asked for once. Raises NotFoundError."""
        place = self._place(key)
        known = self._known.get(place)
        if isinstance(known, int) and known <= WHOLE_BYTES:  # of which the size alone was asked
            self._known.drop(place)

        def load() -> tuple[bytes | int, int]:
            found = _small_or_size(backend, key)
            return found, _SIZE_BYTES + (len(found) if isinstance(found, bytes) else 0)

        return self._known.get_or_load(place, load)

    def known(self, key: str) -> bytes | int | None:
        """What `read` gives, or the size alone, where that takes no asking."""
        return self._known.get(self._place(key))

    def forget(self, key: str) -> None:
        """It is not there any more."""
        self._known.drop(self._place(key))

    def _place(self, key: str) -> tuple[str, int]:
        return key, int(self._timer() // _KNOWN_SECONDS)


@dataclass(slots=True)
class RemoteValue:
    """A large value of a store that is read over a network."""

    backend: Backend
    key: str
    size_bytes: int
    known: KnownObjects | None = None

    async def pieces(self, start: int, stop: int) -> AsyncIterator[Buffer]:
        """See `StoredValue`."""
        try:
            async for piece in self._pieces(start, stop):
                yield piece
        except NotFoundError:
            if self.known is not None:
                self.known.forget(self.key)
            raise

    async def _pieces(self, start: int, stop: int) -> AsyncIterator[Buffer]:
        if isinstance(self.backend, SendsRanges):
            async for piece in self.backend.send_range(self.key, start, stop):
                yield piece
            return
        for at in range(start, stop, PIECE_BYTES):
            read = partial(self.backend.read_range, self.key, at, min(at + PIECE_BYTES, stop))
            yield await run_in_threadpool(read)

    def close(self) -> None:
        """Nothing is open."""


def signed_address(
    value: StoredValue, least_bytes: int | None, asked: str | None = None
) -> str | None:
    """A URL of a large value of a store, for clients that may read it; None: it goes through here.

    It is good for one key and one method, for the range that is `asked`, and for a short time.
    """
    if least_bytes is None or not isinstance(value, RemoteValue) or value.size_bytes < least_bytes:
        return None
    if not isinstance(value.backend, SignsRequests):
        return None
    headers = {} if asked is None else {"Range": asked}
    return value.backend.signed_url(value.key, SIGNED_SECONDS, headers=headers)


def afar_value(backend: Backend, key: str, known: KnownObjects) -> RemoteValue:
    """An object of a store afar, of which only the size is looked up. Raises NotFoundError."""
    return RemoteValue(backend, key, known.size(backend, key), known)


def open_value(
    backend: Backend, key: str, known: KnownObjects | None = None, *, in_part: bool = False
) -> StoredValue:
    """The value under `key`; reads, so not for the event loop. Raises NotFoundError.

    Args:
        backend: where it lies.
        key: its key.
        known: given where what is under a key never changes.
        in_part: whether a range of it is wanted, as of large values: its size is looked up first.
    """
    if isinstance(backend, OpensFiles):
        return _open_file(backend, key)
    if known is None:
        found = _small_or_size(backend, key)
    else:
        found = known.size(backend, key) if in_part else known.read(backend, key)
        if in_part and isinstance(found, int) and found <= WHOLE_BYTES:
            found = known.read(backend, key)
    return (
        SmallValue(found) if isinstance(found, bytes) else RemoteValue(backend, key, found, known)
    )


def _small_or_size(backend: Backend, key: str) -> bytes | int:
    if isinstance(backend, ReadsUpTo):
        return backend.read_up_to(key, WHOLE_BYTES)
    size = _size(backend, key)
    return backend.read(key) if size <= WHOLE_BYTES else size


def _size(backend: Backend, key: str) -> int:
    size = backend.size(key)
    if size is None:
        raise NotFoundError(f"no key {key!r}")
    return size


def _open_file(backend: OpensFiles, key: str) -> StoredValue:
    descriptor = backend.open_file(key)
    keep = False
    try:
        size = os.fstat(descriptor).st_size
        if size <= WHOLE_BYTES:
            return SmallValue(os.pread(descriptor, size, 0))
        keep = True
        return FileValue(descriptor, size)
    finally:
        if not keep:
            os.close(descriptor)
