"""Options that commands share, the session they open, and completion of names by the shell.

Completion is called by the shell at every press of the tab key: it never prints, never raises, and
looks only at a repository that answers at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from inspect import Parameter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.parsing import AFTER_DASHES, OUTSIDE
from tensorrepo.connect import Machine
from tensorrepo.policy import with_policy
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import base_name, split_path
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import iterate
from tensorrepo.repo.registry.versions import registered
from tensorrepo.workspace.session import SPACES, WorkspaceSession, open_session

RepoOption = Annotated[
    str | None, Option("--repo", metavar="URL", help="Look at this repository; needs no workspace.")
]
EMPTY = Parameter.empty
Declared = dict[str, tuple[Any, Any]]  # parameters by name: annotation and default
LogOption = Annotated[
    str | None, Option("--log", metavar="DATABASE", help="Keep its log in PostgreSQL or SQLite.")
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


@dataclass(frozen=True)
class CommandCall:
    """A command as it was called: where it works, and how it answers.

    `load_command` makes it of the options in `DECLARED`, which a command with one has too.
    """

    DECLARED: ClassVar[Declared] = {"context": (Context, EMPTY), "as_json": (JsonOption, False)}
    context: Context
    as_json: bool = False
    repo: str | None = None

    @cached_property
    def machine(self) -> Machine:
        """This machine, as if the command had been started in the folder that -C names."""
        return started_in(self.context)

    @cached_property
    def session(self) -> WorkspaceSession:
        """Repository of the URL given, or of the workspace around."""
        return open_session(self.machine, self.repo, warn=output.warning)

    def path(self, text: str) -> Path:
        """A path that the user typed, relative to where the command works."""
        return self.machine.path(text)

    def answer(self, value: Any, *texts: str) -> None:
        """What the command did: lines for people, `value` for programs."""
        output.json_value(value) if self.as_json else output.lines(texts)

    def show(self, records: Iterable[Any], columns: Mapping[str, Any], **options: Any) -> None:
        """Records as a table for people, or as JSON; see `output.show`."""
        output.show(records, columns, as_json=self.as_json, **options)


class RepoCall(CommandCall):
    """A call of a command that looks at any repository, and needs no workspace."""

    DECLARED: ClassVar[Declared] = {
        "context": (Context, EMPTY),
        "repo": (RepoOption, None),
        "as_json": (JsonOption, False),
    }


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


def signing_repository(call: CommandCall) -> RepositoryCore:
    """The repository of a command that signs what it makes."""
    session = call.session
    config = None if session.workspace is None else session.workspace.config_file
    return with_policy(session.repository, call.machine, config, sign=True)


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


def split_words(call: CommandCall, words: list[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Arguments of `log` and `diff` as (revisions, paths): paths come after ``--``.

    Without ``--`` a word with a slash that names no ref is a path, as git guesses, too.
    """
    refs = call.session.repository.log.refresh().state.refs
    revisions: list[str] = []
    paths: list[str] = []
    for word in words or ():
        named = any(f"{space}/{base_name(word)}" in refs for space in ("heads", "tags"))
        is_path = "/" in word and ".." not in word and not named
        (paths if is_path or paths else revisions).append(word)
    return revisions, (*paths, *call.context.meta.get(AFTER_DASHES, ()))


def sides(words: list[str]) -> tuple[str, str] | None:
    """The two revisions of ``A..B``; a missing one is HEAD. None for anything else."""
    if len(words) != 1 or ".." not in words[0]:
        return None
    old, _, new = words[0].partition("..")
    if new.startswith("."):
        raise InvalidInputError(f"{words[0]!r}: three dots mean nothing here, write A..B")
    return old or "HEAD", new or "HEAD"


def entry_hint(
    session: WorkspaceSession, ref: str, hint: str, error: NotFoundError
) -> NotFoundError:
    """The error of a ref that is not there: `hint`, with the path, if it names an entry."""
    try:
        _, path, _ = session.find(ref)
    except NotFoundError:
        return error
    return NotFoundError(hint.replace("{path}", path))


MANY = 1000


def complete_branch(context: Context, incomplete: str) -> list[str]:
    """Names of branches."""
    return _starting(_refs(context, (BRANCHES,)), incomplete)


def complete_tag(context: Context, incomplete: str) -> list[str]:
    """Names of tags."""
    return _starting(_refs(context, (TAGS,)), incomplete)


def complete_ref(context: Context, incomplete: str) -> list[str]:
    """Branches, tags and HEAD; after ``A..`` the other side."""
    before, dots, last = incomplete.rpartition("..")
    return [f"{before}{dots}{name}" for name in _starting(_all_refs(context), last)]


def complete_registered(context: Context, incomplete: str) -> list[str]:
    """Names of registered models."""
    try:
        names = list(registered(_session(context).repository.log.refresh()))
    except (Error, OSError):
        names = []
    return _starting(names, incomplete)


def complete_entry(context: Context, incomplete: str) -> list[str]:
    """Entries of HEAD, and what is staged."""
    return _starting(_entries(context, None), incomplete)


def complete_place(context: Context, incomplete: str) -> list[str]:
    """``[REF:]PATH``: entries of HEAD, refs with a colon, and after it entries of that commit."""
    ref, path = split_path(incomplete)
    if path is not None:
        return [f"{ref}:{name}" for name in _starting(_entries(context, ref), path)]
    refs = [f"{name}:" for name in _all_refs(context)]
    return _starting([*_entries(context, None), *refs], incomplete)


def complete_ref_or_entry(context: Context, incomplete: str) -> list[str]:
    """Refs first, entries after them."""
    return complete_ref(context, incomplete) + complete_entry(context, incomplete)


def _all_refs(context: Context) -> list[str]:
    return ["HEAD", *_refs(context, (BRANCHES, TAGS))]


def _refs(context: Context, spaces: tuple[str, ...]) -> list[str]:
    try:
        refs = _session(context).repository.log.refresh().state.refs
    except (Error, OSError):
        return []
    return [ref.split("/", 1)[1] for ref in sorted(refs) if ref.startswith(spaces)]


def _entries(context: Context, ref: str | None) -> list[str]:
    try:
        session = _session(context)
        tree = session.resolve(ref).commit.tree
        paths = [path for path, _ in islice(iterate(session.repository.objects, tree), MANY)]
        staged = list(session.workspace.staging().entries) if session.workspace and not ref else []
    except (Error, OSError):
        return []
    names = list(dict.fromkeys([*paths, *staged]))
    short = [path.partition("/")[2] for path in names if path.partition("/")[0] in SPACES]
    return [*names, *short]


def _session(context: Context) -> WorkspaceSession:
    return open_session(started_in(context), context.params.get("repo"))


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


StoredModelArgument = Annotated[
    str, Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place)
]
ExecutorOption = Annotated[
    str, Option("--executor", help="Who stores rows: thread, or ray: the workers of a cluster.")
]
RayAddressOption = Annotated[
    str | None,
    Option(
        "--ray-address",
        metavar="ADDRESS",
        help="Of the cluster, with --executor ray; else RAY_ADDRESS, else this machine's cores.",
    ),
]
FormatOption = Annotated[
    str | None, Option("--format", help="Its format; else told by suffix and content.")
]
FormatSettings = Annotated[
    list[str] | None, Option("-o", "--option", metavar="KEY=VALUE", help="Of the format.")
]

WhereOption = Annotated[
    str | None, Option("--where", metavar="EXPR", help="Rows for which this holds.")
]
ColumnsOption = Annotated[
    str | None, Option("--columns", metavar="COL[,COL]", help="Only these, in this order.")
]


def column_names(columns: str | None) -> list[str] | None:
    """The names that --columns gives; None where it is not given."""
    return None if columns is None else [name.strip() for name in columns.split(",")]


VerticalOption = Annotated[bool, Option("--vertical", help="One value a line, row after row.")]
WholeBytesOption = Annotated[
    str,
    Option("--bytes", metavar="SIZE", help="With --json: larger values of bytes are a SHA-256."),
]


def stored_model(flag: str, what: str) -> Any:
    """An option that names a stored model."""
    return Option(flag, metavar="[REF:]NAME", help=what, autocompletion=complete_place)
