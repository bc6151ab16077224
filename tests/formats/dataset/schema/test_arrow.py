"""Values survive the way through Arrow, and what is not theirs is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.arrow import from_arrow_array, to_arrow_array
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present, present_row
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnType,
    Embedding,
    Json,
    Link,
    LinkValue,
    Scalar,
    Schema,
    Tensor,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.column_types import TYPES, equal, tiled, value

ANY_TYPE = st.one_of(TYPES, tiled())
SEEDS = st.integers(0, 2**32)


@st.composite
def columns_with_rows(draw: st.DrawFn) -> tuple[Column, list[Any]]:
    column = Column("c", draw(ANY_TYPE), draw(st.booleans()))
    rng = np.random.default_rng(draw(SEEDS))
    return column, [value(column, rng) for _ in range(draw(st.integers(0, 12)))]


def _rows(column: Column, values: Any) -> list[Any]:
    return [present_row(column, values, at) for at in range(values.rows)]


def _same(column: Column, values: Any, rows: list[Any]) -> bool:
    found = _rows(column, values)
    return len(found) == len(rows) and all(map(equal, found, rows))


@given(columns_with_rows())
def test_values_survive_arrow(case: tuple[Column, list[Any]]) -> None:
    column, rows = case
    array = to_arrow_array(column.type, coerce_column(column, rows))
    array.validate(full=True)
    assert array.type == arrow_type(column.type)
    assert array.null_count == sum(row is None for row in rows)
    assert _same(column, coerce_column(column, array), rows)


@given(columns_with_rows(), st.data())
def test_a_slice_of_an_arrow_array_is_those_rows(
    case: tuple[Column, list[Any]], data: st.DataObject
) -> None:
    column, rows = case
    start = data.draw(st.integers(0, len(rows)))
    array = to_arrow_array(column.type, coerce_column(column, rows))[start:]
    assert _same(column, coerce_column(column, array), rows[start:])


@given(columns_with_rows(), st.data())
def test_a_slice_of_the_values_becomes_those_rows_in_arrow(
    case: tuple[Column, list[Any]], data: st.DataObject
) -> None:
    column, rows = case
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    array = to_arrow_array(column.type, coerce_column(column, rows).slice(start, stop))
    assert _same(column, coerce_column(column, array), rows[start:stop])


@given(columns_with_rows())
def test_values_survive_arrows_stored_form(case: tuple[Column, list[Any]]) -> None:
    column, rows = case
    schema = Schema((column,))
    array = to_arrow_array(column.type, coerce_column(column, rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.to_arrow()) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([array], schema=schema.to_arrow()))
    table = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert Schema.from_arrow(table.schema) == schema
    assert _same(column, coerce_column(column, table["c"]), rows)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_numbers_that_arrow_lacks_come_back_with_their_bits(dtype: str) -> None:
    column = Column("c", Scalar(dtype))
    given = np.frombuffer(np.random.default_rng(0).bytes(64), column.storage.element)
    array = to_arrow_array(column.type, coerce_column(column, given))
    found = present(column, coerce_column(column, array))
    assert isinstance(found, np.ndarray)
    assert found.dtype == given.dtype
    assert found.tobytes() == given.tobytes()


def test_arrow_floats_become_small_ones() -> None:
    array = pa.array([1.5, None, float("inf")], pa.float32())
    values = coerce_column(Column("c", Scalar("bfloat16"), nullable=True), array)
    assert _rows(Column("c", Scalar("bfloat16")), values) == [1.5, None, ml_dtypes.bfloat16("inf")]


@pytest.mark.parametrize("kind", [Tensor("bfloat16", (2,)), Embedding("float8_e5m2", 2)])
def test_arrow_lists_of_floats_become_small_ones(kind: ColumnType) -> None:
    array = pa.array([[1.5, 2], None, [0, -1]], pa.list_(pa.float32(), 2))
    column = Column("c", kind, nullable=True)
    found = _rows(column, coerce_column(column, pa.chunked_array([array, array[:1]])))
    assert [row if row is None else row.tolist() for row in found] == [
        [1.5, 2], None, [0, -1], [1.5, 2]
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="row 1, column 'c': expected a value"):
        coerce_column(Column("c", kind), array)


@pytest.mark.parametrize("kind", [Scalar("bfloat16"), Scalar("float16"), Tensor("uint8", (2,))])
def test_bytes_of_another_element_type_are_not_taken_for_these(kind: ColumnType) -> None:
    array = to_arrow_array(
        Tensor("bool", (2,)), coerce_column(Column("b", Tensor("bool", (2,))), [[True, False]])
    )
    assert from_arrow_array(kind, array) is None
    with pytest.raises(InvalidInputError, match="row 0, column 'c'"):
        coerce_column(Column("c", kind), array)


def test_bytes_that_are_no_bools_are_refused() -> None:
    assert from_arrow_array(Tensor("bool", (2,)), pa.array([b"\1\2"], pa.binary(2))) is None


@pytest.mark.parametrize(
    "kind",
    [
        Tensor("uint8", (2**16, 2**15)),
        Embedding("float32", 2**31),
        Embedding("bfloat16", 2**30),
        Tensor("complex128", (2**27,)),
        Tensor("uint8", (2**16, 2**15), (64, 64)),
    ],
)
def test_rows_that_arrow_cannot_count_are_refused_with_a_way_out(kind: ColumnType) -> None:
    with pytest.raises(UnsupportedError, match=r"Leave the column out, or read regions"):
        Schema.of({"c": kind}).to_arrow()


def test_links_are_text_in_arrow_and_taken_from_text_and_structs() -> None:
    link = LinkValue("s3://b/k", 3, 9, etag='"e"')
    column = Column("c", Link(), nullable=True)
    array = to_arrow_array(Link(), coerce_column(column, [link, None]))
    assert array.storage.to_pylist() == [
        '{"url":"s3://b/k","start":3,"stop":9,"etag":"\\"e\\""}',
        None,
    ]
    as_structs = pa.array([{"url": "s3://b/k", "start": 3, "stop": 9, "etag": '"e"'}, None])
    assert _rows(column, coerce_column(column, as_structs)) == [link, None]
    as_text = pa.array(["s3://b/k", '{"start": 0, "url": "x"}'])
    assert _rows(column, coerce_column(column, as_text)) == [LinkValue("s3://b/k"), LinkValue("x")]


@pytest.mark.parametrize(("text", "kind"), [("{", Link()), ("{}", Link()), ("{", Json())])
def test_text_that_is_no_such_value_is_refused_by_its_row(text: str, kind: ColumnType) -> None:
    with pytest.raises(InvalidInputError, match="row 8, column 'c'"):
        coerce_column(Column("c", kind), pa.array(['{"url": "a"}', text]), first_row=7)
