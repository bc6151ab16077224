"""Bytes of small and large blobs, proved: ranges before the first is given, files as written.

Small ones are read whole, by digest. Of a large one memory holds a piece, however large it is: for
ranges all bytes are hashed in a first pass, once for each `proved`, and then read from the store; a
file is hashed while it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.digests import streamed_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.store import ObjectStore

WHOLE_BYTES: Final = 32 << 20  # read at once, and kept by the store's own cache
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BlobBytes:
    """The bytes of one blob.

    Attributes:
        objects: where it is stored.
        digest: digest of the blob.
        size_bytes: its size.
        where: what it is called when it is damaged: ``files/notes.txt``.
        proved: digests of large blobs that were hashed; shared by all that read from `objects`.
    """

    objects: ObjectStore
    digest: Digest
    size_bytes: int
    where: str
    proved: LimitedCache[bool]
    _link: ObjectLink

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """Bytes ``[start, stop)``, some at a time.

        Raises:
            CorruptError: they are not what was stored; before any is given.
        """
        stop = self.size_bytes if stop is None else min(stop, self.size_bytes)
        if self.size_bytes <= WHOLE_BYTES:
            payload = memoryview(self.objects.get(self.digest).payload)
            yield from (
                payload[at : min(at + PIECE_BYTES, stop)] for at in range(start, stop, PIECE_BYTES)
            )
            return
        self._prove()
        for at in range(start, stop, PIECE_BYTES):
            yield self.objects.read_range(self._link, at, min(at + PIECE_BYTES, stop))

    def piece_start(self, at: int) -> int:
        """The first place from `at` on where a range may begin and nothing is read twice."""
        return min(at, self.size_bytes)

    def _prove(self) -> None:
        """Hash the whole object, unless it was: ranges of it have no proof."""
        key = (self.objects.place(self.digest), self.digest)
        if self.proved.get(key):
            return
        envelope = (piece for _, piece in _envelope(self.objects, self.digest, self._link.bytes))
        if streamed_digest(envelope) != self.digest:
            raise _damaged(self.where, self.digest)
        self.proved.put(key, True, 1)


def open_blob(
    objects: ObjectStore, digest: Digest, where: str, proved: LimitedCache[bool]
) -> BlobBytes:
    """The blob of this digest; see `BlobBytes`. Raises NotFoundError."""
    link = objects.describe(digest)
    if link.payload_start is None:  # a parent that was read does not say where it begins
        size_bytes = memoryview(objects.get(digest).payload).nbytes
    else:
        size_bytes = link.bytes - link.payload_start
    return BlobBytes(objects, digest, size_bytes, where, proved, link)


def write_blob(
    objects: ObjectStore,
    digest: Digest,
    file: IO[bytes],
    where: str,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write the bytes of a blob to a new file; `progress` receives those done, and all.

    Raises:
        NotFoundError: there is no such object.
        CorruptError: they are not what was stored. The file is to be dropped: it holds them.
    """
    link = objects.describe(digest)
    start, whole = link.payload_start, link.bytes
    if start is None or whole <= WHOLE_BYTES:
        file.write(objects.get(digest).payload)
        return

    def written() -> Iterator[Buffer]:
        for at, piece in _envelope(objects, digest, whole):
            file.write(memoryview(piece)[max(0, start - at) :])
            progress(max(0, at + len(piece) - start), whole - start)
            yield piece

    if streamed_digest(written()) != digest:
        raise _damaged(where, digest)


def _envelope(
    objects: ObjectStore, digest: Digest, whole_bytes: int
) -> Iterator[tuple[int, Buffer]]:
    """All of an object, a piece after the other, each with where it begins."""
    for at in range(0, whole_bytes, PIECE_BYTES):
        yield at, objects.read_envelope(digest, at, min(at + PIECE_BYTES, whole_bytes))


def _damaged(where: str, digest: Digest) -> CorruptError:
    return CorruptError(
        f"{where} is damaged in the store: its bytes are not those of {digest:.12}. "
        "`tensorrepo fsck --deep --repair` mends it."
    )
