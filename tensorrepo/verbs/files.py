"""Files as entries: stored as they are, in bounded memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from tensorrepo.repo.errors import PermissionDenied, StorageError
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter

SMALL_FILE_BYTES: Final = 1 << 20


def put_file(writer: ObjectWriter, path: Path) -> Entry:
    """Store a file as one blob; a large one is mapped, so that memory stays small.

    Raises:
        PermissionDenied: it may not be read.
        StorageError: it cannot be read.
    """
    try:
        size = path.stat().st_size
        if size <= SMALL_FILE_BYTES:
            return file_entry(writer.put(Kind.BLOB, path.read_bytes()))
        with path.open("rb") as file:
            # Not closed by hand: the writer looks at the map until `flush`, then it goes by itself.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        link = writer.put(Kind.BLOB, memoryview(mapped))
        writer.flush()
    except PermissionError as error:
        raise PermissionDenied(f"{path}: permission denied. Check who may read it.") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return file_entry(link)
