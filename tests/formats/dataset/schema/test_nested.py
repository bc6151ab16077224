"""The row codec of nested values: any comes back, and no damaged row passes for a sound one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.arrow_forms import canonical, reform
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.nested import decode_nested, encode_nested
from tensorrepo.formats.dataset.schema.schema import Column, Scalar
from tensorrepo.formats.dataset.schema.types import List, Struct
from tensorrepo.formats.dataset.schema.values import BinaryValues, binary_of, binary_rows
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.arrow_tables import arrow_arrays, arrow_types

NESTED = arrow_types().map(pa.list_) | arrow_types().map(lambda kind: pa.struct([("a", kind)]))
DEEP = pa.list_(
    pa.struct([("a", pa.int16()), ("b", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2))))])
)
ROWS = [
    [{"a": 1, "b": [("k", [None]), ("l", [])]}, None, {"a": None, "b": None}],
    None,
    [],
    [{"a": 2, "b": [("", None)]}],
]


def encoded(rows: list[Any], kind: pa.DataType) -> BinaryValues:
    return encode_nested(reform(pa.array(rows, kind), canonical(kind)))


@given(kind=NESTED, data=st.data())
def test_any_rows_come_back(kind: pa.DataType, data: st.DataObject) -> None:
    array = reform(data.draw(arrow_arrays(kind)), canonical(kind))
    back = decode_nested(encode_nested(array), array.type)
    back.validate(full=True)
    assert back.equals(array)


@given(kind=NESTED, data=st.data())
def test_a_row_is_the_same_bytes_wherever_it_stands(kind: pa.DataType, data: st.DataObject) -> None:
    array = reform(data.draw(arrow_arrays(kind)), canonical(kind))
    alone = [binary_rows(encode_nested(array.slice(at, 1)))[0] for at in range(len(array))]
    assert binary_rows(encode_nested(array)) == alone


def test_what_lies_under_nulls_is_not_stored() -> None:
    """Arrow allows anything there: equal rows would have different bytes."""
    mask = pa.array([False, True])
    texts = pa.array(["a", "hidden"], pa.large_string())
    struct = pa.StructArray.from_arrays([texts], ["a"], mask=mask)
    lists = pa.LargeListArray.from_arrays(pa.array([0, 2]), struct)
    plain = encoded([[{"a": "a"}, None]], pa.list_(pa.struct([("a", pa.string())])))
    assert binary_rows(encode_nested(lists)) == binary_rows(plain)


@pytest.mark.parametrize("row", [0, 3])
def test_no_row_that_is_cut_short_or_too_long_is_decoded(row: int) -> None:
    kind = canonical(DEEP)
    content = binary_rows(encoded(ROWS, DEEP))[row]
    assert content is not None
    for damaged in (content[:-1], content + b"\0", b"", content[1:]):
        with pytest.raises(CorruptError, match="nested row"):
            decode_nested(binary_of([damaged]), kind)


@given(data=st.data())
def test_bytes_of_no_row_are_refused_or_are_some_value(data: st.DataObject) -> None:
    """Pages have checksums: this is for those that somebody made up."""
    kind = canonical(DEEP)
    content = bytearray(binary_rows(encoded(ROWS, DEEP))[0] or b"")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_nested(binary_of([bytes(content)]), kind)
    except CorruptError:
        return
    found.validate(full=True)


def test_a_count_beyond_the_bytes_of_its_row_takes_no_memory() -> None:
    lying = np.array([2**32 - 1], "<u4").tobytes()
    with pytest.raises(CorruptError, match="counts more values than it has bytes"):
        decode_nested(binary_of([lying]), pa.large_list(pa.null()))
    sized = pa.large_list(pa.list_(pa.bool_(), 2**30))
    with pytest.raises(CorruptError, match="counts more values than it has bytes"):
        decode_nested(binary_of([np.array([1], "<u4").tobytes() + b"\0" * 9]), sized)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"a": 1, "c": 2}], "row 0, column 's': .* found the key 'c' in dict"),
        ([None, {"a": 1, "b": [{"x": 1}, {"y": 2}]}], "row 1, column 's': .* the key 'y'"),
    ],
)
@pytest.mark.parametrize("as_arrow", [False, True])
def test_a_key_that_a_struct_has_not_is_refused(
    rows: list[Any], problem: str, *, as_arrow: bool
) -> None:
    """Arrow would leave it out without a word."""
    inner = List(Struct((("x", Scalar("int8")),)))
    column = Column("s", Struct((("a", Scalar("int8")), ("b", inner))), nullable=True)
    with pytest.raises(InvalidInputError, match=problem):
        coerce_column(column, pa.array(rows) if as_arrow else rows)
    kept = coerce_column(column, [{"a": 1}, {"b": [{}]}])
    assert to_arrow_array(column.type, kept).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": [{"x": None}]},
    ]
