"""Which files does a commit need that the repository does not hold, and are they there?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.elsewhere.foreignread import ForeignVersion, foreign_files
from tensorrepo.repo.errors import Error, PermissionDenied
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorrepo.formats.dataset.elsewhere.outside import Outside
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry

ASKING_THREADS = 16
SHOWN_FILES = 8


def files_in_place(objects: ObjectSource, entries: Iterable[Entry]) -> list[ForeignVersion]:
    """The files outside the repository that datasets among `entries` need, by their URLs."""
    found = {
        file
        for entry in entries
        if entry.kind is Kind.DATASET
        for file in foreign_files(objects, entry.digest)
    }
    return sorted(found, key=lambda file: (file.url, file.size))


def files_text(files: list[ForeignVersion]) -> Iterator[str]:
    """Lines for people that name files in place; none without any."""
    if not files:
        return
    noun = "file" if len(files) == 1 else "files"
    size = sum(file.size for file in files)
    yield f"{len(files):,} {noun} in place of {size:,} bytes, which the repository does not hold:"
    for file in files[:SHOWN_FILES]:
        yield f"  {file.url} ({file.format}, {file.size:,} bytes)"
    if len(files) > SHOWN_FILES:
        yield f"  and {len(files) - SHOWN_FILES:,} more"


def look_at(outside: Outside, files: list[ForeignVersion]) -> tuple[list[str], int]:
    """What is wrong with files in place, and how many nobody here is allowed to look at.

    Only sizes and versions are compared: a file with other times may still have its hash.
    """

    def look(file: ForeignVersion) -> str | None:
        try:
            found = outside.stat(file.url)
        except PermissionDenied:
            return None
        except Error as error:
            return str(error)
        if found.size != file.size:
            return f"{file.url}: expected {file.size} bytes, found {found.size}"
        if found.etag != file.etag and not file.hashed:
            return f"{file.url}: expected version {file.etag}, found {found.etag}"
        return ""

    with ThreadPoolExecutor(ASKING_THREADS, "outside") as threads:
        told = list(threads.map(look, files))
    return [text for text in told if text], told.count(None)
