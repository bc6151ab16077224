"""SDK handle of the repository that a command works on.

Apart from `options`, for the SDK's handles bring all that datasets and models can do: twice the
time that a command needs to start which only looks around.
"""

from __future__ import annotations

from tensorrepo.cli.options import Call
from tensorrepo.context import Context, RepositoryOrigin
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repository import Repository
from tensorrepo.sdk import reopen


def handle_of(call: Call) -> Repository:
    """The repository of a command; who works in the workspace is its author."""
    session = call.session
    try:
        who = session.author()
    except InvalidInputError:
        who = None  # commands that only look need no author; the others say how to tell
    core = session.repository
    origin = RepositoryOrigin(core.url, author=who)
    return Repository(Context(core, origin, session.machine, reopen))
