"""Which command was meant, and what does the shell get told?

Commands are loaded when they are called: `tensorrepo --help` needs this table alone, so that it
answers at once. A failure becomes one message on standard error and an exit code by its kind.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from difflib import get_close_matches
from errno import EROFS
from inspect import cleandoc
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.cli.exits import BROKEN_PIPE, BUG, INTERRUPTED, exit_code
from tensorrepo.repo.errors import Error, NotFoundError, PermissionDenied, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

START, CHANGE, LOOK, BRANCH, MORE = (
    "Start", "Change", "Look", "Branch and go back", "Care and settings",
)  # fmt: skip

# name: (module under tensorrepo.cli, one line of help, panel); a group's name stands before
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("start", "Make a repository and a workspace here.", START),
    "config": ("start", "Show or set your name, address and other settings.", START),
    "add": ("stage", "Read a file or folder and stage it as a dataset, model or file.", CHANGE),
    "adopt": ("adopt", "Stage a dataset whose rows stay in the files that they are in.", CHANGE),
    "update": ("change", "Give rows of a dataset other values.", CHANGE),
    "delete": ("change", "Delete rows of a dataset.", CHANGE),
    "column": ("change", "Add, drop, rename or widen a column of a dataset.", CHANGE),
    "set": ("change", "Note properties of a dataset: a licence, a source, its key.", CHANGE),
    "compact": ("change", "Write the worn parts of a dataset anew.", CHANGE),
    "rm": ("stage", "Stage the removal of an entry.", CHANGE),
    "mv": ("stage", "Stage another name for an entry; no bytes move.", CHANGE),
    "restore": ("stage", "Unstage, or stage an entry as it was at another commit.", CHANGE),
    "commit": ("commit", "Record what is staged.", CHANGE),
    "merge": ("commit", "Join another branch into this one.", CHANGE),
    "revert": ("pick", "Take back what one commit changed, as a new commit.", CHANGE),
    "cherry-pick": ("pick", "Repeat here what commits changed elsewhere.", CHANGE),
    "status": ("look", "Show what is staged, what changed on disk, and where you are.", LOOK),
    "log": ("log", "Show commits, the newest first.", LOOK),
    "diff": ("diff", "Show what differs between two commits, or since the last one.", LOOK),
    "show": ("diff", "Show one commit, or one entry of it.", LOOK),
    "blame": ("blame", "Show which commits gave a row of a dataset its values.", LOOK),
    "ls": ("look", "List the entries of a commit.", LOOK),
    "cat": ("look", "Print an entry: rows of a dataset, tensors of a model, a file.", LOOK),
    "lineage": ("lineage", "Show what something came from, and what came from it.", LOOK),
    "runs ls": ("runs", "List trainings, by what they reached.", LOOK),
    "runs show": ("runs", "Show what a training read, made and logged.", LOOK),
    "runs compare": ("runs", "Compare trainings side by side.", LOOK),
    "sql": ("sql", "Ask datasets and the catalog in SQL.", LOOK),
    "view ls": ("view", "List the views of a commit.", LOOK),
    "view show": ("view", "Show what a view is of.", LOOK),
    "view create": ("view", "Choose rows of a dataset by a query, and stage which.", CHANGE),
    "view refresh": ("view", "Ask the query of a view again, and stage the answer.", CHANGE),
    "stream": ("stream", "Stream a dataset as training would, and show how fast.", LOOK),
    "model ls": ("model", "List the models of a commit.", LOOK),
    "model desc": ("model", "Describe a model: layers, architecture, metrics, lineage.", LOOK),
    "model diff": ("model", "Compare two models, and how far tensors moved.", LOOK),
    "model verify": ("model", "Read all of a model and check every byte.", LOOK),
    "model du": ("model_space", "Show what models take on disk, and what they share.", LOOK),
    "model similar": ("model_space", "Rank the stored models by how like one they are.", LOOK),
    "model find": ("model_find", "Find models by what their architecture has.", LOOK),
    "model donors": ("model_find", "Rank models by how they begin like an architecture.", LOOK),
    "model owners": ("model_find", "List the models that hold a tensor.", LOOK),
    "model add": ("model_make", "Read a model from a file or folder, and stage it.", CHANGE),
    "model slice": ("model_make", "Stage a part of a model as a model of its own.", CHANGE),
    "model construct": ("model_construct", "Stage a model of a new architecture.", CHANGE),
    "model merge": ("model_make", "Blend the weights of models, and stage the result.", CHANGE),
    "model repack": ("model_repack", "Store models anew, in fewer bytes.", MORE),
    "model export": ("model_export", "Write a model in a foreign format.", LOOK),
    "registry ls": ("registry", "List the registered models.", LOOK),
    "registry show": ("registry", "Show a registered model and its versions.", LOOK),
    "registry create": ("registry", "Name a model before its first version.", CHANGE),
    "registry register": ("registry", "Make a model of a commit the next version.", CHANGE),
    "registry alias": ("registry", "Let an alias name a version, or move it.", CHANGE),
    "registry history": ("registry", "Show where an alias was.", LOOK),
    "registry protect": ("registry", "Refuse to move an alias.", CHANGE),
    "registry describe": ("registry", "Say what a model or a version is.", CHANGE),
    "registry rm": ("registry", "Remove a version, or a model with all of them.", CHANGE),
    "branch": ("branches", "List, make, rename or delete branches.", BRANCH),
    "tag": ("branches", "List, make or delete tags.", BRANCH),
    "switch": ("move", "Put the workspace on another branch.", BRANCH),
    "checkout": ("checkout", "Switch, or write entries as ordinary files.", BRANCH),
    "export": ("checkout", "Write an entry in a foreign format.", BRANCH),
    "undo": ("move", "Take back your last change of this branch.", BRANCH),
    "redo": ("move", "Take back the last undo.", BRANCH),
    "reset": ("move", "Move this branch to another commit.", BRANCH),
    "catalog status": ("catalog", "Show how the SQL catalog stands to the repository.", MORE),
    "catalog upgrade": ("catalog", "Bring the catalog's tables to this version's.", MORE),
    "catalog rebuild": ("catalog", "Make the catalog anew.", MORE),
    "catalog verify": ("catalog", "Compare the catalog with one made anew.", MORE),
    "doctor": ("care", "Check the repository, this machine and the workspace.", MORE),
    "resolve": ("care", "Find out what became of a commit whose outcome was unknown.", MORE),
    "version": ("care", "Show versions of tensorrepo and what it stands on.", MORE),
}

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
        _, line, panel = COMMANDS[full]
        return TyperCommand(cmd_name, help=line, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        near = [] if args[0] in known else get_close_matches(args[0], known)
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
    module = importlib.import_module(f"tensorrepo.cli.{COMMANDS[name][0]}")
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
    """`function`, its failures told in one message and an exit code by kind."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            output.flush()  # here, where a reader that left can be told from a mistake
        except Error as error:
            output.failure(error)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt as stopped:
            # Whoever was interrupted while a record was under way has raised CommitOutcomeUnknown.
            told = str(stopped) or "`tensorrepo status` shows where things stand"
            output.note(f"interrupted. {told}")
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
    told = f"{where}{error.strerror or error}"
    if isinstance(error, PermissionError) or error.errno == EROFS:
        return PermissionDenied(f"{told}. Check who may use it, or choose another place.")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(told)
    return StorageError(told)


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
