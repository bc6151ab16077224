"""SQL conditions as expressions."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Json,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.selecting.select_rows import find_rows
from tensorrepo.formats.dataset.selecting.sql_condition import read_condition
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

SCHEMA = Schema.of(
    {
        "n": "int32",
        "u": "uint64",
        "f": "float32",
        "h": "float16",
        "ok": "bool",
        "c": "complex64",
        "t": Text(),
        "j": Json(),
        "kind": ClassLabel(("cat", "dog")),
        "when": Timestamp(),
        "user": Text(),
        "x": Tensor("float32", (2,)),
        "size.height": "int32",
    }
)
ROWS = pa.table(
    {
        "n": [1, 2, 3, None],
        "t": ["x", "y'", None, "x%"],
        "ok": [True, False, True, None],
        "kind": [0, 1, 1, None],
        "when": pa.array([0, 10**12, None, 10**13], pa.timestamp("us")),
        "user": ["a", "b", "c", None],
        "size.height": [7, 8, 9, None],
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n == 1", [1]),
        ("n = 1", [1]),
        ("1 < n", [2, 3]),
        ("n <> 1", [2, 3]),
        ("n != 1 and n <= 2", [2]),
        ("n >= 3 or t = 'x'", [1, 3]),
        ("t == 'y'''", [2]),
        ('t == "y\'"', [2]),
        ("n in (1, 3)", [1, 3]),
        ("n not in (1, 3)", [2]),
        ("not n in (1)", [2, 3]),
        ("n is null", [None]),
        ("t is not null and not ok", [2]),
        ("ok", [1, 3]),
        ("true", [1, 2, 3, None]),
        ("NOT (n = 1 OR n = 2)", [3]),
        ("n > -1.5e0", [1, 2, 3]),
        ("n > - 1", [1, 2, 3]),
        ("n < 1_000", [1, 2, 3]),
        ("`n` == 2", [2]),
        ('"n" == 2', [2]),
        ("N == 2", [2]),
        ("self.n == 2", [2]),
        ("ok == true", [1, 3]),
        ("not not n = 1", [1]),
        ("n = 1 or n = 2 and t = 'x'", [1]),
        ("n between 2 and 3", [2, 3]),
        ("n not between 2 and 3", [1]),
        ("t like 'y_'", [2]),
        ("t not like 'x%'", [2]),
        ("t ilike 'X'", [1]),
        ("STARTS_WITH(t, 'y')", [2]),
        ("not prefix(t, 'x') or t ^@ 'q'", [2]),
        ("kind in ('dog') and when > '1970-01-02'", [2]),
        ("size.height > 8", [3]),
        ("`size.height` > 8", [3]),
        ("user = 'b' -- a word of SQL", [2]),
        ("(" * 90 + "n = 1" + ")" * 90, [1]),
        (" and ".join(["n = 1"] * 500), [1]),
    ],
)
def test_a_condition_means_what_it_says(text: str, expected: list[Any]) -> None:
    expression = read_condition(text, SCHEMA).expression
    assert ROWS.filter(pickle.loads(pickle.dumps(expression)))["n"].to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("length(t) > 3", "length(t) > 3"),
        ("kind = 'dog' and n % 2 = 0", "kind = 'dog' and n % 2 = 0"),
        ("kind in ('cat', 'dog') or n + 1 > 2", "kind in ('cat', 'dog') or n + 1 > 2"),
        ("kind = 1 and n % 2 = 0", '"kind_number" = 1 and n % 2 = 0'),
        ("n % 2 = 0 or self.kind in (0, 1)", 'n % 2 = 0 or self."kind_number" in (0, 1)'),
        ("size.height % 2 = 0", '"size.height" % 2 = 0'),
        ("row_number < 3", "row_number < 3"),
        ("n > (select avg(n) from self)", "n > (select avg(n) from self)"),
        ("n in (1, null)", "n in (1, null)"),
        (r"t like 'x\%'", r"t like 'x\%'"),
        ("starts_with(t, t)", "starts_with(t, t)"),
        ("t.starts_with('x')", "t.starts_with('x')"),
        ("3 = 4", "3 = 4"),
    ],
)
def test_what_no_expression_says_is_sql_with_columns_for_class_numbers(text: str, sql: str) -> None:
    condition = read_condition(text, SCHEMA)
    assert (condition.expression, condition.sql) == (None, sql)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("n ==", 5, "it ends too early"),
        ("(n == 1", 8, "it ends too early"),
        ("n == )", 6, r"syntax error at or near \"\)\""),
        ("n == 1 t", 8, "syntax error"),
        ("n ; t", 3, "syntax error"),
        ("n = 1; select 1", 6, "syntax error"),
        ("n is 3", 6, "syntax error"),
        ("t == 'x", 6, "unterminated"),
        ("n == 1x", 7, "syntax error"),
        ("and", 1, "syntax error"),
        ("n = null", 5, "expected a value; write `is null`"),
        ("nothing = 1", 1, r"expected a column \('n', 'u'"),
        ("kind = 'cow'", 8, r"expected a class of 'kind' \(cat, dog\), found 'cow'"),
        ("kind = 'cow' and length(t) > 3", 8, "expected a class of 'kind'"),
        ("when > 'soon'", 10, "expected a moment such as '2026-01-31 12:00:00'"),
        ("when > 3", 10, "expected a moment"),
        ("n == 'x'", 6, r"expected a number to compare with 'n' \(int32\), found 'x'"),
        ("f > 'x'", 5, r"expected a number to compare with 'f' \(float32\)"),
        ("t == 3", 6, r"expected text in quotes to compare with 't' \(text\), found 3"),
        ("3 < t", 1, "expected text in quotes to compare with 't'"),
        ("ok == 1", 7, r"expected true or false to compare with 'ok' \(bool\)"),
        ("n == true", 6, "expected a number to compare with 'n'"),
        ("kind == true", 9, r"expected a class in quotes or its number .* \(class label"),
        ("n in (1, 'x')", 10, "expected a number to compare with 'n'"),
        ("x == 3", 1, r"expected a column whose values have an order, not 'x' \(float32\)"),
        ("c == 3", 1, "expected a column whose values have an order, not 'c'"),
        ("n == t", 6, r"expected a column that can be compared with 'n' \(int32\), found t"),
        ("n", 1, r"expected an operator such as ==, as 'n' \(int32\) is not of bools"),
        ("not t", 5, "expected an operator such as =="),
        ("n == 9223372036854775808", 6, "expected a number from -9223372036854775808 to"),
        ("u > -1", 5, "expected a number from 0 to"),
        ("u == 18446744073709551616", 6, "expected a number from 0 to"),
    ],
)
def test_what_is_not_understood_is_pointed_at(text: str, place: int, says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"character {place}: {says}"):
        read_condition(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    ["ok) union select (1", "ok) order by (n", "ok) group by (n", "ok) limit (1", "ok); select (1"],
)
def test_a_condition_that_closes_itself_and_goes_on_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="more than a condition"):
        read_condition(text, SCHEMA)


@pytest.mark.parametrize(
    "text", ["", "  ", "not " * 5000 + "ok", "(" * 5000 + "ok" + ")" * 5000, "\ud800"]
)
def test_conditions_beyond_reason_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="condition"):
        read_condition(text, SCHEMA)


@settings(max_examples=examples(12))
@given(st.text(alphabet="ntok1()'\"`<>=!,. andornotisull", max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with suppress(InvalidInputError):
        assert read_condition(text, SCHEMA).sql


HIGH = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"u == {HIGH}", [2]),
        ("u > 3", [2]),
        ("u >= 9223372036854775808", [2]),
        ("h > 1", [2]),
        ("h == 0.5", [1]),
        ("f < 1" + "0" * 5000, [0, 1, 2]),
        ("f < 100000000000000000000", [0, 1, 2]),
        ("u in (0, 18446744073709551615)", [0, 2]),
    ],
)
def test_numbers_beyond_what_arrow_converts_are_compared_exactly(
    text: str, expected: list[int]
) -> None:
    batch: dict[str, Any] = {"u": np.array([0, 1, HIGH], np.uint64)}
    batch |= {"h": np.array([0, 0.5, 2], "f2"), "f": np.arange(3, dtype="f4")}
    schema = Schema.of({"u": "uint64", "h": "float16", "f": "float32"})
    assert find_rows(stored(MemoryObjects(), schema, [batch]), text).tolist() == expected


def test_numbers_that_arrow_does_not_convert_are_an_error_and_no_bug() -> None:
    batch = {"u": np.array([0, 1, HIGH], np.uint64)}
    dataset = stored(MemoryObjects(), Schema.of({"u": "uint64"}), [batch])
    with pytest.raises(InvalidInputError, match=r"predicate \(u > 1.5\).*not in range"):
        find_rows(dataset, "u > 1.5")


def test_a_dataset_alone_answers_no_condition_that_needs_sql() -> None:
    dataset = stored(MemoryObjects(), Schema.of({"u": "uint64"}), [{"u": [1]}])
    with pytest.raises(UnsupportedError, match="only SQL over the dataset answers it"):
        find_rows(dataset, "u % 2 = 1")
