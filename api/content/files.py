"""Files of commits: their bytes, proved before the first of them is given.

Small ones are read whole, by digest. Of a large one the bytes are hashed in a first pass, once a
process, and given from the store in pieces: memory holds a piece of it, however large it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest, streamed_digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink

WHOLE_BYTES: Final = 32 << 20  # read at once, and kept by the store's own cache
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of a commit: what it is, and its bytes when they are asked for.

    Attributes:
        path: path of the file in the commit.
        digest: digest of its content.
        bytes: its size.
    """

    content: CommitContent
    path: str
    digest: Digest
    bytes: int
    _link: ObjectLink

    @property
    def name(self) -> str:
        """What to call it where it is saved."""
        return self.path.rpartition("/")[2]

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """Bytes ``[start, stop)``, some at a time.

        Raises:
            CorruptError: they are not what was stored; before any is given.
        """
        stop = self.bytes if stop is None else min(stop, self.bytes)
        objects = self.content.core.objects
        if self.bytes <= WHOLE_BYTES:
            payload = memoryview(objects.get(self.digest).payload)
            yield from (
                payload[at : min(at + PIECE_BYTES, stop)] for at in range(start, stop, PIECE_BYTES)
            )
            return
        self._prove()
        for at in range(start, stop, PIECE_BYTES):
            yield objects.read_range(self._link, at, min(at + PIECE_BYTES, stop))

    def sha256(self) -> str:
        """SHA-256 of its content, as hex digits; read once, and kept on disk."""
        kept = self.content.memory.profiles
        key = sha256_key(self.digest)
        known = None if kept is None else kept.get(key)
        if known is not None:
            return bytes(known).hex()
        hasher = hashlib.sha256()
        for piece in self.pieces():
            hasher.update(piece)
        if kept is not None:
            kept.put(key, (hasher.digest(),))
        return hasher.hexdigest()

    def _prove(self) -> None:
        """Hash the whole object, unless this process has: ranges of it have no proof."""
        key = (self.content.core.id, "file", self.digest)
        if self.content.memory.places.get(key) is not None:
            return
        if streamed_digest(self._envelope()) != self.digest:
            raise CorruptError(
                f"{self.path} in {self.content.access.name} is damaged in the store: its bytes are "
                f"not those of {self.digest:.12}. `tensorrepo fsck --repair` mends it."
            )
        self.content.memory.places.put(key, (self.digest,), 1)

    def _envelope(self) -> Iterator[Buffer]:
        whole = self._link.bytes
        for at in range(0, whole, PIECE_BYTES):
            stop = min(at + PIECE_BYTES, whole)
            yield self.content.core.objects.read_envelope(self.digest, at, stop)


def open_file(content: CommitContent, path: str) -> FileContent:
    """The file at `path`.

    Raises:
        NotFoundError: there is no such entry.
        InvalidInputError: it is no file.
    """
    return open_entry(content, path, content.of_kind(path, Kind.BLOB))


def sha256_key(digest: Digest) -> str:
    """By which the SHA-256 of a file's content is kept."""
    return f"{digest}.sha256"


def open_entry(content: CommitContent, path: str, entry: Entry) -> FileContent:
    """The file of an entry that was looked up."""
    link = content.core.objects.describe(entry.digest)
    if link.payload_start is None:  # a parent that was read does not say where it begins
        payload = memoryview(content.core.objects.get(entry.digest).payload)
        return FileContent(content, path, entry.digest, payload.nbytes, link)
    return FileContent(content, path, entry.digest, link.bytes - link.payload_start, link)
