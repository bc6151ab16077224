"""Rows that do not fit are passed over one by one; those that fit are as if given alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.lenient import (
    MAX_NOTED,
    Misfits,
    batch_part,
    batch_rows,
    coerce_leniently,
    parse_on_error,
)
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Text
from tensorrepo.repo.errors import InvalidInputError

SCHEMA = Schema((Column("n", Scalar("int8")), Column("t", Text(), nullable=True)))
GOOD_N, BAD_N, GOOD_T, BAD_T = 5, 1000, "text", 7
# Per row: whether each of its values fits.
FITS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20)


def _rows(fits: list[tuple[bool, bool]]) -> list[dict[str, Any]]:
    return [
        {"n": GOOD_N if first else BAD_N, "t": GOOD_T if second else BAD_T}
        for first, second in fits
    ]


def _shown(values: Any) -> list[dict[str, Any]]:
    return [
        {
            column.name: present_row(column, each, at)
            for column, each in zip(SCHEMA.columns, values, strict=True)
        }
        for at in range(values[0].rows)
    ]


@given(FITS)
def test_rows_that_do_not_fit_are_skipped_and_named(fits: list[tuple[bool, bool]]) -> None:
    misfits = Misfits("skip")
    values = coerce_leniently(SCHEMA, _rows(fits), misfits)
    assert _shown(values) == [{"n": GOOD_N, "t": GOOD_T}] * fits.count((True, True))
    wrong = [at for at, each in enumerate(fits) if each != (True, True)]
    assert [(each.row, each.column) for each in misfits.noted] == [(at, None) for at in wrong]
    assert (misfits.rows, misfits.skipped, misfits.nulled) == (len(fits), len(wrong), 0)


@given(FITS)
def test_values_that_do_not_fit_become_null_where_they_may(fits: list[tuple[bool, bool]]) -> None:
    misfits = Misfits("null")
    values = coerce_leniently(SCHEMA, _rows(fits), misfits)
    expected = [{"n": GOOD_N, "t": GOOD_T if second else None} for first, second in fits if first]
    assert _shown(values) == expected
    assert misfits.nulled == fits.count((True, False))
    assert misfits.skipped == len(fits) - len(expected)


@given(FITS.filter(lambda fits: any(each != (True, True) for each in fits)))
def test_by_default_the_first_row_that_does_not_fit_is_told(fits: list[tuple[bool, bool]]) -> None:
    with pytest.raises(InvalidInputError):
        coerce_leniently(SCHEMA, _rows(fits), Misfits())


def test_rows_are_counted_over_all_batches() -> None:
    misfits = Misfits("skip")
    for fits in ([(True, True)] * 3, [(True, True), (False, True)], [(False, True)]):
        coerce_leniently(SCHEMA, _rows(fits), misfits)
    assert [each.row for each in misfits.noted] == [4, 5]
    assert misfits.summary == "2 rows skipped"


def test_columns_that_are_wrong_are_refused_whatever_shall_be_done() -> None:
    with pytest.raises(InvalidInputError):
        coerce_leniently(SCHEMA, {"n": [1], "t": ["a"], "more": [2]}, Misfits("skip"))


def test_a_value_that_became_null_is_told_with_its_row() -> None:
    misfits = Misfits("null")
    coerce_leniently(SCHEMA, _rows([(True, True), (True, False)]), misfits)
    assert misfits.noted[0].reason.startswith("row 1, column 't'")


def test_of_many_misfits_the_first_are_noted_and_all_counted() -> None:
    misfits = Misfits("skip")
    rows = MAX_NOTED + 5
    coerce_leniently(SCHEMA, {"n": [BAD_N] * rows, "t": [None] * rows}, misfits)
    assert (len(misfits.noted), misfits.skipped) == (MAX_NOTED, rows)


BATCHES: list[Any] = [
    {"n": [1, 2, 3], "t": ["a", None, "c"]},
    [{"n": 1, "t": "a"}, {"n": 2, "t": None}, {"n": 3, "t": "c"}],
    pa.table({"n": [1, 2, 3], "t": ["a", None, "c"]}),
    pa.RecordBatch.from_pydict({"n": [1, 2, 3], "t": ["a", None, "c"]}),
]


@pytest.mark.parametrize("batch", BATCHES, ids=["columns", "rows", "table", "record batch"])
def test_parts_of_batches_of_every_kind_are_their_rows(batch: Any) -> None:
    assert batch_rows(batch) == 3
    part = batch_part(batch, 1, 3)
    assert batch_rows(part) == 2
    assert _shown(coerce_batch(SCHEMA, part, 0)) == [{"n": 2, "t": None}, {"n": 3, "t": "c"}]


@pytest.mark.parametrize("text", ["raise", "skip", "null"])
def test_what_to_do_is_said_in_words(text: str) -> None:
    assert parse_on_error(text) == text


def test_other_words_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="raise, skip or null"):
        parse_on_error("ignore")
