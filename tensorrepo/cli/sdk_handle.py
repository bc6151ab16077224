"""SDK handle of the repository that a command works on.

Apart from `options`, for the SDK's handles bring all that datasets and models can do: twice the
time that a command needs to start which only looks around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.cli.options import session_of
from tensorrepo.context import Context as RepositoryContext
from tensorrepo.context import RepositoryOrigin
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repository import Repository
from tensorrepo.sdk import reopen

if TYPE_CHECKING:
    from typer import Context


def handle_of(context: Context, url: str | None = None) -> Repository:
    """The repository of a command; who works in the workspace is its author."""
    session = session_of(context, url)
    try:
        who = session.author()
    except InvalidInputError:
        who = None  # commands that only look need no author; the others say how to tell
    core = session.repository
    origin = RepositoryOrigin(core.url, author=who)
    return Repository(RepositoryContext(core, origin, session.machine, reopen))
