"""F14: words that other tools have lead to what there is."""

from __future__ import annotations

import re

import pytest

from tensorrepo.cli.command_table import ABSENT, COMMANDS, GROUPS
from tests.support.processes.shell import Shell

USAGE = 2


@pytest.mark.together
@pytest.mark.parametrize("word", sorted(ABSENT))
def test_a_word_that_is_absent_points_to_what_there_is(empty: Shell, word: str) -> None:
    told = " ".join(re.sub(r"[│╭╮╰╯─]", " ", empty.fails(USAGE, word)).split())
    assert f"No such command {word!r}" in told
    assert ABSENT[word].split()[0] in told


def test_what_is_pointed_to_is_there() -> None:
    assert not ABSENT.keys() & COMMANDS.keys()
    there = COMMANDS.keys() | GROUPS.keys()
    for hint in ABSENT.values():
        for command in re.findall(r"`tensorrepo ([a-z-]+(?: [a-z]+)?)", hint):
            words = command.split()
            assert words[0].startswith("-") or {command, words[0]} & there, command


def test_a_word_of_the_top_is_pointed_to_from_a_group(empty: Shell) -> None:
    assert "`tensorrepo update` does that" in empty.fails(USAGE, "dataset", "update", "pets")
