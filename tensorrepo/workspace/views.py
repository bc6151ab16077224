"""How does a query become a staged view?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.view import open_view
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects import Kind
from tensorrepo.verbs.views import create_view
from tensorrepo.workspace.session import entry_at
from tensorrepo.workspace.stage import begin_stage

if TYPE_CHECKING:
    from tensorrepo.context import Context
    from tensorrepo.formats.view import View
    from tensorrepo.query.sandbox import Limits
    from tensorrepo.workspace.session import Session


def view_path(name: str) -> str:
    """The path of a view."""
    return check_path(name if name.startswith("views/") else f"views/{name}")


def stage_view(
    session: Session,
    context: Context,
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
    with begin_stage(session) as stage:
        path, tip = view_path(name), session.tip()
        if tip is None:
            raise InvalidInputError(
                "there is no commit yet to choose rows from: `tensorrepo commit`"
            )
        if stage.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: `tensorrepo view refresh {name}` asks it again")
        link = create_view(stage, context, path, tip, sql, limits)
        stage.describe(path, size_bytes=link.bytes, source=sql)
        return open_view(stage.objects, link.digest)


def staged_view(session: Session, name: str) -> View:
    """A view of HEAD, or staged on it. Raises NotFoundError."""
    path = view_path(name)
    entry = entry_at(session, path)
    if entry is None:
        raise NotFoundError(f"no {path} in HEAD, and none is staged: `tensorrepo view ls`")
    if entry.kind is not Kind.VIEW:
        raise NotFoundError(f"{path} is a {entry.kind.label}, not a view")
    return open_view(session.repository.objects, entry.digest)
