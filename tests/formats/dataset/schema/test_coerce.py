"""Defaults of columns: one row, kept as a JSON value."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.coerce import check_default, coerce_column, default_values
from tensorrepo.formats.dataset.schema.convert import present, present_row
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Embedding,
    Image,
    Json,
    Link,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.column_types import TYPES, equal, tiled, value


@st.composite
def defaulted(draw: st.DrawFn) -> tuple[Column, Any]:
    """A column with a default, which is of the form that rows are read in."""
    column = Column("c", draw(st.one_of(TYPES, tiled())))
    row = value(column, np.random.default_rng(draw(st.integers(0, 2**32))))
    assume(row is not None and (None not in column.storage.shape or np.size(row)))
    return Column("c", column.type, default=row), row


@given(defaulted())
def test_a_default_is_one_row_of_the_value(case: tuple[Column, Any]) -> None:
    column, row = case
    assert equal(present_row(column, default_values(column)), row)


@given(defaulted())
def test_a_default_survives_json_but_for_the_bits_of_nans(case: tuple[Column, Any]) -> None:
    column, row = case
    checked = check_default(column)
    (found,) = Schema.from_json(json.loads(json.dumps(Schema((checked,)).to_json()))).columns
    back = present_row(column, default_values(found))
    if hasattr(row, "dtype"):
        assert (back.dtype, back.shape) == (row.dtype, row.shape)
        both = [np.asarray(each).astype(np.complex128) for each in (back, row)]
        np.testing.assert_array_equal(*both)
    else:
        assert equal(back, row)


@given(defaulted())
def test_a_checked_default_stays_as_it_is(case: tuple[Column, Any]) -> None:
    checked = check_default(case[0])
    assert check_default(checked) == checked


@given(defaulted())
def test_a_default_survives_arrow(case: tuple[Column, Any]) -> None:
    schema = Schema((check_default(case[0]),))
    assert Schema.from_arrow(schema.to_arrow()) == schema


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (Scalar("float32"), float("nan"), "NaN"),
        (Scalar("bfloat16"), -np.inf, "-Infinity"),
        (Scalar("complex64"), 1 - 2j, [1.0, -2.0]),
        (Scalar("complex64"), 3, [3.0, 0.0]),
        (Tensor("complex64", (2,)), [1, 2j], [[1.0, 0.0], [0.0, 2.0]]),
        (Tensor("float8_e5m2", (None,)), [0.3, np.inf], [0.3125, "Infinity"]),
        (Tensor("int8", (None, 2)), [], []),
        (Embedding("uint8", 2), np.array([1, 255]), [1, 255]),
        (Bytes(), b"\0\xff", "AP8="),
        (Image("png"), "AP8=", "AP8="),
        (Text(), "ä", "ä"),
        (Json(), {"a": [None]}, {"a": [None]}),
        (Link(), "s3://b", {"url": "s3://b"}),
        (ClassLabel(("cat", "dog")), "dog", 1),
        (Timestamp("ms", "UTC"), "1970-01-01T00:00:01Z", 1000),
        (Timestamp("s"), datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), 5),
    ],
)
def test_defaults_are_kept_as_json(kind: ColumnType, given: Any, stored: Any) -> None:
    assert check_default(Column("c", kind, default=given)).default == stored


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Scalar("int8"), 300),
        (Scalar("int8"), "7"),
        (Scalar("bool"), float("nan")),
        (Tensor("float32", (2,)), [1, 2, 3]),
        (Tensor("float32", (3,)), []),
        (Tensor("float32", (2, 2)), [[1, 2], [3]]),
        (Bytes(), "no base64!"),
        (Bytes(), 7),
        (Text(), b"a"),
        (Json(), float("nan")),
        (Json(), object()),
        (Link(), {"link": "a"}),
        (ClassLabel(("cat", "dog")), "cow"),
        (ClassLabel(("cat", "dog")), 2),
        (Timestamp("s"), "soon"),
        (Timestamp("s"), 0.5),
    ],
)
def test_a_default_that_does_not_fit_is_refused_by_its_column(kind: ColumnType, given: Any) -> None:
    with pytest.raises(InvalidInputError, match="the default of column 'c'"):
        check_default(Column("c", kind, default=given))


def test_a_default_that_is_large_belongs_into_the_rows() -> None:
    with pytest.raises(InvalidInputError, match="Add the column with values instead"):
        check_default(Column("c", Text(), default="a" * 70_000))


def test_rows_without_a_default_are_null_or_refused() -> None:
    nullable = Column("c", Tensor("int8", (None, None)), nullable=True)
    assert present(nullable, default_values(nullable, 3)) == [None, None, None]
    with pytest.raises(InvalidInputError, match="not nullable and has no default"):
        default_values(Column("c", Scalar("int8")))


def test_a_default_is_repeated_for_so_many_rows() -> None:
    column = Column("c", Text(), nullable=True, default="ä")
    assert present(column, default_values(column, 2)) == ["ä", "ä"]
    values = coerce_column(column, [])
    assert default_values(column, 0).rows == values.rows
