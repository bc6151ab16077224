"""Schemas survive JSON and Arrow, and refuse what cannot be stored."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Date,
    Decimal,
    Duration,
    Embedding,
    Image,
    List,
    Map,
    Null,
    Scalar,
    Schema,
    Struct,
    Tensor,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.write import column_id
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.column_types import NAMES, TYPES, tiled

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
IDS = st.just("") | st.integers(0, 2**64 - 1).map("{:016x}".format)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Up to four columns with everything that a column may have but for being derived."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    kinds = st.one_of(TYPES, tiled())
    return Schema(
        tuple(
            Column(name, draw(kinds), draw(st.booleans()), draw(IDS), draw(JSON)) for name in names
        )
    )


@given(schemas())
def test_a_schema_survives_json(schema: Schema) -> None:
    text = json.dumps(schema.to_json(), allow_nan=False)
    assert Schema.from_json(json.loads(text)) == schema


@given(schemas())
def test_a_schema_survives_arrow(schema: Schema) -> None:
    assert Schema.from_arrow(schema.to_arrow()) == schema


@given(schemas())
def test_a_schema_survives_arrows_stored_form_with_all_that_it_says(schema: Schema) -> None:
    stored = schema.to_arrow().serialize()
    assert Schema.from_arrow(pa.ipc.read_schema(stored)) == schema


def test_a_schema_survives_arrows_stored_form() -> None:
    columns = {"x": Tensor("bool", (2, 3)), "r": Tensor("complex64", (None, None)), "t": Text()}
    schema = Schema.of(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.to_arrow()):
        pass
    assert Schema.from_arrow(pa.ipc.open_stream(sink.getvalue()).schema) == schema


@pytest.mark.parametrize(
    ("arrow", "expected"),
    [
        (pa.int8(), Scalar("int8")),
        (pa.bool_(), Scalar("bool")),
        (pa.float16(), Scalar("float16")),
        (pa.string(), Text()),
        (pa.string_view(), Text()),
        (pa.dictionary(pa.int8(), pa.string()), Text()),
        (pa.binary(), Bytes()),
        (pa.binary(7), Bytes(7)),
        (pa.timestamp("ms", "UTC"), Timestamp("ms", "UTC")),
        (pa.date32(), Date()),
        (pa.date64(), Date()),
        (pa.time32("s"), Time("s")),
        (pa.duration("ns"), Duration("ns")),
        (pa.decimal128(10, 2), Decimal(10, 2)),
        (pa.decimal256(60, 2), Decimal(60, 2)),
        (pa.null(), Null()),
        (pa.struct([("a", pa.int8())]), Struct((("a", Scalar("int8")),))),
        (pa.list_(pa.list_(pa.int8())), List(List(Scalar("int8")))),
        (pa.list_(pa.string(), 2), List(Text(), 2)),
        (pa.map_(pa.string(), pa.date32()), Map(Text(), Date())),
        (pa.list_(pa.float32()), Tensor("float32", (None,))),
        (pa.list_(pa.list_(pa.float32(), 3), 2), Tensor("float32", (2, 3))),
        (pa.fixed_shape_tensor(pa.int32(), (4, 5)), Tensor("int32", (4, 5))),
    ],
)
def test_foreign_arrow_types_are_understood(arrow: Any, expected: Any) -> None:
    (column,) = Schema.from_arrow(pa.schema([pa.field("c", arrow)])).columns
    assert column == Column("c", expected, nullable=True)


@pytest.mark.parametrize(
    "arrow",
    [
        pa.decimal128(10, -2),
        pa.struct([]),
        pa.list_(pa.string(), 0),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.month_day_nano_interval(),
        pa.opaque(pa.int8(), "thing", "somebody"),
        pa.list_(pa.struct([("a", pa.month_day_nano_interval())])),
        pa.fixed_shape_tensor(pa.int32(), (4, 5), permutation=[1, 0]),
    ],
)
def test_arrow_types_that_no_column_holds_are_refused_by_name(arrow: Any) -> None:
    with pytest.raises(UnsupportedError, match="column 'c'"):
        Schema.from_arrow(pa.schema([pa.field("c", arrow)]))


def test_metadata_that_contradicts_the_data_does_not_count() -> None:
    field = Schema.of({"c": ClassLabel(("a",))}).to_arrow().field(0)
    found = Schema.from_arrow(pa.schema([field.with_type(pa.string())]))
    assert found.columns[0].type == Text()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema(()), "1 to 65535 columns"),
        (lambda: Schema((Column("a", Text()), Column("a", Bytes()))), "'a' is there twice"),
        (lambda: Column("", Text()), "1 to 255 bytes"),
        (lambda: Column("ä" * 128, Text()), "got 256"),
        (lambda: Column("a\n", Text()), "control characters"),
        (lambda: Column("\ud800", Text()), "not valid unicode"),
        (lambda: Column("a", Text(), id="xyz"), "16 hex digits"),
        (lambda: Tensor("float32", (-1,)), "dimensions are in"),
        (lambda: Tensor("float32", (1,) * 33), "at most 32 dimensions"),
        (lambda: Embedding("float32", 0), "at least 1"),
        (lambda: ClassLabel(("a", "a")), "'a' is named twice"),
        (lambda: Timestamp("h"), "unit is s, ms, us or ns"),  # type: ignore[arg-type]
        (lambda: Schema.of({"a": "float31"}), "unknown element type"),
    ],
)
def test_nonsense_is_refused_at_birth(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize(
    "form",
    [
        None,
        {},
        {"columns": {}},
        {"columns": [{"name": "a"}]},
        {"columns": [{"name": "a", "type": {"type": "tensor"}}]},
        {"columns": [{"name": "a", "type": {"type": "text"}, "extra": 1}]},
        {"columns": [{"name": 7, "type": {"type": "text"}}]},
        {"columns": [{"name": "a", "type": {"type": "text"}, "nullable": 1}]},
        {"columns": [{"name": "a", "type": {"type": "text"}, "arrow": True}]},
        {"columns": [{"name": "a", "type": {"type": "scalar", "dtype": ",loat32"}}]},
    ],
)
def test_what_is_no_schema_is_refused(form: object) -> None:
    with pytest.raises(InvalidInputError):
        Schema.from_json(form)


def test_a_type_of_a_later_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="'hologram'"):
        Schema.from_json({"columns": [{"name": "a", "type": {"type": "hologram"}}]})


def test_unknown_columns_are_refused_with_those_there_are() -> None:
    with pytest.raises(NotFoundError, match="no column 'c'; there are 'a', 'b'"):
        Schema.of({"a": "int8", "b": Image()}).select(["a", "c"])


def test_a_columns_id_depends_on_where_it_was_added_its_name_and_its_type() -> None:
    column = Column("a", Scalar("int8"))
    ids = {
        column_id(None, column),
        column_id(None, Column("b", Scalar("int8"))),
        column_id(None, Column("a", Scalar("int16"))),
    }
    assert len(ids) == 3
    assert column_id(None, column) == column_id(None, Column("a", Scalar("int8"), nullable=True))
