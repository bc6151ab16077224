"""How do files that stay where they are become a staged dataset?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.adopt import Wish, adopt_files
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.workspace.commit import forget_committed
from tensorrepo.workspace.request import Added, Mode, Request, existing_entry, new_writer
from tensorrepo.workspace.staging import change, stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.workspace.session import Session


def adopt_and_stage(
    session: Session, name: str, mode: Mode, wish: Wish, progress: Callable[[int], None]
) -> Added:
    """Stage a dataset whose rows stay in files.

    Args:
        session: the workspace and its repository.
        name: of the dataset.
        mode: what to do if it exists: APPEND or REPLACE; NEW refuses.
        wish: which files.
        progress: told the bytes looked at so far.

    Raises:
        ConflictError: the name exists and no mode was given, or is no dataset.
        InvalidInputError, UnsupportedError: a file cannot be adopted; nothing was staged.
    """
    request = Request(Path(wish.paths[0]), "datasets", name, mode)
    check_path(request.path)
    forget_committed(session)  # what a command that was cut off had committed
    writer, since = new_writer(session)
    existing = existing_entry(session, request)
    if existing is not None and existing.kind is not Kind.DATASET:
        raise ConflictError(f"{request.path} is a {existing.kind.label}, not a dataset")
    try:
        appends = mode is Mode.APPEND and existing is not None
        base = open_dataset(writer, existing.digest) if appends and existing else None
        made = adopt_files(writer, wish, session.machine, base=base, progress=progress)
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    entry = Entry(Kind.DATASET, made.link.digest)
    shown = change(entry, rows=made.rows, size_bytes=made.bytes, source=wish.paths[0])
    stage(session, {request.path: shown}, since)
    return Added(request.path, made.rows, made.bytes, changed=True, notes=made.notes)
