"""No bytes crash a parser, or make it take more memory than it may."""

from __future__ import annotations

import os

import pytest

from tests.support.effort import soaking
from tests.support.faults.parsers import KNOWN_BAD, PARSERS, fuzzed

COUNT = 300 if soaking() else 60
SOAK_SECONDS = float(os.environ.get("TENSORREPO_FUZZ_SECONDS", "1800"))  # for each parser


def test_no_mutant_of_what_is_stored_crashes_a_parser() -> None:
    told = fuzzed(tuple(PARSERS), count=COUNT)
    assert {name: faults for name, (_, faults) in told.items() if faults} == {}
    assert {number for number, _ in told.values()} == {COUNT}


def test_parsers_that_are_bad_are_caught() -> None:
    told = fuzzed(tuple(KNOWN_BAD), count=COUNT)
    assert [name for name, (_, faults) in told.items() if not faults] == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PARSERS)
def test_so_it_is_at_length(name: str) -> None:
    assert soaking()
    number, faults = fuzzed([name], seconds=SOAK_SECONDS, seed=2)[name]
    assert faults == []
    assert number > COUNT
