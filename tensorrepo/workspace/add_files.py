"""How are files staged as they are?"""

from __future__ import annotations

import mmap
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tensorrepo.formats.exchange.ignore import Ignore, read_ignore
from tensorrepo.repo.errors import InvalidInputError, PermissionDenied, StorageError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.repo.workspace import describe_files
from tensorrepo.workspace.request import Added, Request, existing_entry
from tensorrepo.workspace.session import RESERVED

if TYPE_CHECKING:
    from pathlib import Path

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.writer import ObjectWriter
    from tensorrepo.workspace.stage import WorkspaceStage

SMALL_FILE_BYTES = 1 << 20


def add_files(stage: WorkspaceStage, request: Request) -> list[Added]:
    """Store a file, or each file of a folder, as it is."""
    if request.options or request.format:
        raise InvalidInputError("--file stores files as they are: it takes no format, no options")
    parts = _files_of(request)
    requests = [Request(place, "files", name, request.mode) for name, place in parts.items()]
    for one in requests:
        existing_entry(stage, one)
    added = []
    for one in requests:
        size = one.source.stat().st_size
        stage.stage(one.path, Entry(Kind.BLOB, _put_file(stage.objects, one.source)))
        stage.describe(one.path, size_bytes=size, source=str(one.source))
        added.append(Added(one.path, 0, size, stage.drop_if_unchanged(one.path)))
    return added


def _files_of(request: Request) -> dict[str, Path]:
    """The files to add, by name; `.tensorrepoignore` leaves some out of a folder."""
    source = request.source
    if not source.is_dir():
        return {request.name: source}
    ignore = read_ignore(source)
    parts = {
        f"{request.name}/{name}": source / name
        for name in sorted(describe_files(source))
        if not _is_left_out(ignore, name)
    }
    if not parts:
        raise InvalidInputError(f"{source} is an empty folder: there is nothing to add")
    return parts


def _is_left_out(ignore: Ignore, name: str) -> bool:
    folders = [parent.as_posix() for parent in PurePosixPath(name).parents][:-1]
    return ignore.leaves_out(name, is_folder=False) or any(
        folder in RESERVED or ignore.leaves_out(folder, is_folder=True) for folder in folders
    )


def _put_file(writer: ObjectWriter, path: Path) -> Digest:
    """Store a file as one blob; a large one is mapped, so that memory stays small."""
    try:
        size = path.stat().st_size
        if size <= SMALL_FILE_BYTES:
            return writer.put(Kind.BLOB, path.read_bytes()).digest
        with path.open("rb") as file:
            # Not closed by hand: the writer looks at the map until `flush`, then it goes by itself.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        link = writer.put(Kind.BLOB, memoryview(mapped))
        writer.flush()
    except PermissionError as error:
        raise PermissionDenied(f"{path}: permission denied. Check who may read it.") from error
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return link.digest
