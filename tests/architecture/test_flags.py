"""An option means one thing in all commands: the reference has the table of those that several
commands share, and it is held equal to the commands.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, get_args

import pytest

from tensorrepo.cli.command_table import COMMANDS
from tensorrepo.cli.main import load_command
from tests.support.architecture.sources import ROOT

ROW = re.compile(
    r"^\| `(?P<long>--[\w-]+)`(?:, `(?P<short>-\w)`)? \|(?P<value>[^|]*)\|(?P<meaning>[^|]+)\|$"
)
OPTION = re.compile(r"^(--[a-z][\w-]*|-[a-zA-Z])", re.MULTILINE)
KINDS = {
    "Owners": "text",
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "",
    "Path": "path",
}


@dataclass(frozen=True)
class Use:
    """An option of one command."""

    command: str
    names: tuple[str, ...]
    value: str

    @property
    def long(self) -> str:
        """Its first long name; of an option that has none (git's ``checkout -b``) the short one."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def shorts(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if not name.startswith("--"))


def _value(option: Any) -> str:
    """What is given with an option, "" for a flag; some may be given several times."""
    annotation = option.type_descriptor.annotation
    (kind,) = get_args(annotation) or (annotation,)
    return "" if option.is_flag else KINDS[kind.__name__]


def uses() -> list[Use]:
    return [
        Use(command, tuple(option.opts), _value(option))
        for command in COMMANDS
        for option in load_command(command).params
        if option.param_type_name == "option" and "--help" not in option.opts
    ]


@pytest.fixture(scope="module")
def by_long() -> dict[str, list[Use]]:
    found: dict[str, list[Use]] = defaultdict(list)
    for use in uses():
        found[use.long].append(use)
    return found


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[str | None, str, str]]:
    page = (ROOT / "docs/reference/cli.md").read_text("utf-8").splitlines()
    rows = [m for line in page if (m := ROW.match(line))]
    return {m["long"]: (m["short"], m["value"].strip(), m["meaning"].strip()) for m in rows}


def test_a_short_option_stands_for_one_long_one() -> None:
    longs: dict[str, set[str]] = defaultdict(set)
    for use in uses():
        for name in use.names:
            longs[name].add(use.long)
    assert {name: found for name, found in longs.items() if len(found) > 1} == {}


def test_an_option_has_one_short_form_and_one_kind_of_value(by_long: dict[str, list[Use]]) -> None:
    forms = {long: {(use.shorts, use.value) for use in found} for long, found in by_long.items()}
    assert {long: found for long, found in forms.items() if len(found) > 1} == {}


def test_the_table_has_what_several_commands_share(
    by_long: dict[str, list[Use]], table: dict[str, tuple[str | None, str, str]]
) -> None:
    shared = {long for long, found in by_long.items() if len(found) > 1}
    assert set(table) == shared


def test_the_table_says_how_it_is_given(
    by_long: dict[str, list[Use]], table: dict[str, tuple[str | None, str, str]]
) -> None:
    told = {long: (short, value) for long, (short, value, _) in table.items()}
    real = {}
    for long in table:
        use = by_long[long][0]
        real[long] = (next(iter(use.shorts), None), use.value)
    assert told == real


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_help_have_options_that_there_are(command: str) -> None:
    loaded = load_command(command)
    names = {name for option in loaded.params for name in (*option.opts, *option.secondary_opts)}
    told = set(OPTION.findall(own_examples(command, loaded.epilog)))
    assert told - names == set()


def own_examples(command: str, epilog: str) -> str:
    """The words of a command's examples, without those of a program that it runs."""
    start = ["tensorrepo", *command.split()]
    lines = [shlex.split(line, comments=True) for line in epilog.splitlines()]
    own = [words for words in lines if words[: len(start)] == start]
    return "\n".join(word for words in own for word in takewhile(lambda word: word != "run", words))


def test_the_table_says_one_thing_of_each(
    table: dict[str, tuple[str | None, str, str]],
) -> None:
    meanings = [meaning for _, _, meaning in table.values()]
    assert len(meanings) == len(set(meanings))
