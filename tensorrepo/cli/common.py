"""Options that many commands share, and how a command opens what it works on."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.main import AFTER_DASHES, OUTSIDE
from tensorrepo.connect import Machine
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.workspace.session import Session, open_session

RepoOption = Annotated[
    str | None, Option("--repo", metavar="URL", help="Look at this repository; needs no workspace.")
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


def started_in(context: Context) -> Machine:
    """This machine, as if the command had been started in the folder that -C names."""
    here = Machine(os.environ, Path.home(), Path.cwd(), context.meta.get(OUTSIDE, ()))
    directory = context.find_root().obj
    if directory is None:
        return here
    folder = (here.cwd / directory).resolve()
    if not folder.is_dir():
        raise NotFoundError(f"-C {directory}: there is no such folder")
    # -C is nearer than the environment: it says where the workspace is, too.
    environment = {key: at for key, at in here.environment.items() if key != "TENSORREPO_DIR"}
    return replace(here, cwd=folder, environment=environment)


def session_of(context: Context, url: str | None = None) -> Session:
    """The session of a command: of a URL given, or of the workspace around."""
    return open_session(started_in(context), url, warn=output.warning)


def resolve_path(context: Context, path: str) -> Path:
    """A path that the user typed, relative to where the command works."""
    return started_in(context).cwd / path


def model_path(name: str) -> str:
    """Path of a model that may be named without its space: ``net`` is ``models/net``."""
    return name if name.startswith("models/") else f"models/{name}"


def pair(text: str, option: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Name and value of an option such as ``--param lr=0.1``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidInputError(f"{option} {text!r:.80}: expected {form}")
    return name.strip(), value


def json_pair(text: str, option: str, form: str = "NAME=VALUE") -> tuple[str, Any]:
    """A pair whose value is JSON, or else text."""
    name, value = pair(text, option, form)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def split_words(
    context: Context, session: Session, words: list[str] | None
) -> tuple[list[str], tuple[str, ...]]:
    """Arguments of `log` and `diff` as (revisions, paths): paths come after ``--``.

    Without ``--`` a word with a slash that names no ref is a path, as git guesses, too.
    """
    refs = session.repository.log.refresh().state.refs
    revisions: list[str] = []
    paths: list[str] = []
    for word in words or ():
        named = any(f"{space}/{word}" in refs for space in ("heads", "tags"))
        is_path = "/" in word and ".." not in word and not named
        (paths if is_path or paths else revisions).append(word)
    return revisions, (*paths, *context.meta.get(AFTER_DASHES, ()))


def sides(words: list[str]) -> tuple[str, str] | None:
    """The two revisions of ``A..B``; a missing one is HEAD. None for anything else."""
    if len(words) != 1 or ".." not in words[0]:
        return None
    old, _, new = words[0].partition("..")
    if new.startswith("."):
        raise InvalidInputError(f"{words[0]!r}: three dots mean nothing here, write A..B")
    return old or "HEAD", new or "HEAD"
