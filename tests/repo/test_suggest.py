"""Names that are not there lead to those that are, by one function in the whole project."""

from __future__ import annotations

import ast

import pytest

from tensorrepo.repo.suggest import did_you_mean, near_names, there_are
from tests.support.architecture.sources import dotted, sources


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("peple", ["people", "pets"], " Did you mean people?"),
        ("peopl", ["people", "peoples"], " Did you mean people or peoples?"),
        ("PEOPLE", ["people"], " Did you mean people?"),
        ("people", ["People", "PEOPLE"], " Did you mean People or PEOPLE?"),
        ("zzz", ["people"], " There is people."),
        ("zzz", [], " None."),
    ],
)
def test_the_end_of_a_message_names_what_is_near(
    name: str, known: list[str], expected: str
) -> None:
    assert did_you_mean(name, known, there_are(known, "None.")) == expected


def test_what_is_said_for_a_name_may_be_another() -> None:
    paths = {"people": "datasets/people", "datasets/people": "datasets/people"}
    assert did_you_mean("peple", paths) == " Did you mean datasets/people?"


def test_nothing_near_and_nothing_to_say_is_no_sentence() -> None:
    assert did_you_mean("zzz", ["people"]) == ""


def test_many_names_are_counted() -> None:
    assert there_are([f"n{at}" for at in range(10)], "").endswith("n7 and 2 more.")


def test_at_most_three_names_are_near() -> None:
    assert len(near_names("name", [f"name{at}" for at in range(9)])) == 3


def test_nobody_else_compares_names() -> None:
    users = [
        source.path
        for source in sources()
        if "get_close_matches" in source.text
        for node in source.nodes
        if isinstance(node, ast.Call) and dotted(node.func).endswith("get_close_matches")
    ]
    assert users == ["repo/suggest.py"]
