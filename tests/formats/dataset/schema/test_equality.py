"""Values of every type are equal when their bits and nulls are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.equality import differing
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Scalar, Storage, Tensor, Text
from tensorrepo.formats.dataset.schema.values import FixedValues
from tests.support.builders.datasets import TYPES, equal, value


def _drawn(column: Column, seed: int, count: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    old = [value(column, rng) for _ in range(count)]
    new = [one if rng.random() < 0.5 else value(column, rng) for one in old]
    return old, new


@given(TYPES, st.booleans(), st.integers(0, 2**32), st.integers(0, 12))
def test_rows_differ_where_their_values_do(
    kind: Any, nullable: bool, seed: int, count: int
) -> None:
    column = Column("c", kind, nullable)
    old, new = _drawn(column, seed, count)
    before, after = coerce_column(column, old), coerce_column(column, new)
    found = differing(before, after, column.storage, column.storage)
    assert found.tolist() == [not equal(*pair) for pair in zip(old, new, strict=True)]


@given(TYPES, st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 4))
def test_slices_are_compared_as_what_they_are(kind: Any, seed: int, start: int, count: int) -> None:
    column = Column("c", kind, nullable=True)
    old, new = _drawn(column, seed, start + count)
    before = coerce_column(column, old).slice(start, start + count)
    after = coerce_column(column, new[start:])
    found = differing(before, after, column.storage, column.storage)
    assert found.tolist() == [not equal(*p) for p in zip(old[start:], new[start:], strict=True)]


def test_a_narrow_side_is_widened_whichever_it_is() -> None:
    narrow, wide = (Column("c", Scalar(name)).storage for name in ("int16", "float64"))
    old = FixedValues(np.array([1, -2, 3], "<i2"))
    new = FixedValues(np.array([1.0, -2.0, 3.5]))
    assert differing(old, new, narrow, wide).tolist() == [False, False, True]
    assert differing(new, old, wide, narrow).tolist() == [False, False, True]


def test_open_dimensions_hold_the_same_rows() -> None:
    closed, opened = Tensor("int8", (2,)), Tensor("int8", (None,))
    old = coerce_column(Column("c", closed), [[1, 2], [3, 4]])
    new = coerce_column(Column("c", opened), [[1, 2], [3]])
    forms = [Column("c", kind).storage for kind in (closed, opened)]
    assert differing(old, new, forms[0], forms[1]).tolist() == [False, True]


def test_values_of_types_that_have_nothing_in_common_differ() -> None:
    numbers = FixedValues(np.zeros(2, "<i8"))
    text = Storage(ColumnLayout.BINARY, "uint8", ())
    texts = coerce_column(Column("t", Text()), ["", ""])
    assert differing(numbers, texts, Storage(ColumnLayout.FIXED, "int64", ()), text).all()
