"""Adding of plain files, and of folders of them: stored as they are, and staged together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from tensorrepo.formats.exchange.base import Ignore, read_ignore
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.verbs.exchange import SourceProgress
from tensorrepo.verbs.files import put_file
from tensorrepo.workspace.add_request import Added, AddRequest, check_source, existing_entry
from tensorrepo.workspace.session import RESERVED, WorkspaceSession
from tensorrepo.workspace.staging import WorkspaceStage, begin_stage
from tensorrepo.workspace.state import describe_files
from tensorrepo.workspace.tracking import track


def add_files(
    session: WorkspaceSession, requests: Iterable[AddRequest], progress: SourceProgress
) -> list[Added]:
    """Store files, and each file of folders, as they are, and stage them together.

    Raises what `add` raises.
    """
    files = [one for request in requests for one in _files_of(request)]
    with begin_stage(session) as stage:
        stored = _store_files(stage, files, progress)
    track(session, ((one, digest) for _, one, digest in stored))
    return [told for told, _, _ in stored]


def _store_files(
    stage: WorkspaceStage, requests: Sequence[AddRequest], progress: SourceProgress
) -> list[tuple[Added, AddRequest, Digest]]:
    """Store each file; with each, what its path holds now."""
    for one in requests:
        existing_entry(stage, one)
    added, done = [], 0
    sizes = [one.source.stat().st_size for one in requests]
    total = sum(sizes)
    for one, size in zip(requests, sizes, strict=True):
        progress(done, total)
        entry = put_file(stage.objects, one.source)
        stage.stage(one.path, entry)
        stage.describe(one.path, size_bytes=size, source=one.place)
        done += size
        progress(done, total)
        told = Added(one.path, 0, size, stage.drop_if_unchanged(one.path))
        added.append((told, one, entry.digest))
    return added


def _files_of(request: AddRequest) -> list[AddRequest]:
    """A request for each file to add; `.tensorrepoignore` leaves some out of a folder."""
    source = request.source
    check_source(request)
    if request.options or request.format:
        raise InvalidInputError("--file stores files as they are: it takes no format, no options")
    if not source.is_dir():
        return [request]
    ignore = read_ignore(source)
    names = [name for name in sorted(describe_files(source)) if not _is_left_out(ignore, name)]
    if not names:
        raise InvalidInputError(f"{source} is an empty folder: there is nothing to add")
    return [
        AddRequest(source / name, "files", f"{request.name}/{name}", request.mode) for name in names
    ]


def _is_left_out(ignore: Ignore, name: str) -> bool:
    folders = [parent.as_posix() for parent in PurePosixPath(name).parents][:-1]
    return ignore.leaves_out(name, is_folder=False) or any(
        folder in RESERVED or ignore.leaves_out(folder, is_folder=True) for folder in folders
    )
