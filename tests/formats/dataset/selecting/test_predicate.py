"""Predicates in Python mean what the same text means, and are written as that text."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Scalar,
    Schema,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.selecting.predicate import RowExpression, col, condition_text
from tensorrepo.formats.dataset.selecting.select_rows import find_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.objects import MemoryObjects

DAY = datetime(2026, 1, 1, tzinfo=UTC)
CASES = [
    (col("n") == 3, "n == 3", [3]),
    (col("n") != 3, "n != 3", [0, 1, 4, 5]),
    (col("n").between(1, 3), "(n >= 1) and (n <= 3)", [1, 3]),
    (col("n").isin([1, 5]), "n in (1, 5)", [1, 5]),
    (~col("n").isin([1, 5]), "not (n in (1, 5))", [0, 3, 4]),
    (col("name").like("a%"), "name like 'a%'", [0, 1]),
    (col("name").like("A_", ignore_case=True), "name ilike 'A_'", [0, 1]),
    (col("name").like("back\\slash"), "name like 'back\\slash'", [4]),
    (col("n").is_null(), "n is null", [2]),
    (col("n").is_not_null(), "n is not null", [0, 1, 3, 4, 5]),
    (col("f").is_nan(), "isnan(f)", [5]),
    (col("label") == "dog", "label == 'dog'", [1, 3, 5]),
    (col("label").isin(["dog", "cat"]), "label in ('dog', 'cat')", [0, 1, 2, 3, 4, 5]),
    (col("name") == "it's", "name == 'it''s'", [3]),
    (col("two words") > 3, '"two words" > 3', [4, 5]),
    ((col("n") > 3) | (col("name") == "ab"), "(n > 3) or (name == 'ab')", [0, 4, 5]),
    (col("n") + 1 > col("two words"), '(n + 1) > "two words"', [0, 1, 3, 4, 5]),
]


def test_what_arrow_alone_says_is_written_as_duckdb_reads_it() -> None:
    said = condition_text(pc.starts_with(pc.field("name"), "it's"))
    assert said == "starts_with(name, 'it''s')"


@pytest.fixture(scope="module")
def rows() -> StoredDataset:
    schema = Schema(
        (
            Column("n", Scalar("int64"), nullable=True),
            Column("f", Scalar("float32")),
            Column("name", Text(), nullable=True),
            Column("label", ClassLabel(("cat", "dog"))),
            Column("two words", Scalar("int32")),
            Column("at", Timestamp("us", "UTC")),
        )
    )
    batch: dict[str, Any] = {
        "n": [0, 1, None, 3, 4, 5],
        "f": [0, 1, 2, 3, 4, float("nan")],
        "name": ["ab", "ac", None, "it's", "back\\slash", "B"],
        "label": ["cat", "dog"] * 3,
        "two words": range(6),
        "at": [DAY.replace(day=day) for day in range(1, 7)],
    }
    objects = MemoryObjects()
    return open_dataset(objects, write_dataset(objects, schema, [batch]).digest)


@pytest.mark.parametrize(("predicate", "text", "numbers"), CASES, ids=str)
def test_a_predicate_and_its_text_find_the_same_rows(
    rows: StoredDataset, predicate: RowExpression, text: str, numbers: list[int]
) -> None:
    assert find_rows(rows, predicate).tolist() == numbers
    assert str(predicate) == text


@pytest.mark.parametrize(
    ("predicate", "text", "numbers"),
    [case for case in CASES if not set(case[1]) & {"+", "\\"} and "isnan" not in case[1]],
    ids=str,
)
def test_its_text_is_read_back_as_the_same_condition(
    rows: StoredDataset, predicate: RowExpression, text: str, numbers: list[int]
) -> None:
    assert find_rows(rows, text).tolist() == numbers
    assert find_rows(rows, pickle.loads(pickle.dumps(predicate))).tolist() == numbers


def test_moments_are_compared(rows: StoredDataset) -> None:
    found = col("at") >= DAY.replace(day=5)
    assert find_rows(rows, found).tolist() == [4, 5]
    assert find_rows(rows, str(found)).tolist() == [4, 5]


def test_arrows_own_expressions_have_a_text_where_sql_says_the_same() -> None:
    assert condition_text((pc.field("y") == 1) & pc.field("z").is_valid()) == (
        "(y == 1) and (z is not null)"
    )
    assert condition_text(pc.field("y").cast(pa.int8()) == 1) is None


def test_texts_that_are_too_long_are_left_out() -> None:
    assert condition_text(col("n").isin(range(10_000))) is None


@pytest.mark.parametrize("name", ["n", "f", "name", "label"])
def test_no_values_are_looked_up_in_any_column(rows: StoredDataset, name: str) -> None:
    assert find_rows(rows, col(name).isin([])).tolist() == []


def test_whole_numbers_of_64_bits_are_looked_for(rows: StoredDataset) -> None:
    assert find_rows(rows, col("n").isin([(1 << 64) - 1, 5])).tolist() == [5]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: col("n") == None, "is_null"),  # noqa: E711
        (lambda: col("n").isin([1, None]), "is_null"),
        (lambda: col("n").isin("abc"), "a list of values"),
        (lambda: col("n").isin([1 << 64]), "values of one type"),
        (lambda: bool(col("n") > 3), "&, |"),
        (lambda: 1 < col("n") < 3, "between"),
        (lambda: col("n") == object(), "a value or another col"),
        (lambda: col(3), "the name of a column"),  # type: ignore[arg-type]
        (lambda: col("n").like(3), "a pattern"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_predicate_is_refused(wrong: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        wrong()


def test_a_class_that_is_not_there_is_named(rows: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match=r"'label' \(cat, dog\), found 'cow'"):
        find_rows(rows, col("label") == "cow")
