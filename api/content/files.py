"""Files of commits: their bytes, proved before the first of them is given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.blob_bytes import BlobBytes, open_blob
from tensorrepo.repo.objects.envelope import Kind


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of a commit: what it is, and its bytes when they are asked for.

    Attributes:
        content: commit that has it.
        path: path of the file in the commit.
        blob: its bytes.
    """

    content: CommitContent
    path: str
    blob: BlobBytes

    @property
    def digest(self) -> Digest:
        return self.blob.digest

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.blob.size_bytes

    @property
    def name(self) -> str:
        """What to call it where it is saved."""
        return self.path.rpartition("/")[2]

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """Bytes ``[start, stop)``, some at a time.

        Raises:
            CorruptError: they are not what was stored; before any is given.
        """
        return self.blob.pieces(start, stop)

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
    where = f"{path} in {content.access.name}"
    blob = open_blob(content.core.objects, entry.digest, where, content.memory.proved)
    return FileContent(content, path, blob)
