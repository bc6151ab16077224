"""Keys are found exactly, whatever their columns hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.selecting.row_keys import KeyTable, check_key_columns, key_array
from tensorrepo.repo.errors import InvalidInputError

COLUMNS = (
    Column("number", Scalar("int8")),
    Column("text", Text()),
    Column("bytes", Bytes()),
    Column("flag", Scalar("bool")),
    Column("class", ClassLabel(("a", "b", "c"))),
    Column("time", Timestamp("s", "UTC")),
)
VALUES: list[list[Any]] = [
    [-1, 0, 1],
    ["", "a", "b"],
    [b"", b"a", b"b"],
    [False, True, True],
    [0, 1, 2],
    [0, 1, -1],
]
PLACES = st.lists(st.tuples(*[st.integers(0, 2)] * len(COLUMNS)), max_size=30)


def _arrays(columns: tuple[Column, ...], rows: list[tuple[int, ...]]) -> list[pa.Array]:
    every = dict(zip((column.name for column in COLUMNS), VALUES, strict=True))
    return [
        key_array(column, coerce_column(column, [every[column.name][row[at]] for row in rows]))
        for at, column in enumerate(columns)
    ]


@given(known=PLACES, asked=PLACES, width=st.integers(1, len(COLUMNS)))
def test_a_key_is_found_where_it_was_given_first(
    known: list[tuple[int, ...]], asked: list[tuple[int, ...]], width: int
) -> None:
    columns = COLUMNS[:width]
    table = KeyTable.of(columns, _arrays(columns, known), unique=False)

    def shown(row: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(values[at] for values, at in zip(VALUES, row[:width], strict=False))

    first: dict[tuple[Any, ...], int] = {}
    for at, row in enumerate(known):
        first.setdefault(shown(row), at)
    found = table.find(_arrays(columns, asked))
    assert found.tolist() == [first.get(shown(row), -1) for row in asked]


def test_a_null_is_no_key() -> None:
    column = Column("text", Text(), nullable=True)
    table = KeyTable.of((column,), [pa.array(["a", "b"], pa.large_string())], unique=True)
    assert table.find([pa.array(["b", None, "c"], pa.large_string())]).tolist() == [1, -1, -1]
    with pytest.raises(InvalidInputError, match="row 1, column 'text': a key cannot be null"):
        KeyTable.of((column,), [pa.array(["a", None], pa.large_string())], unique=True)


def test_a_key_given_twice_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"rows 1 and 3 .* number=1, text='b'"):
        KeyTable.of(
            COLUMNS[:2],
            _arrays(COLUMNS[:2], [(0, 0), (2, 2), (1, 1), (2, 2)]),
            unique=True,
        )


@pytest.mark.parametrize(
    "kind", [Scalar("float32"), Scalar("complex64"), Scalar("bfloat16"), Tensor("int8", (2,))]
)
def test_what_is_not_compared_exactly_is_no_key(kind: Any) -> None:
    with pytest.raises(InvalidInputError, match="cannot be a key"):
        check_key_columns(Schema((Column("x", kind),)), ["x"])


def test_many_columns_do_not_overflow() -> None:
    columns = tuple(Column(f"c{at}", Scalar("int64")) for at in range(8))
    rng = np.random.default_rng(0)
    keys = [pa.array(rng.integers(0, 1 << 40, 500)) for _ in columns]
    table = KeyTable.of(columns, keys, unique=True)
    assert table.find([key.take(pa.array([7, 499])) for key in keys]).tolist() == [7, 499]
