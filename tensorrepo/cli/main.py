"""Command line: lazy table of commands, options of the root, exit codes of failures.

Commands are loaded when they are called: `tensorrepo --help` needs this table alone, so that it
answers at once. A failure becomes one message on standard error and an exit code by its kind.
Scripts rely on these numbers: a kind may be added, no number ever changes its meaning.

Source:
    docs/reference/errors.md, section "Exit codes and HTTP statuses".
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from errno import EROFS
from inspect import cleandoc
from types import MappingProxyType, NoneType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tensorrepo._version import VERSION
from tensorrepo.cli import output
from tensorrepo.cli.pager import paged
from tensorrepo.repo.errors import (
    Error,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.suggest import did_you_mean

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
        "collected": 3,
        "missing-objects": 3,
        "expired": 3,  # was there once; to a script it is gone alike
        "purged": 3,
        "conflict": 4,
        "corrupt": 5,
        "rewound": 5,  # the log is not what it was: nothing read from it can be trusted
        "permission": 6,
        "unauthenticated": 6,
        "too-large": USAGE,
        "storage": 7,
        "rate-limited": 7,
        "unsupported": 8,
        "outcome-unknown": 9,
        "worker-lost": 10,
    }
)


def exit_code(error: Error) -> int:
    """The code that the command line ends with after `error`."""
    return EXIT_CODES[error.kind]


START, DAILY, DATA, HISTORY, SHARE, MODELS, CARE = (
    "Start a repository", "Add, look at and commit", "Ask and change data",
    "Branches and history", "Exchange with other repositories", "Models and trainings",
    "Look after the repository",
)  # fmt: skip

# name, a group's before it: (one line of help, panel, module that is loaded when it is called)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("Make a repository and a workspace here.", START, "setup"),
    "clone": ("Copy a repository into a new folder, or to a URL.", START, "remotes"),
    "config": ("Show or set your name, address and other settings.", START, "setup"),
    "status": ("Show what is staged, what changed on disk, and where you are.", DAILY, "entries"),
    "add": ("Read a file or folder and stage it as a dataset, model or file.", DAILY, "staging"),
    "commit": ("Record what is staged.", DAILY, "commit"),
    "ls": ("List the entries of a commit.", DAILY, "entries"),
    "cat": ("Print an entry: rows of a dataset, tensors of a model, a file.", DAILY, "cat"),
    "show": ("Show one commit, or one entry of it.", DAILY, "diff"),
    "diff": ("Show what differs between two commits, or since the last one.", DAILY, "diff"),
    "rm": ("Stage the removal of an entry.", DAILY, "staging"),
    "mv": ("Stage another name for an entry; no bytes move.", DAILY, "staging"),
    "restore": ("Unstage, or stage an entry as it was at another commit.", DAILY, "staging"),
    "checkout": ("Switch, or write entries as ordinary files.", DAILY, "checkout"),
    "export": ("Write an entry in a foreign format.", DAILY, "checkout"),
    "mount": ("Show a commit as a read-only folder.", DAILY, "mount"),
    "unmount": ("Take a mounted commit away.", DAILY, "mount"),
    "sql": ("Ask datasets and the catalog in SQL.", DATA, "sql"),
    "dql": ("Select, cut, construct and evaluate models by a statement.", DATA, "dql"),
    "search": ("Look for rows near a vector, or that fit words.", DATA, "search"),
    "index ls": ("List the search indexes of a commit.", DATA, "index"),
    "index create": ("Make a search index of a column, or bring it up to date.", DATA, "index"),
    "report": ("Write one page on what is in a commit.", DATA, "report"),
    "update": ("Give rows of a dataset other values.", DATA, "dataset"),
    "delete": ("Delete rows of a dataset.", DATA, "dataset"),
    "blame": ("Show which commits gave a row of a dataset its values.", DATA, "diff"),
    "dataset ls": ("List the datasets of a commit.", DATA, "dataset"),
    "dataset column": ("Add, drop, rename or widen a column of a dataset.", DATA, "dataset"),
    "dataset set": ("Note properties of a dataset: a licence, a source, its key.", DATA, "dataset"),
    "dataset compact": ("Write the worn parts of a dataset anew.", DATA, "dataset"),
    "dataset adopt": (
        "Stage a dataset whose rows stay in the files that they are in.",
        DATA,
        "staging",
    ),
    "dataset stream": ("Stream a dataset as training would, and show how fast.", DATA, "stream"),
    "plan-pipeline": ("Say which steps of a training's input pay offline.", DATA, "plan_pipeline"),
    "view ls": ("List the views of a commit.", DATA, "sql"),
    "view show": ("Show what a view is of.", DATA, "sql"),
    "view create": ("Choose rows of a dataset by a query, and stage which.", DATA, "sql"),
    "view refresh": ("Ask the query of a view again, and stage the answer.", DATA, "sql"),
    "log": ("Show commits, the newest first.", HISTORY, "history"),
    "watch": ("Run a command for every new commit of a branch.", HISTORY, "watch"),
    "reflog": ("Show where a branch was, and how to go back there.", HISTORY, "history"),
    "branch": ("List, make, rename or delete branches.", HISTORY, "branches"),
    "switch": ("Put the workspace on another branch.", HISTORY, "branches"),
    "merge": ("Join another branch into this one.", HISTORY, "commit"),
    "tag": ("List, make or delete tags.", HISTORY, "branches"),
    "revert": ("Take back what one commit changed, as a new commit.", HISTORY, "commit"),
    "cherry-pick": ("Repeat here what commits changed elsewhere.", HISTORY, "commit"),
    "stash": ("Put changes aside, and bring them back.", HISTORY, "stash"),
    "bisect": ("Find the commit that broke something.", HISTORY, "bisect"),
    "undo": ("Take back your last change of this branch.", HISTORY, "branches"),
    "redo": ("Take back the last undo.", HISTORY, "branches"),
    "reset": ("Move this branch to another commit.", HISTORY, "branches"),
    "fetch": ("Bring commits of another repository here.", SHARE, "remotes"),
    "pull": ("Fetch, and merge into this branch.", SHARE, "remotes"),
    "push": ("Bring commits to another repository, and move its branches.", SHARE, "remotes"),
    "import": ("Import a repository of git, DVC or the Hub with its history.", SHARE, "imports"),
    "promote": ("Bring one model or dataset to another repository.", SHARE, "remotes"),
    "remote ls": ("List the repositories that have a name here.", SHARE, "remotes"),
    "remote add": ("Give another repository a name.", SHARE, "remotes"),
    "remote rm": ("Forget a remote.", SHARE, "remotes"),
    "remote rename": ("Give a remote another name.", SHARE, "remotes"),
    "bundle create": ("Write commits and all their data to one file.", SHARE, "bundle"),
    "bundle verify": ("Read all of a bundle, and check it.", SHARE, "bundle"),
    "bundle unbundle": ("Bring what is in a bundle here.", SHARE, "bundle"),
    "lineage": ("Show what something came from, and what came from it.", MODELS, "runs"),
    "runs ls": ("List trainings, by what they reached.", MODELS, "runs"),
    "runs show": ("Show what a training read, made and logged.", MODELS, "runs"),
    "runs import": ("Import trainings that TensorBoard was told of.", MODELS, "runs"),
    "runs compare": ("Compare trainings side by side.", MODELS, "runs"),
    "model ls": ("List the models of a commit.", MODELS, "model"),
    "model desc": ("Describe a model: layers, architecture, metrics, lineage.", MODELS, "model"),
    "model diff": ("Compare two models, and how far tensors moved.", MODELS, "model"),
    "model verify": ("Read all of a model and check every byte.", MODELS, "model"),
    "model similar": ("Rank the stored models by how like one they are.", MODELS, "model"),
    "model find": ("Find models by what their architecture has.", MODELS, "catalog"),
    "model donors": ("Rank models by how they begin like an architecture.", MODELS, "catalog"),
    "model owners": ("List the models that hold a tensor.", MODELS, "catalog"),
    "model add": ("Read a model from a file or folder, and stage it.", MODELS, "model_make"),
    "model slice": ("Stage a part of a model as a model of its own.", MODELS, "model_make"),
    "model construct": ("Stage a model of a new architecture.", MODELS, "model_make"),
    "model merge": ("Blend the weights of models, and stage the result.", MODELS, "model_make"),
    "model repack": ("Store models anew, in fewer bytes.", MODELS, "model_make"),
    "model export": ("Write a model in a foreign format.", MODELS, "checkout"),
    "registry ls": ("List the registered models.", MODELS, "registry"),
    "registry show": ("Show a registered model and its versions.", MODELS, "registry"),
    "registry create": ("Name a model before its first version.", MODELS, "registry"),
    "registry register": ("Make a model of a commit the next version.", MODELS, "registry"),
    "registry alias": ("Let an alias name a version, or move it.", MODELS, "registry"),
    "registry history": ("Show where an alias was.", MODELS, "registry"),
    "registry protect": ("Refuse to move an alias.", MODELS, "registry"),
    "registry describe": ("Say what a model or a version is.", MODELS, "registry"),
    "registry rm": ("Remove a version, or a model with all of them.", MODELS, "registry"),
    "rule ls": ("List the rules of branches.", CARE, "rules"),
    "rule set": ("Say who may move a branch, and what its commits need.", CARE, "rules"),
    "rule rm": ("Remove the rule of a branch.", CARE, "rules"),
    "rule retention": ("Show or set how long dropped branches are kept.", CARE, "rules"),
    "signer ls": ("List whose signatures count.", CARE, "rules"),
    "signer add": ("List a public key as one that counts.", CARE, "rules"),
    "signer rm": ("Forget a key.", CARE, "rules"),
    "verify-signatures": ("Check the signature of each commit.", CARE, "rules"),
    "serve": ("Serve repositories to others: REST, clones, pages.", SHARE, "serve"),
    "ui": ("Look at the repository in the browser.", SHARE, "ui"),
    "login": ("Log in to a server.", SHARE, "login"),
    "logout": ("Log out of a server.", SHARE, "login"),
    "token ls": ("List your tokens at a server.", SHARE, "login"),
    "token create": ("Make a token, for what it has to do alone.", SHARE, "login"),
    "token revoke": ("Make a token worthless.", SHARE, "login"),
    "user ls": ("List the users of a server.", SHARE, "accounts"),
    "user add": ("Make an account.", SHARE, "accounts"),
    "user change": ("Change an account, or disable it.", SHARE, "accounts"),
    "user rm": ("Remove an account.", SHARE, "accounts"),
    "user password": ("Set a password.", SHARE, "accounts"),
    "group ls": ("List groups and their members.", SHARE, "accounts"),
    "group add": ("Make a group.", SHARE, "accounts"),
    "group rm": ("Remove a group.", SHARE, "accounts"),
    "group join": ("Let a user join a group.", SHARE, "accounts"),
    "group leave": ("Let a user leave a group.", SHARE, "accounts"),
    "grant ls": ("List who may do what.", SHARE, "accounts"),
    "grant set": ("Let a user or group do something.", SHARE, "accounts"),
    "grant rm": ("Take a grant back.", SHARE, "accounts"),
    "audit export": ("Print a server's audit log.", SHARE, "audit"),
    "audit verify": ("Prove that an audit log is whole.", SHARE, "audit"),
    "du": ("Show what entries take in the store, alone and shared.", CARE, "usage"),
    "gc": ("Delete what no branch, tag or run leads to.", CARE, "keep"),
    "expire": ("Give up the old commits of a branch for good.", CARE, "keep"),
    "purge": ("Erase rows, columns or tensors from all history.", CARE, "purge"),
    "fsck": ("Check that all data is there and whole.", CARE, "setup"),
    "doctor": ("Check the repository, this machine and the workspace, or a store.", CARE, "setup"),
    "bench": ("Emulate published trainings against a store.", CARE, "bench"),
    "resolve": ("Find out what became of a commit whose outcome was unknown.", CARE, "setup"),
    "cache ls": ("List what the caches of this machine hold.", CARE, "cache"),
    "cache trim": ("Make the caches of this machine smaller.", CARE, "cache"),
    "cache warm": ("Fetch what a stream of a dataset will read.", CARE, "cache"),
    "catalog status": ("Show how the SQL catalog stands to the repository.", CARE, "catalog"),
    "catalog upgrade": ("Bring the catalog's tables to this version's.", CARE, "catalog"),
    "catalog rebuild": ("Make the catalog anew.", CARE, "catalog"),
    "catalog verify": ("Compare the catalog with one made anew.", CARE, "catalog"),
    "version": ("Show versions of tensorrepo and what it stands on.", CARE, "setup"),
}

MODULE_OF = {name: f"tensorrepo.cli.{module}" for name, (_, _, module) in COMMANDS.items()}

# name: extra that it needs
EXTRA_OF = dict.fromkeys(("serve", "ui", "audit export", "audit verify"), "server")

# name: (one line of help, panel)
GROUPS: dict[str, tuple[str, str]] = {
    "audit": ("Who did what at a server, and the proof of it.", SHARE),
    "bundle": ("Commits and all their data in one file.", SHARE),
    "cache": ("Look after the caches of this machine, and fill them early.", CARE),
    "catalog": ("Look after the SQL catalog, which is a cache.", CARE),
    "dataset": ("Adopt, describe, compact and stream datasets; change their columns.", DATA),
    "grant": ("Who may do what with repositories of a server.", SHARE),
    "group": ("Users of a server who may do the same.", SHARE),
    "index": ("Find rows by vectors and by words, without reading all of them.", DATA),
    "model": ("Describe, compare, cut and combine models.", MODELS),
    "runs": ("Look at trainings: metrics, parameters, inputs, outputs.", MODELS),
    "view": ("Choose rows of datasets by queries, and keep which.", DATA),
    "remote": ("Name other repositories.", SHARE),
    "registry": ("Number versions of models, and name them by aliases.", MODELS),
    "rule": ("Protect branches: who moves them, what is kept.", CARE),
    "token": ("What programs prove themselves with at a server.", SHARE),
    "user": ("Accounts of a server.", SHARE),
    "signer": ("Look after the keys whose signatures count.", CARE),
}

_DATASETS = (
    "`tensorrepo dataset` has what is done to datasets; `add`, `cat` and `sql` stand at the top."
)

# What people type that is called otherwise here, or is not there yet.
ABSENT: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("web", "server"), "`tensorrepo serve` is the service, `tensorrepo ui` its pages."
    )
    | dict.fromkeys(("datasets", "data"), _DATASETS)
    | {
        word: f"`tensorrepo dataset {word}` does that."
        for word in ("adopt", "column", "compact", "set", "stream")
    }
    | dict.fromkeys(
        ("request", "requests", "merge-request", "mr", "pr"),
        "Merge requests are made on the pages of a `tensorrepo serve`, or by its REST API.",
    )
    | {
        "storage": "`tensorrepo du` tells of entries, `du --by ref|dataset|model` of history.",
        "prune": "`tensorrepo gc` deletes what nothing leads to, `expire` gives up old commits.",
        "verify": "`tensorrepo fsck --deep` reads and verifies all data, `model verify` a model.",
        "check": "`tensorrepo fsck` checks data, `tensorrepo doctor` the store and this machine.",
        "benchmark": "`tensorrepo bench` emulates a training, `dataset stream` reads your data.",
        "help": "`tensorrepo --help` lists all commands, `tensorrepo COMMAND --help` tells of one.",
        "rebase": "`tensorrepo cherry-pick` puts commits on another branch.",
        "unstage": "`tensorrepo restore --staged NAME` unstages.",
        "download": "`tensorrepo checkout REF NAME` writes files, `export` other formats.",
        "upload": "`tensorrepo add PATH --dataset NAME`, or --model, and `tensorrepo commit`.",
    }
)

AFTER_DASHES = "tensorrepo.after-dashes"  # key of the context's memory
OUTSIDE = "tensorrepo.outside"  # another one
NO_PAGER = "tensorrepo.no-pager"  # a third
PAGED = frozenset(
    (
        "blame", "cat", "diff", "lineage", "log", "ls", "model desc", "model diff", "model ls",
        "reflog", "runs compare", "runs ls", "runs show", "show", "view show",
    )
)  # fmt: skip


class PlainWords:
    """Values of a parameter that are what was typed: words, lists of words, numbers.

    typer 0.29 builds a pydantic validator for each parameter, given or not. Importing pydantic for
    that takes longer than all else that `log` does; so only what is wrong gets there, to be told
    in typer's words.
    """

    def __init__(self, judge: Any) -> None:
        self._judge = judge  # typer's `get_runtime_param` of the parameter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        expected = param.type_descriptor.annotation
        is_many = param.multiple or param.nargs == -1
        if value is None:
            return () if is_many else None
        if expected is str and not is_many and isinstance(value, str):
            return value
        if expected == list[str] and is_many and isinstance(value, list | tuple):
            return list(value)
        if expected is int and _is_number(value, param.type_descriptor.parameter_info):
            return int(value)
        return self._judge().coerce(value, param=param, ctx=ctx)


def _is_number(value: Any, info: Any) -> bool:
    """Whether `value` is a whole number, as people write it, within the bounds of a parameter."""
    if not re.fullmatch("-?[0-9]{1,18}", str(value)) or info.max is not None:
        return False
    return info.min is None or int(value) >= info.min


_VALUES = MappingProxyType({str: "TEXT", list[str]: "TEXT", int: "N", float: "NUMBER"})


def _no_type(ctx: Any) -> None:
    """What help shows as the type of a parameter whose name says it."""


def _show_plainly(param: Any) -> None:
    """Let the help of a parameter show what to type, and no type of Python.

    Behind flags and arguments it shows nothing, behind options TEXT or N where they name nothing
    themselves, and words to choose from as they are typed. typer before 0.29 shows it so anyway.
    """
    if getattr(param, "is_flag", False):
        param.metavar = ""
    described = getattr(param, "type_descriptor", None)
    if described is None:
        return
    if described.is_choice:
        show = param.display_type
        param.display_type = lambda ctx: show(ctx=ctx).strip("<>")
    elif param.param_type_name == "argument":
        param.display_type_rich = _no_type
    elif param.metavar is None:
        param.metavar = _VALUES.get(described.annotation)


class PlainFlags:
    """A command whose parameters read plain words, and whose help shows no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            _show_plainly(param)
            judge = getattr(param, "get_runtime_param", None)
            if inspect.ismethod(judge):  # typer before 0.29 reads words with click's types
                param.get_runtime_param = functools.partial(PlainWords, judge)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [usage_piece(piece) for piece in pieces]


def usage_piece(piece: str) -> str:
    """How the usage line shows an argument, by what typer makes of it: no braces but around
    alternatives, and brackets and dots once.
    """
    name, dots = piece.removesuffix("..."), "..." if piece.endswith("...") else ""
    if name.startswith("{") and name.endswith("}") and "|" not in name:
        name = name[1:-1]
    if name.startswith("[[") and name.endswith("]]"):
        name = name[1:-1]
    inner, end = (name[:-1], name[-1:]) if name.endswith(("]", "}")) else (name, "")
    return (inner.removesuffix("...") if dots else inner) + end + dots


class PlainCommand(PlainFlags, TyperCommand):
    """A command."""


class PathsCommand(PlainCommand):
    """A command that keeps apart what stands after ``--``: paths, whatever they look like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[AFTER_DASHES] = args[:at], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


class LimitedCommand(PathsCommand):
    """A command that takes ``-5`` for ``-n 5``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        numbers = re.compile(r"-\d+")
        head = [f"-n{word[1:]}" if numbers.fullmatch(word) else word for word in args[:end]]
        return super().parse_args(ctx, head + args[end:])


class TailCommand(PlainCommand):
    """A command whose action ``run`` takes the rest of the line: another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = next((at for at, word in enumerate(args) if not word.startswith("-")), None)
        if at is not None and args[at] == "run":
            args, ctx.meta[AFTER_DASHES] = args[: at + 1], tuple(args[at + 1 :])
        return super().parse_args(ctx, args)


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


def guarded(function: Callable[..., None], *, is_paged: bool = False) -> Callable[..., None]:
    """`function` with failures as one message and an exit code by kind.

    `is_paged`: what it prints may be long, so that a pager shows it on a terminal.
    """

    @functools.wraps(function)
    def run(**values: Any) -> None:
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        with output.answering(as_json=bool(values.get("as_json"))):
            _run(**values)

    def _run(**values: Any) -> None:
        wanted = is_paged and not (values["as_json"] or values["context"].meta.get(NO_PAGER))
        is_shown = False  # by a pager
        try:
            with paged() if wanted else nullcontext(False) as is_shown:
                function(**values)
                output.flush()  # here, where a reader that left can be told from a mistake
        except Error as error:
            output.failure(error, exit_code(error))
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt as stopped:
            # An append that was interrupted under way has raised CommitOutcomeUnknown instead.
            hint = str(stopped) or "`tensorrepo status` shows where things stand"
            if not is_shown:
                output.note(f"interrupted. {hint}")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            output.give_up()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as error:
            failure = _of_system(error)
            output.failure(failure, exit_code(failure))
            raise typer.Exit(exit_code(failure)) from None
        except typer.Exit:
            raise
        except Exception as error:
            if os.environ.get("TENSORREPO_DEBUG"):
                raise
            output.bug(error, BUG)
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
    gc.disable()  # until the command is loaded: modules stay, and looking at them takes its time
    warnings.showwarning = output.show_warning
    output.open_closed_streams()
    try:
        app()
    except SystemExit as ending:
        if REMOTE not in sys.modules or not isinstance(ending.code, (int, NoneType)):
            raise
        output.leave(ending.code or 0)
