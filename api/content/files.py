"""Files of commits: their bytes, proved before the first of them is given."""

from __future__ import annotations

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.repo.objects.blob_bytes import BlobBytes, open_blob
from tensorrepo.repo.objects.envelope import Kind


def open_file(content: CommitContent, path: str) -> BlobBytes:
    """The file at `path`.

    Raises:
        NotFoundError: there is no such entry.
        InvalidInputError: it is no file.
    """
    entry = content.of_kind(path, Kind.BLOB)
    where = f"{path} in {content.access.name}"
    return open_blob(content.core.objects, entry.digest, where, content.memory.proved)
