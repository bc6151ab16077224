"""How does a query become a staged view?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.view import open_view
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.view import check_free, store_view
from tensorrepo.workspace.commit import forget_committed
from tensorrepo.workspace.request import new_writer
from tensorrepo.workspace.session import entry_at
from tensorrepo.workspace.staging import change, stage

if TYPE_CHECKING:
    from tensorrepo.formats.view import View
    from tensorrepo.query.sandbox import Limits
    from tensorrepo.repository import Repository
    from tensorrepo.workspace.session import Session


def view_path(name: str) -> str:
    """The path of a view."""
    return check_path(name if name.startswith("views/") else f"views/{name}")


def stage_view(
    session: Session,
    handle: Repository,
    name: str,
    sql: str,
    *,
    replace: bool,
    limits: Limits | None = None,
) -> View:
    """Ask for rows of what HEAD has, and stage which they are; `limits` as for `store_view`.

    Raises:
        ConflictError: the name is taken, and not `replace`. Nothing was staged.
        InvalidInputError: there is no commit yet, or the query chooses no rows of one dataset.
    """
    forget_committed(session)  # what a command that was cut off had committed
    path, tip = view_path(name), session.tip()
    if tip is None:
        raise InvalidInputError("there is no commit yet to choose rows from: `tensorrepo commit`")
    if entry_at(session, path) is not None and not replace:
        raise ConflictError(f"{path} exists: `tensorrepo view refresh {name}` asks it again")
    check_free(path, lambda other: entry_at(session, other) is not None)
    writer, since = new_writer(session)
    try:
        link = store_view(handle, writer, tip, sql, limits)
        view = open_view(writer, link.digest)
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    made = change(Entry(Kind.VIEW, link.digest), size_bytes=link.bytes, source=sql)
    stage(session, {path: made}, since)
    return view


def staged_view(session: Session, name: str) -> View:
    """A view of HEAD, or staged on it. Raises NotFoundError."""
    path = view_path(name)
    entry = entry_at(session, path)
    if entry is None:
        raise NotFoundError(f"no {path} in HEAD, and none is staged: `tensorrepo view ls`")
    if entry.kind is not Kind.VIEW:
        raise NotFoundError(f"{path} is a {entry.kind.label}, not a view")
    return open_view(session.repository.objects, entry.digest)
