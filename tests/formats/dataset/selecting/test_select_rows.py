"""Rows are named by predicates, ids, numbers and keys."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.selecting.predicate import col
from tensorrepo.formats.dataset.selecting.select_rows import (
    by_leaf,
    choose_rows,
    count_rows,
    find_rows,
    ids_of_rows,
    named_columns,
    rows_of_ids,
)
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema(
    (
        Column("n", Scalar("int32")),
        Column("text", Text(), nullable=True),
        Column("label", ClassLabel(("cat", "dog"))),
        Column("when", Timestamp("s", "UTC")),
        Column("half", Scalar("bfloat16")),
        Column("picture", Image(), nullable=True),
        Column("x", Tensor("float32", (3,))),
        Column("note", Json(), nullable=True),
        Column("two words", Scalar("bool")),
    )
)
COUNT = 300


def _dataset(objects: MemoryObjects) -> StoredDataset:
    numbers = np.arange(COUNT, dtype="i4")
    batch = {
        "n": numbers,
        "text": [None if at % 10 == 0 else f"t{at % 7}" for at in numbers],
        "label": numbers % 2,
        "when": numbers.astype("i8") * 3600,
        "half": [float(at % 5) for at in numbers],
        "picture": [None if at % 3 else b"png" for at in numbers],
        "x": np.zeros((COUNT, 3), "f4"),
        "note": [None if at % 4 else {"k": 1} for at in numbers],
        "two words": numbers % 3 == 0,
    }
    whole = stored(objects, SCHEMA, [batch], page_bytes=300, budget_bytes=1 << 16)
    return open_dataset(objects, delete_rows(objects, whole, [3, 4, 250]).digest)


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return _dataset(MemoryObjects())


def _expected(dataset: StoredDataset, holds: Any) -> list[int]:
    rows = dataset.to_arrow().to_pylist()
    return [at for at, row in enumerate(rows) if holds(row)]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        (col("n") == 7, lambda row: row["n"] == 7),
        (col("n") > 290, lambda row: row["n"] > 290),
        (col("text") == "t3", lambda row: row["text"] == "t3"),
        (col("text").is_null(), lambda row: row["text"] is None),
        (~(col("text") == "t3"), lambda row: row["text"] not in (None, "t3")),
        (col("picture").is_null(), lambda row: row["picture"] is None),
        (col("label").isin([1]) & (col("n") < 9), lambda row: row["label"] == 1 and row["n"] < 9),
        ("label == 'dog' and n < 9", lambda row: row["label"] == 1 and row["n"] < 9),
        ("`two words` or n = 1", lambda row: row["two words"] or row["n"] == 1),
        ("note is not null", lambda row: row["note"] is not None),
        ("when < '1970-01-01 05:00'", lambda row: row["when"].timestamp() < 5 * 3600),
        (col("half") == 3.0, lambda row: row["n"] % 5 == 3),
        (pc.scalar(True), bool),
        (pc.scalar(False), operator.not_),
    ],
)
def test_a_predicate_finds_the_rows_for_which_it_is_true(
    dataset: StoredDataset, where: Any, holds: Any
) -> None:
    assert find_rows(dataset, where).tolist() == _expected(dataset, holds)


def test_a_predicate_sees_patched_values() -> None:
    objects = MemoryObjects()
    whole = _dataset(objects)
    link = update_rows(objects, whole, [5, 200], {"text": "new"})
    assert find_rows(open_dataset(objects, link.digest), col("text") == "new").tolist() == [5, 200]


def test_only_the_columns_that_a_predicate_names_are_read() -> None:
    assert named_columns(((col("n") == 1) | col("two words")).bound(SCHEMA), SCHEMA) == [
        "n",
        "two words",
    ]


@pytest.mark.parametrize("where", [col("nothing") == 3, "nothing == 3"])
def test_an_unknown_column_is_refused_with_those_that_there_are(
    dataset: StoredDataset, where: Any
) -> None:
    with pytest.raises(InvalidInputError, match=r"nothing.*\n?.*'n'|'n'.*nothing"):
        find_rows(dataset, where)


def test_an_expression_that_compares_number_with_text_says_so_in_our_words(
    dataset: StoredDataset,
) -> None:
    says = r"n == .x.*is not compared with string: use a value of the column's own type.*'n' \(int"
    with pytest.raises(InvalidInputError, match=says):
        find_rows(dataset, col("n") == "x")


@pytest.mark.parametrize(
    "where", [col("n") == "x", col("n") + 1, col("x") > 2, pc.field(0) == 1, col("text") > 3]
)
def test_a_predicate_that_does_not_fit_is_refused(dataset: StoredDataset, where: Any) -> None:
    with pytest.raises(InvalidInputError, match="predicate"):
        find_rows(dataset, where)


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ([5, 1, 5 - 300 + 3], None),
        ([7, 2], [2, 7]),
        (slice(290, None), list(range(290, 297))),
        (range(3), [0, 1, 2]),
        (-1, [296]),
        (np.arange(297) % 100 == 0, [0, 100, 200]),
        ({"n": [8, 299, 3]}, [6, 296]),
        ({"n": 8}, [6]),
        ({"n": [8, 8], "text": ["t1", "t2"]}, [6]),
    ],
)
def test_rows_are_chosen_by_number_and_key(
    dataset: StoredDataset, where: Any, numbers: list[int] | None
) -> None:
    if numbers is None:
        assert count_rows(dataset, where) == 2
    else:
        assert find_rows(dataset, where).tolist() == numbers


def test_each_key_may_name_several_rows(dataset: StoredDataset) -> None:
    chosen = choose_rows(dataset, {"label": ["dog", "cat"]})
    assert len(chosen.rows) == dataset.rows
    assert chosen.places[:3].tolist() == [1, 0, 1]


def test_what_is_chosen_in_some_order_takes_values_in_that_order(dataset: StoredDataset) -> None:
    chosen = choose_rows(dataset, [9, 2, 5])
    assert chosen.places.tolist() == [1, 2, 0]


def test_ids_name_rows_that_are_there(dataset: StoredDataset) -> None:
    ids = ids_of_rows(dataset, [296, 0, 7])
    assert find_rows(dataset, ids).tolist() == [0, 7, 296]
    assert find_rows(dataset, ids[0]).tolist() == [296]
    assert rows_of_ids(dataset, ids).tolist() == [296, 0, 7]
    records = row_id_table(dataset).of(np.array([0, 1]))
    assert find_rows(dataset, records).tolist() == [0, 1]


@pytest.mark.parametrize(
    "where", [["0123456789abcdef:7"], {"n": [999]}, {"text": ["t1", "t9"]}, [297]]
)
def test_what_names_no_row_is_refused_unless_that_does_not_matter(
    dataset: StoredDataset, where: Any
) -> None:
    with pytest.raises(NotFoundError):
        choose_rows(dataset, where)


def test_a_row_given_twice_is_refused_unless_that_does_not_matter(dataset: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="number 2 is given twice"):
        choose_rows(dataset, [4, 5, 4])
    assert choose_rows(dataset, [4, 5, 4], strict=False).rows.size == 2


def test_ids_of_deleted_rows_name_none() -> None:
    objects = MemoryObjects()
    whole = _dataset(objects)
    gone = ids_of_rows(whole, [3])
    left = open_dataset(objects, delete_rows(objects, whole, [3]).digest)
    assert find_rows(left, gone).tolist() == []
    assert rows_of_ids(left, gone).tolist() == [-1]


@pytest.mark.parametrize("where", [{"x": [1]}, {"half": [1]}, {}, {"nothing": [1]}])
def test_what_is_no_key_is_refused(dataset: StoredDataset, where: Any) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        choose_rows(dataset, where)


def test_chosen_rows_are_handed_out_by_fragment(dataset: StoredDataset) -> None:
    rows = np.array([0, 1, 299])
    found = [each for _, fragments in by_leaf(dataset, rows) for each in fragments]
    assert [rows[each.start : each.stop].tolist() for each in found] == [[0, 1], [299]]
    assert all(each.first_row <= rows[each.start] < each.first_row + each.rows for each in found)
