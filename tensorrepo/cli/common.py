"""Options that many commands share, and how a command opens what it works on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorrepo.repo.errors import NotFoundError
from tensorrepo.sdk import machine
from tensorrepo.workspace.session import Session, open_session

if TYPE_CHECKING:
    from tensorrepo.connect import Machine

RepoOption = Annotated[
    str | None,
    typer.Option("--repo", metavar="URL", help="Look at this repository; needs no workspace."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def started_in(context: typer.Context) -> Machine:
    """This machine, as if the command had been started in the folder that -C names."""
    here = machine()
    directory = context.find_root().obj
    if directory is None:
        return here
    folder = (here.cwd / directory).resolve()
    if not folder.is_dir():
        raise NotFoundError(f"-C {directory}: there is no such folder")
    return replace(here, cwd=folder)


def session_of(context: typer.Context, url: str | None = None) -> Session:
    """The session of a command: of a URL given, or of the workspace around."""
    return open_session(started_in(context), url)


def place(context: typer.Context, path: str) -> Path:
    """A path that the user typed, relative to where the command works."""
    return started_in(context).cwd / path
