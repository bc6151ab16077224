"""Adding of plain files, and of folders of them: stored as they are, and staged together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tensorrepo.formats.common.arguments import counted
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
    found = [_files_of(request) for request in requests]
    files = [one for some, _ in found for one in some]
    with begin_stage(session) as stage:
        stored = _store_files(stage, files, progress)
    track(session, ((one, digest) for _, one, digest in stored))
    *others, last = (told for told, _, _ in stored)
    notes = tuple(note for _, some in found for note in some)
    return [*others, replace(last, notes=notes)]


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


def _files_of(request: AddRequest) -> tuple[list[AddRequest], list[str]]:
    """A request for each file, and notes; `.tensorrepoignore` leaves some of a folder out."""
    source = request.source
    check_source(request)
    if request.options or request.format:
        raise InvalidInputError("--file stores files as they are: it takes no format, no options")
    if not source.is_dir():
        return [request], []
    ignore = read_ignore(source)
    wanted = [name for name in sorted(describe_files(source)) if not _is_left_out(ignore, name)]
    # Of a pipe or a device, to which a link may lead too, nobody knows whether it ends.
    names = [name for name in wanted if (source / name).is_file()]
    if not names:
        raise InvalidInputError(f"{source} holds no files: there is nothing to add")
    files = [
        AddRequest(source / name, "files", f"{request.name}/{name}", request.mode) for name in names
    ]
    links, notes = links_under(source)
    notes += _notes_of_left_out(source, wanted, links, ignore)
    kept = {*names}
    notes += notes_of_links(source, (link for link in links if link in kept))
    return files, notes


def _notes_of_left_out(
    source: Path, wanted: Iterable[str], links: Iterable[str], ignore: Ignore
) -> Iterator[str]:
    """What is told of names that are no files, and of folders elsewhere."""
    if odd := [name for name in wanted if not (source / name).is_file()]:
        yield (
            f"left out {counted(len(odd), 'name')} of no file, such as a link that leads nowhere: "
            f"{source / odd[0]}"
        )
    folders = [name for name in links if (source / name).is_dir()]
    if kept := [name for name in folders if not ignore.leaves_out(name, is_folder=True)]:
        yield f"left out {counted(len(kept), 'link')} to folders: {source / kept[0]}"


def links_under(folder: Path) -> tuple[list[str], list[str]]:
    """Symbolic links below a folder, to files and to folders, by their path in it.

    Returns:
        The links, and what is told of folders that cannot be read.
    """
    unread: list[OSError] = []
    links = sorted(
        Path(parent, name).relative_to(folder).as_posix()
        for parent, folders, files in os.walk(folder, onerror=unread.append)
        for name in (*folders, *files)
        if os.path.islink(os.path.join(parent, name))
    )
    if not unread:
        return links, []
    first, counted_folders = unread[0], counted(len(unread), "folder")
    why = f"{first.filename}: {first.strerror}"
    return links, [f"left out {counted_folders} that cannot be read: {why}"]


def notes_of_links(folder: Path, links: Iterable[str]) -> Iterator[str]:
    """What is told of links that lead out of the folder that is added.

    Who made the folder chose them, and not who adds it: in a stranger's archive one may lead to a
    key.
    """
    inside = folder.resolve()
    outside = [
        f"{folder / link} -> {target}"
        for link in links
        if not (target := Path(os.path.realpath(folder / link))).is_relative_to(inside)
    ]
    if outside:
        by = counted(len(outside), "link")
        yield f"by {by} this holds what lies outside of {folder}: {outside[0]}"


def _is_left_out(ignore: Ignore, name: str) -> bool:
    folders = [parent.as_posix() for parent in PurePosixPath(name).parents][:-1]
    return ignore.leaves_out(name, is_folder=False) or any(
        folder in RESERVED or ignore.leaves_out(folder, is_folder=True) for folder in folders
    )
