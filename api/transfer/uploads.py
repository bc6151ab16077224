"""Uploads of objects: small ones many at once, large ones in pieces that a broken line keeps.

Nothing becomes an object before all of its bytes have its digest. Until then a large one is a part
file, which belongs to one caller, and lies where the objects do on a local disk (so that it only
gets its name), else in the service's folder. Who uploads it again goes on behind its last piece.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.transfer.body_writer import to_its_end, write_pieces
from tensorrepo.api.transfer.offered_objects import Offered, check_object, refuse_kind
from tensorrepo.repo.backends.base import PART_PREFIX, KeepsParts
from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.hashing.digests import streamed_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import (
    HEADER,
    ZSTD_MAGIC,
    EncodedObject,
    Kind,
    ObjectLink,
    decode_header,
    decode_object,
)
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.mapping import map_file
from tensorrepo.repo.objects.writer import ObjectWriter

_HASH_BYTES: Final = 2 << 20  # in memory of each upload that is proved
_PARSED_BYTES: Final = 64 << 20  # of an object with links, which is parsed whole


def require_writer(access: RepositoryAccess) -> None:
    """Raises PermissionDenied unless the caller may write to any ref at all."""
    level = access.caller.level(access.name)
    if level is None or level < Action.WRITE:
        access.require(Action.WRITE)


def store_objects(access: RepositoryAccess, offered: Offered) -> None:
    """Make objects durable that were checked: garbage, until a commit leads to them.

    Raises:
        PermissionDenied: the caller may not write.
    """
    require_writer(access)
    with _writing(access) as writer:
        for encoded in offered.values():
            writer.put_encoded(encoded)
        writer.flush()


@contextmanager
def _writing(access: RepositoryAccess) -> Iterator[ObjectWriter]:
    """A writer at the newest state: what it puts lies under the labels of that (rule W1)."""
    _refuse_read_only(access)
    graves = access.core.log.refresh().state.graves
    writer = ObjectWriter(access.core.objects, graves)
    try:
        yield writer
    except BaseException:
        writer.abort()
        raise


def _refuse_read_only(access: RepositoryAccess) -> None:
    reason = access.core.log.read_only or access.view.state.read_only_reason
    if reason is not None:
        raise UnsupportedError(f"{access.name}: {reason}")


@dataclass(frozen=True, slots=True)
class PartialUpload:
    """One large object of one caller on its way.

    Attributes:
        access: whose, and of which repository.
        digest: name that it is to have.
        total: bytes that it is to have.
        folder: where the service keeps parts if the store has no place for them.
    """

    access: RepositoryAccess
    digest: Digest
    total: int
    folder: Path

    @property
    def received(self) -> int:
        """Bytes that came."""
        try:
            return min(self._path.stat().st_size, self.total)
        except FileNotFoundError:
            return 0

    @property
    def is_stored(self) -> bool:
        """Whether the repository has the object, as far as the caller may know."""
        store = self.access.core.objects
        if not self.access.reads_all:
            return False
        label = store.label(self.digest, self.access.view.state.graves)
        return store.stored_bytes(self.digest, label) == self.total

    async def receive(self, offset: int, pieces: AsyncIterator[bytes]) -> int:
        """Take bytes from `offset` on; when all are there it becomes an object.

        Returns:
            Bytes that came so far.

        Raises:
            ConflictError: `offset` is behind what came, or another request is at it.
            InvalidInputError: the bytes are not that object. All of them are forgotten.
        """
        require_writer(self.access)
        if not 0 <= offset < self.total:
            raise InvalidInputError(f"a piece begins in the object, not at byte {offset}")
        descriptor = await run_in_threadpool(self._open, offset)
        try:
            most = min(self.total - offset, PIECE_BYTES)
            at = offset + await write_pieces(descriptor, pieces, most)
            if at == self.total:
                await to_its_end(partial(self._finish, descriptor))
        except OSError as error:
            raise explain(error, "write", self._path) from error
        finally:
            os.close(descriptor)
        return at

    def _open(self, offset: int) -> int:
        self._parts.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._refuse_gap(os.fstat(descriptor).st_size, offset)
            os.ftruncate(descriptor, offset)  # a piece that was cut off comes once more
            os.lseek(descriptor, offset, os.SEEK_SET)
        except BlockingIOError:
            os.close(descriptor)
            raise ConflictError(
                f"object {self.digest:.12}: another request of yours uploads it; wait for that"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_gap(self, have: int, offset: int) -> None:
        if have < offset:
            raise ConflictError(
                f"object {self.digest:.12}: {have:,} bytes came so far, go on there"
            )

    def _finish(self, descriptor: int) -> None:
        try:
            link = _verified(descriptor, self.digest, self.total)
        except (CorruptError, UnsupportedError) as error:
            with suppress(OSError):
                os.unlink(self._path)
            raise InvalidInputError(f"object {self.digest:.12} was not stored: {error}") from error
        if link is None:  # stored compressed, or with links: small enough to be read
            encoded = check_object(self.digest, os.pread(descriptor, self.total, 0))
            store_objects(self.access, {self.digest: encoded})
        else:
            self._store(link)
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _store(self, link: ObjectLink) -> None:
        with _writing(self.access) as writer:
            backend = writer.store.backend
            if isinstance(backend, KeepsParts):
                key = object_key(link.digest, writer.store.label(link.digest, writer.graves))
                writer.store.refuse_purged(link.digest)
                if not backend.adopt_part(self._path.name, key) and backend.size(key) != link.bytes:
                    raise CorruptError(f"{key} was damaged after it was stored")
                return
            whole = map_file(self._path)
            if whole is None:
                raise StorageError("no room in memory to map an upload", transient=True)
            writer.put_encoded(EncodedObject(link, (whole,)))
            writer.flush()

    @property
    def _parts(self) -> Path:
        backend = self.access.core.objects.backend
        return backend.part_folder if isinstance(backend, KeepsParts) else self.folder

    @property
    def _path(self) -> Path:
        # Of one caller alone: nobody spoils, or learns of, what another one uploads.
        told = f"{self.access.name} {self.access.caller.name} {self.digest} {self.total}"
        return self._parts / f"{PART_PREFIX}{hashlib.sha256(told.encode()).hexdigest()}"


def _verified(descriptor: int, digest: Digest, total: int) -> ObjectLink | None:
    """What the object in a file is; None where it has to be parsed whole.

    Raises:
        CorruptError: it is not the object of that digest.
    """
    head = os.pread(descriptor, HEADER.size, 0)
    if head[:4] == ZSTD_MAGIC:
        if total > _PARSED_BYTES:
            raise CorruptError(f"compressed objects have at most {_PARSED_BYTES:,} bytes")
        return None
    kind, links, start, payload_bytes = decode_header(memoryview(head), digest)
    if start + payload_bytes != total:
        raise CorruptError(f"its header promises {start + payload_bytes:,} bytes, {total:,} came")
    if links or kind.compressible:
        if total > _PARSED_BYTES:
            return _parsed(descriptor, digest, total, kind)
        return None
    found = streamed_digest(_blocks(descriptor, total), parallel=True)
    if found != digest:
        raise CorruptError(f"its {total:,} bytes have digest {found:.12}")
    link = ObjectLink(digest, total, kind, leaf=True)
    refuse_kind(link)
    return link


def _blocks(descriptor: int, total: int) -> Iterator[memoryview]:
    """What a file holds, each block in the memory of the one before it."""
    room = memoryview(bytearray(min(total, _HASH_BYTES)))
    for at in range(0, total, _HASH_BYTES):
        yield room[: os.preadv(descriptor, [room], at)]


def _parsed(descriptor: int, digest: Digest, total: int, kind: Kind) -> ObjectLink:
    """An object with many links, parsed in memory: 40 bytes for each."""
    if total > 16 * _PARSED_BYTES:
        raise CorruptError(f"a {kind.label} has at most {16 * _PARSED_BYTES:,} bytes here")
    link = decode_object(os.pread(descriptor, total, 0), digest).link(digest)
    refuse_kind(link)
    return link
