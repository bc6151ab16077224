"""Lines of text as predicates."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.columns.schema import ClassLabel, Schema, Text, Timestamp
from tensorrepo.formats.dataset.editing.predicate import parse_literal, parse_where
from tensorrepo.repo.errors import InvalidInputError

ROWS = pa.table(
    {"a": [1, 2, 3, None], "b": ["x", "y'", None, "x"], "ok": [True, False, True, None]}
)
SCHEMA = Schema.of(
    {"a": "int64", "b": Text(), "kind": ClassLabel(("cat", "dog")), "t": Timestamp()}
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a == 1", [1]),
        ("a = 1", [1]),
        ("1 < a", [2, 3]),
        ("a <> 1", [2, 3]),
        ("a != 1 and a <= 2", [2]),
        ("a >= 3 or b = 'x'", [1, 3, None]),
        ("b == 'y'''", [2]),
        ('b == "y\'"', [2]),
        ("a in (1, 3)", [1, 3]),
        ("a not in (1, 3)", [2]),
        ("not a in (1)", [2, 3]),
        ("a is null", [None]),
        ("b is not null and not ok", [2]),
        ("ok", [1, 3]),
        ("NOT (a = 1 OR a = 2)", [3]),
        ("a > -1.5e0", [1, 2, 3]),
        ("`a` == 2", [2]),
        ("ok == true", [1, 3]),
        ("not not a = 1", [1]),
        ("a = 1 or a = 2 and b = 'x'", [1]),
    ],
)
def test_a_line_means_what_it_says(text: str, found: list[Any]) -> None:
    assert ROWS.filter(parse_where(text))["a"].to_pylist() == found


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 1), ("a ==", 5), ("a == )", 6), ("(a == 1", 8), ("a == 1 b", 8), ("a = null", 5),
        ("3 == 4", 6), ("a in ()", 7), ("a in (b)", 7), ("a not 3", 7), ("a ; b", 3), ("a is 3", 6),
        ("3", 2), ("a == 'x", 6), ("a == 1x", 6), ("and", 1), ("nothing = 1", 1),
        ("kind = 'cow'", 8), ("t > 'soon'", 5), ("a. == 1", 1),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_pointed_at(text: str, place: int) -> None:
    with pytest.raises(InvalidInputError, match=f"character {place}:"):
        parse_where(text, SCHEMA)


def test_class_names_and_moments_stand_for_numbers() -> None:
    rows = pa.table({"kind": [0, 1], "t": pa.array([0, 10**12], pa.timestamp("us"))})
    both = parse_where("kind in ('dog') and t > '1970-01-02'", SCHEMA)
    assert rows.filter(both).num_rows == 1


@given(st.text(alphabet="a1()'\"`<>=!,. andornotisull", max_size=30))
def test_any_text_is_a_predicate_or_refused(text: str) -> None:
    with suppress(InvalidInputError):
        assert isinstance(parse_where(text), pc.Expression)


def test_parentheses_beyond_reason_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at most 100"):
        parse_where("(" * 5000 + "a = 1" + ")" * 5000)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-2.5", -2.5), ("true", True), ("null", None), ("'3'", "3"), ("a b", "a b")],
)
def test_a_literal_is_read_as_what_it_looks_like(text: str, value: object) -> None:
    assert parse_literal(text) == value
