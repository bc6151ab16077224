"""Command line: commands loaded when they are called, and options of the root.

What there is says `command_table`, how words are read `parsing`, how failures end `exit_codes`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from inspect import cleandoc
from types import NoneType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.cli.command_table import ABSENT, COMMANDS, EXTRA_OF, GROUPS, MODULE_OF, PAGED
from tensorrepo.cli.exit_codes import DONE, USAGE, guarded
from tensorrepo.cli.parsing import (
    NO_PAGER,
    OUTSIDE,
    LimitedCommand,
    PathsCommand,
    PlainCommand,
    PlainFlags,
    TailCommand,
)
from tensorrepo.repo.errors import UnsupportedError
from tensorrepo.repo.suggest import did_you_mean


class LazyCommands(PlainFlags, TyperGroup):
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
        line, panel, _ = COMMANDS[full]
        return TyperCommand(cmd_name, help=line, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] in ABSENT and args[0] not in names and not self.group:
            ctx.fail(f"No such command {args[0]!r}. {ABSENT[args[0]]}")
        if args[0] not in names and not ctx.resilient_parsing:
            above = f" `tensorrepo {args[0]}` does that." if args[0] in COMMANDS else ""
            ctx.fail(f"No such command {args[0]!r}.{above or did_you_mean(args[0], names)}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or name is None:
            return name, None, rest
        full = f"{self.group} {name}".strip()
        return name, load_group(full) if full in GROUPS else load_command(full), rest


class RootCommands(LazyCommands):
    """All commands; of one with --json also what is wrong with its words is told in JSON."""

    def main(  # type: ignore[override]  # click's has more names, all of which are passed on
        self, args: Any = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        if not standalone_mode or "--json" not in words:
            return super().main(args, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(words, standalone_mode=False, **extra)
        except typer.TyperException as error:
            output.failure_json("invalid-input", error.format_message(), USAGE)
            sys.exit(USAGE)
        sys.exit(code or DONE)


PARSED_BY = {
    "bisect": TailCommand,
    "diff": PathsCommand,
    "log": LimitedCommand,
    "reflog": LimitedCommand,
    "watch": PathsCommand,
}


@functools.cache
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


@functools.cache
def load_command(name: str) -> Any:
    """The real command, from its module. Its docstring is its help, "Examples:" its end."""
    function = _function_of(name)
    text, _, examples = cleandoc(function.__doc__ or "").partition("Examples:")
    paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    lines = [line.strip() for line in examples.strip().splitlines()]
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(
        name.rsplit(maxsplit=1)[-1],
        cls=PARSED_BY.get(name, PlainCommand),
        help="\n\n".join(paragraphs),
        epilog="[bold]Examples[/bold]\n\n" + "\n".join(f"  {line}" for line in lines),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(guarded(injected(function), is_paged=name in PAGED))
    return typer.main.get_command(single)


def _function_of(name: str) -> Callable[..., None]:
    try:
        module = importlib.import_module(MODULE_OF[name])
    except ModuleNotFoundError as error:
        if name not in EXTRA_OF or (error.name or "").startswith("tensorrepo"):
            raise
        return _without_extra(name, error)
    function: Callable[..., None] = getattr(module, f"{re.sub('[ -]', '_', name)}_command")
    return function


def _without_extra(name: str, error: ModuleNotFoundError) -> Callable[..., None]:
    extra = EXTRA_OF[name]

    def refuse() -> None:
        raise UnsupportedError(
            f"`tensorrepo {name}` needs {error.name}, which is not installed: "
            f"pip install 'tensorrepo[{extra}]'"
        ) from error

    refuse.__doc__ = (
        f"{COMMANDS[name][0]} Needs the extra {extra}.\n\nExamples:\n    tensorrepo {name}"
    )
    return refuse


def injected(function: Callable[..., None]) -> Callable[..., None]:
    """`function` as typer sees it: with the options that its `CommandCall` declares instead."""
    signature = inspect.signature(function, eval_str=True)
    first, *own = signature.parameters.values()
    declared = getattr(first.annotation, "DECLARED", None)
    if declared is None:
        return function

    def run(**values: Any) -> None:
        call = first.annotation(**{name: values.pop(name) for name in declared})
        function(call, **values)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in declared.items()
    ]
    own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    parameters = [shared[0], *own, *shared[1:]]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


app = typer.Typer(
    cls=RootCommands,
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
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Show long answers without a pager.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback has answered by now
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Versioned datasets and models: git and lakehouse in one."""
    context.obj = directory
    context.meta[OUTSIDE] = tuple(allow_outside or ())
    context.meta[NO_PAGER] = no_pager


# The client of remote stores runs threads of its own. One of them may call into Python while the
# interpreter is being torn down, which aborts a process whose work is long done (seen once in some
# hundred commands against S3).
REMOTE = "obstore"


def main() -> None:
    """The entry point of the `tensorrepo` script."""
    gc.disable()  # until the command is loaded: modules stay, and looking at them takes its time
    warnings.showwarning = output.show_warning
    output.open_closed_streams()
    try:
        app()
    except SystemExit as ending:
        if REMOTE not in sys.modules or not isinstance(ending.code, (int, NoneType)):
            raise
        output.leave(ending.code or 0)
