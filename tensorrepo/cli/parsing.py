"""Parsing of command lines as people write them, beyond what typer does.

Words are read without a validator for each parameter, usage lines and help show no types of Python,
and paths stand behind ``--``, whatever they look like.
"""

from __future__ import annotations

import functools
import inspect
import re
from types import MappingProxyType
from typing import Any

from typer.core import TyperCommand

# Keys of the context's memory.
AFTER_DASHES = "tensorrepo.after-dashes"  # words behind --
OUTSIDE = "tensorrepo.outside"  # folders and URLs that may be read in place
NO_PAGER = "tensorrepo.no-pager"


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
