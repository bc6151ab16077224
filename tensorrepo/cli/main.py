"""Command line: lazy table of commands, options of the root, exit codes of failures.

Commands are loaded when they are called: `tensorrepo --help` needs this table alone, so that it
answers at once. A failure becomes one message on standard error and an exit code by its kind.
Scripts rely on these numbers: a kind may be added, no number ever changes its meaning.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from errno import EROFS
from inspect import cleandoc
from types import MappingProxyType, NoneType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.repo.errors import Error, NotFoundError, PermissionDenied, StorageError

DONE = 0
NOTHING_TO_DO = 1  # also: differences found, where --exit-code asked for it
USAGE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h: what happened is our mistake
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE

EXIT_CODES: Mapping[str, int] = MappingProxyType(
    {
        "invalid-input": USAGE,
        "not-found": 3,
        "no-such-row": 3,
        "expired": 3,  # was there once; to a script it is gone alike
        "purged": 3,
        "conflict": 4,
        "corrupt": 5,
        "rewound": 5,  # the log is not what it was: nothing read from it can be trusted
        "permission": 6,
        "storage": 7,
        "unsupported": 8,
        "outcome-unknown": 9,
    }
)


def exit_code(error: Error) -> int:
    """The code that the command line ends with after `error`."""
    return EXIT_CODES[error.kind]


START, CHANGE, LOOK, BRANCH, MORE = (
    "Start", "Change", "Look", "Branch and go back", "Care and settings",
)  # fmt: skip

# name: (one line of help, panel); a group's name stands before
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("Make a repository and a workspace here.", START),
    "config": ("Show or set your name, address and other settings.", START),
    "add": ("Read a file or folder and stage it as a dataset, model or file.", CHANGE),
    "adopt": ("Stage a dataset whose rows stay in the files that they are in.", CHANGE),
    "update": ("Give rows of a dataset other values.", CHANGE),
    "delete": ("Delete rows of a dataset.", CHANGE),
    "column": ("Add, drop, rename or widen a column of a dataset.", CHANGE),
    "set": ("Note properties of a dataset: a licence, a source, its key.", CHANGE),
    "compact": ("Write the worn parts of a dataset anew.", CHANGE),
    "rm": ("Stage the removal of an entry.", CHANGE),
    "mv": ("Stage another name for an entry; no bytes move.", CHANGE),
    "restore": ("Unstage, or stage an entry as it was at another commit.", CHANGE),
    "commit": ("Record what is staged.", CHANGE),
    "merge": ("Join another branch into this one.", CHANGE),
    "revert": ("Take back what one commit changed, as a new commit.", CHANGE),
    "cherry-pick": ("Repeat here what commits changed elsewhere.", CHANGE),
    "status": ("Show what is staged, what changed on disk, and where you are.", LOOK),
    "log": ("Show commits, the newest first.", LOOK),
    "diff": ("Show what differs between two commits, or since the last one.", LOOK),
    "show": ("Show one commit, or one entry of it.", LOOK),
    "blame": ("Show which commits gave a row of a dataset its values.", LOOK),
    "ls": ("List the entries of a commit.", LOOK),
    "cat": ("Print an entry: rows of a dataset, tensors of a model, a file.", LOOK),
    "lineage": ("Show what something came from, and what came from it.", LOOK),
    "runs ls": ("List trainings, by what they reached.", LOOK),
    "runs show": ("Show what a training read, made and logged.", LOOK),
    "runs compare": ("Compare trainings side by side.", LOOK),
    "sql": ("Ask datasets and the catalog in SQL.", LOOK),
    "view ls": ("List the views of a commit.", LOOK),
    "view show": ("Show what a view is of.", LOOK),
    "view create": ("Choose rows of a dataset by a query, and stage which.", CHANGE),
    "view refresh": ("Ask the query of a view again, and stage the answer.", CHANGE),
    "stream": ("Stream a dataset as training would, and show how fast.", LOOK),
    "model ls": ("List the models of a commit.", LOOK),
    "model desc": ("Describe a model: layers, architecture, metrics, lineage.", LOOK),
    "model diff": ("Compare two models, and how far tensors moved.", LOOK),
    "model verify": ("Read all of a model and check every byte.", LOOK),
    "model du": ("Show what models take on disk, and what they share.", LOOK),
    "model similar": ("Rank the stored models by how like one they are.", LOOK),
    "model find": ("Find models by what their architecture has.", LOOK),
    "model donors": ("Rank models by how they begin like an architecture.", LOOK),
    "model owners": ("List the models that hold a tensor.", LOOK),
    "model add": ("Read a model from a file or folder, and stage it.", CHANGE),
    "model slice": ("Stage a part of a model as a model of its own.", CHANGE),
    "model construct": ("Stage a model of a new architecture.", CHANGE),
    "model merge": ("Blend the weights of models, and stage the result.", CHANGE),
    "model repack": ("Store models anew, in fewer bytes.", MORE),
    "model export": ("Write a model in a foreign format.", LOOK),
    "registry ls": ("List the registered models.", LOOK),
    "registry show": ("Show a registered model and its versions.", LOOK),
    "registry create": ("Name a model before its first version.", CHANGE),
    "registry register": ("Make a model of a commit the next version.", CHANGE),
    "registry alias": ("Let an alias name a version, or move it.", CHANGE),
    "registry history": ("Show where an alias was.", LOOK),
    "registry protect": ("Refuse to move an alias.", CHANGE),
    "registry describe": ("Say what a model or a version is.", CHANGE),
    "registry rm": ("Remove a version, or a model with all of them.", CHANGE),
    "branch": ("List, make, rename or delete branches.", BRANCH),
    "tag": ("List, make or delete tags.", BRANCH),
    "switch": ("Put the workspace on another branch.", BRANCH),
    "checkout": ("Switch, or write entries as ordinary files.", BRANCH),
    "export": ("Write an entry in a foreign format.", BRANCH),
    "undo": ("Take back your last change of this branch.", BRANCH),
    "redo": ("Take back the last undo.", BRANCH),
    "reset": ("Move this branch to another commit.", BRANCH),
    "catalog status": ("Show how the SQL catalog stands to the repository.", MORE),
    "catalog upgrade": ("Bring the catalog's tables to this version's.", MORE),
    "catalog rebuild": ("Make the catalog anew.", MORE),
    "catalog verify": ("Compare the catalog with one made anew.", MORE),
    "doctor": ("Check the repository, this machine and the workspace.", MORE),
    "resolve": ("Find out what became of a commit whose outcome was unknown.", MORE),
    "version": ("Show versions of tensorrepo and what it stands on.", MORE),
}

# (module, its commands): loaded when one of them is called
MODULES = (
    ("tensorrepo.cli.setup", "init, config"),
    ("tensorrepo.cli.staging", "add, rm, mv, restore"),
    ("tensorrepo.cli.staging", "adopt"),
    ("tensorrepo.cli.dataset", "update, delete, column, set, compact"),
    ("tensorrepo.cli.commit", "commit, merge"),
    ("tensorrepo.cli.commit", "revert, cherry-pick"),
    ("tensorrepo.cli.entries", "status, ls, cat"),
    ("tensorrepo.cli.history", "log"),
    ("tensorrepo.cli.diff", "diff, show"),
    ("tensorrepo.cli.diff", "blame"),
    ("tensorrepo.cli.runs", "lineage"),
    ("tensorrepo.cli.runs", "runs ls, runs show, runs compare"),
    ("tensorrepo.cli.sql", "sql"),
    ("tensorrepo.cli.sql", "view ls, view show, view create, view refresh"),
    ("tensorrepo.cli.stream", "stream"),
    ("tensorrepo.cli.model", "model ls, model desc, model diff, model verify"),
    ("tensorrepo.cli.model", "model du, model similar"),
    ("tensorrepo.cli.catalog", "model find, model donors, model owners"),
    ("tensorrepo.cli.model_make", "model add, model slice, model merge"),
    ("tensorrepo.cli.model_make", "model construct"),
    ("tensorrepo.cli.model_make", "model repack"),
    ("tensorrepo.cli.checkout", "model export"),
    ("tensorrepo.cli.registry", "registry ls, registry show, registry create, registry register"),
    ("tensorrepo.cli.registry", "registry alias, registry history, registry protect"),
    ("tensorrepo.cli.registry", "registry describe, registry rm"),
    ("tensorrepo.cli.branches", "branch, tag"),
    ("tensorrepo.cli.branches", "switch, undo, redo, reset"),
    ("tensorrepo.cli.checkout", "checkout, export"),
    ("tensorrepo.cli.catalog", "catalog status, catalog upgrade, catalog rebuild, catalog verify"),
    ("tensorrepo.cli.setup", "doctor, resolve, version"),
)
MODULE_OF = {name: module for module, names in MODULES for name in names.split(", ")}

# name: (one line of help, panel)
GROUPS: dict[str, tuple[str, str]] = {
    "catalog": ("Look after the SQL catalog, which is a cache.", MORE),
    "model": ("Describe, compare, cut and combine models.", LOOK),
    "runs": ("Look at trainings: metrics, parameters, inputs, outputs.", LOOK),
    "view": ("Choose rows of datasets by queries, and keep which.", CHANGE),
    "registry": ("Number versions of models, and name them by aliases.", LOOK),
}

AFTER_DASHES = "tensorrepo.after-dashes"  # key of the context's memory
OUTSIDE = "tensorrepo.outside"  # another one
WITH_PATHS = ("diff", "log")


class PathsCommand(TyperCommand):
    """A command that keeps apart what stands after ``--``: paths, whatever they look like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[AFTER_DASHES] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


class LazyCommands(TyperGroup):
    """A group whose commands are imported when one of them is called, or asked for its help."""

    group = ""  # the word before its commands, "" at the top

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        if self.group:
            return [name.split()[1] for name in COMMANDS if name.startswith(f"{self.group} ")]
        return list(dict.fromkeys(name.split()[0] for name in COMMANDS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """A light stand-in, enough for the list of commands; `resolve_command` loads the real."""
        full = f"{self.group} {cmd_name}".strip()
        if full in GROUPS:
            line, panel = GROUPS[full]
            return TyperGroup(name=cmd_name, help=line, rich_help_panel=panel)
        if full not in COMMANDS:
            return None
        line, panel = COMMANDS[full]
        return TyperCommand(cmd_name, help=line, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        near = [] if args[0] in names else get_close_matches(args[0], names)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or name is None:
            return name, None, rest
        full = f"{self.group} {name}".strip()
        return name, load_group(full) if full in GROUPS else load_command(full), rest


def load_group(name: str) -> Any:
    """The commands that begin with one word: ``tensorrepo model ...``."""
    line, _ = GROUPS[name]
    lazy = type(f"{name.title()}Commands", (LazyCommands,), {"group": name})
    single = typer.Typer(
        cls=lazy,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=f"[bold]tensorrepo {name} COMMAND --help[/bold] ends in examples.",
    )
    single.callback(help=line)(lambda: None)
    return typer.main.get_group(single)


def load_command(name: str) -> Any:
    """The real command, from its module. Its docstring is its help, "Examples:" its end."""
    module = importlib.import_module(MODULE_OF[name])
    function: Callable[..., None] = getattr(module, f"{re.sub('[ -]', '_', name)}_command")
    text, _, examples = cleandoc(function.__doc__ or "").partition("Examples:")
    paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    lines = [line.strip() for line in examples.strip().splitlines()]
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(
        name.rsplit(maxsplit=1)[-1],
        cls=PathsCommand if name in WITH_PATHS else TyperCommand,
        help="\n\n".join(paragraphs),
        epilog="[bold]Examples[/bold]\n\n" + "\n".join(f"  {line}" for line in lines),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(guarded(function))
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with [bold]tensorrepo init[/bold]. "
    "[bold]tensorrepo COMMAND --help[/bold] ends in examples.",
)


def show_version(wanted: bool) -> None:
    if wanted:
        output.line(f"tensorrepo {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    directory: Annotated[
        str | None, typer.Option("-C", metavar="DIR", help="Work as if started in DIR.")
    ] = None,
    allow_outside: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-outside",
            metavar="PREFIX",
            help="Read files in place and links below this folder or URL.",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback has answered by now
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Versioned datasets and models: git and lakehouse in one."""
    context.obj = directory
    context.meta[OUTSIDE] = tuple(allow_outside or ())


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with failures as one message and an exit code by kind."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            output.flush()  # here, where a reader that left can be told from a mistake
        except Error as error:
            output.failure(error)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt as stopped:
            # An append that was interrupted under way has raised CommitOutcomeUnknown instead.
            hint = str(stopped) or "`tensorrepo status` shows where things stand"
            output.note(f"interrupted. {hint}")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            output.give_up()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            failure = _of_system(error)
            output.failure(failure)
            raise typer.Exit(exit_code(failure)) from None
        except typer.Exit:
            raise
        except Exception as error:
            if os.environ.get("TENSORREPO_DEBUG"):
                raise
            output.bug(error)
            raise typer.Exit(BUG) from None

    return run


def _of_system(error: OSError) -> Error:
    """What the operating system refused, as one of our errors."""
    where = f"{error.filename}: " if error.filename else ""
    text = f"{where}{error.strerror or error}"
    if isinstance(error, PermissionError) or error.errno == EROFS:
        return PermissionDenied(f"{text}. Check who may use it, or choose another place.")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(text)
    return StorageError(text)


# The client of remote stores runs threads of its own. One of them may call into Python while the
# interpreter is being torn down, which aborts a process whose work is long done (seen once in some
# hundred commands against S3).
REMOTE = "obstore"


def main() -> None:
    """The entry point of the `tensorrepo` script."""
    try:
        app()
    except SystemExit as ending:
        if REMOTE not in sys.modules or not isinstance(ending.code, (int, NoneType)):
            raise
        output.leave(ending.code or 0)
