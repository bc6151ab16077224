"""What a caller gives for a column: one value, many, or a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.changing.patch import computed, is_single, many_source
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.equality import differing_alike
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Embedding,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.column_types import TYPES, equal, tiled, value


@pytest.mark.parametrize(
    ("kind", "given", "single"),
    [
        (Scalar("int8"), 3, True),
        (Scalar("int8"), [3], False),
        (Scalar("int8"), np.int8(3), True),
        (Scalar("int8"), np.arange(2), False),
        (Scalar("int8"), pa.array([1]), False),
        (ClassLabel(("a", "b")), "a", True),
        (ClassLabel(("a", "b")), ["a"], False),
        (Text(), "abc", True),
        (Text(), ["abc"], False),
        (Text(), np.array(["a", "b"]), False),
        (Bytes(), b"abc", True),
        (Json(), {"a": 1}, True),
        (Json(), [1, 2], False),
        (Embedding("float32", 2), [1.0, 2.0], True),
        (Embedding("float32", 2), [[1.0, 2.0]], False),
        (Embedding("float32", 2), np.zeros((5, 2)), False),
        (Embedding("float32", 2), [None, None], False),
        (Tensor("int8", (None,)), np.arange(3), True),
        (Tensor("int8", (None,)), [1, 2], True),
        (Tensor("int8", (None,)), [np.arange(3), np.arange(2)], False),
        (Tensor("int8", (None,)), [None, np.arange(2)], False),
        (Tensor("int8", (None, 2)), [[1, 2]], True),
        (Tensor("int8", (None, 2)), np.zeros((4, 3, 2)), False),
        (Text(), None, True),
    ],
)
def test_a_value_is_told_from_many(kind: ColumnType, given: Any, *, single: bool) -> None:
    assert is_single(Column("c", kind), given) == single


@given(kind=st.one_of(TYPES, tiled()), seed=st.integers(0, 2**32), nullable=st.booleans())
def test_rows_differ_where_their_bits_do(kind: ColumnType, seed: int, *, nullable: bool) -> None:
    column = Column("c", kind, nullable)
    rng = np.random.default_rng(seed)
    old = [value(column, rng) for _ in range(12)]
    new = [value(column, rng) if rng.random() < 0.5 else each for each in old]
    found = np.flatnonzero(differing_alike(coerce_column(column, old), coerce_column(column, new)))
    expected = [at for at in range(12) if not equal(old[at], new[at])]
    assert found.tolist() == expected


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_as_many_values_are_wanted_as_there_are_rows(rows: int) -> None:
    column = Column("c", Text())
    with pytest.raises(InvalidInputError, match=f"3 values for {rows} rows"):
        many_source(column, ["a", "b", "c"], rows)
    with pytest.raises(InvalidInputError, match=f"3 values for {rows} rows"):
        computed(column, ["a", "b", "c"], rows)
