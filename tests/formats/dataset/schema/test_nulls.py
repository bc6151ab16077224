"""Null policies: what becomes of nulls in what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present
from tensorrepo.formats.dataset.schema.nulls import null_policy
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.repo.errors import InvalidInputError

SCHEMA = Schema(
    (
        Column("n", Scalar("int32"), nullable=True),
        Column("x", Tensor("float32", (2,)), nullable=True),
        Column("ragged", Tensor("int16", (None,)), nullable=True),
        Column("t", Text(), nullable=True),
        Column("full", Scalar("int32")),
    )
)
GIVEN: dict[str, list[Any]] = {
    "n": [1, None, 3],
    "x": [[1, 2], None, None],
    "ragged": [np.arange(3, dtype="i2"), None, np.zeros(0, "i2")],
    "t": [None, "b", "c"],
    "full": [1, 2, 3],
}


def read(nulls: Any, name: str) -> Any:
    column = SCHEMA.column(name)
    policy = null_policy(SCHEMA, nulls)
    values = policy.applied(column, coerce_column(column, GIVEN[name]), range(10, 13))
    found = present(column, values, masked=policy.marks(column))
    assert isinstance(found, np.ma.MaskedArray) == (policy.marks(column) and name in ("n", "x"))
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in found]


@pytest.mark.parametrize(
    ("nulls", "name", "wanted"),
    [
        (None, "full", [1, 2, 3]),
        (None, "t", [None, "b", "c"]),
        (-1, "n", [1, -1, 3]),
        (-1, "x", [[1, 2], [-1, -1], [-1, -1]]),
        (-1, "ragged", [[0, 1, 2], None, []]),
        (-1, "t", [None, "b", "c"]),
        ({"x": [8, 9]}, "x", [[1, 2], [8, 9], [8, 9]]),
        ({"x": 0}, "x", [[1, 2], [0, 0], [0, 0]]),
        ({"ragged": [7]}, "ragged", [[0, 1, 2], [7], []]),
        ({"t": "?"}, "t", ["?", "b", "c"]),
        ({"t": None}, "t", [None, "b", "c"]),
        ("raise", "full", [1, 2, 3]),
    ],
)
def test_a_value_stands_for_null(nulls: Any, name: str, wanted: list[Any]) -> None:
    assert read(nulls, name) == wanted


@pytest.mark.parametrize(
    ("nulls", "name", "row"), [("raise", "n", 11), ({"t": "?"}, "x", 11), ({"n": 0}, "t", 10)]
)
def test_a_null_that_nothing_stands_for_is_an_error(nulls: Any, name: str, row: int) -> None:
    with pytest.raises(InvalidInputError, match=f"row {row}, column '{name}' is null"):
        read(nulls, name)


def test_without_a_policy_nulls_are_masked() -> None:
    column = SCHEMA.column("x")
    policy = null_policy(SCHEMA, None)
    values = policy.applied(column, coerce_column(column, GIVEN["x"]), range(3))
    assert np.ma.getmaskarray(present(column, values)).tolist() == [
        [False] * 2,
        [True] * 2,
        [True] * 2,
    ]
