"""Arrow tables of any type that Parquet holds, for Hypothesis."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.arrow_forms import canonical, is_bytes, is_text, reform

UNITS = ("s", "ms", "us", "ns")
_LEAVES = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(),
    pa.binary(), pa.large_binary(), pa.binary(3), pa.date32(), pa.date64(), pa.time32("s"),
    pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.null(), pa.decimal128(9, 2),
    pa.decimal128(38, 10), pa.decimal256(70, 5), pa.decimal256(9, 2),
    pa.dictionary(pa.int32(), pa.string()), pa.json_(),
    *map(pa.duration, UNITS), *map(pa.timestamp, UNITS), pa.timestamp("ms", "Europe/Paris"),
]  # fmt: skip
_DAY_MS = 86_400_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def arrow_types(leaves: int = 4) -> st.SearchStrategy[pa.DataType]:
    """Any type, lists, structs and maps of any among them."""
    return st.recursive(st.sampled_from(_LEAVES), _nested, max_leaves=leaves)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(pa.field("element", kind, nullable=kind == pa.null()))),
        inner.map(lambda kind: pa.list_(kind, 2)),
        fields.map(_struct),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    )


def _struct(fields: list[tuple[pa.DataType, bool]]) -> pa.DataType:
    return pa.struct(
        [
            pa.field(f"f{at}", kind, nullable or kind == pa.null())
            for at, (kind, nullable) in enumerate(fields)
        ]
    )


@st.composite
def arrow_arrays(draw: st.DrawFn, kind: pa.DataType | None = None, rows: int = 5) -> pa.Array:
    """`rows` values of a type, some of them null; of any type where none is given."""
    kind = draw(arrow_types()) if kind is None else kind
    plain = _storage(kind)
    values = draw(st.lists(_values(kind), min_size=rows, max_size=rows))
    array = pa.array(values, plain)
    return _typed(array, kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """The same with counts for what Python cannot say: moments, times and spans."""
    types = pa.types
    if types.is_temporal(kind):
        return pa.int32() if types.is_time32(kind) or types.is_date32(kind) else pa.int64()
    if types.is_dictionary(kind):
        return kind.value_type
    if isinstance(kind, pa.JsonType):
        return pa.string()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([_field(each) for each in kind.fields])
    if types.is_map(kind):
        return pa.map_(_storage(kind.key_type), _storage(kind.item_type))
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_storage(field.type)).with_nullable(True)


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Counts as what they count."""
    return reform(_counted(array, canonical(kind)), kind)


def _counted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_struct(kind):
        parts = [_counted(array.field(at), each.type) for at, each in enumerate(kind.fields)]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=array.is_null())
    if types.is_map(kind):
        keys, items = _counted(array.keys, kind.key_type), _counted(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    if types.is_large_list(kind):
        values = _counted(array.values, kind.value_type)
        return pa.LargeListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if types.is_fixed_size_list(kind):
        values = _counted(array.values, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())
    if types.is_date32(kind) and array.type == pa.int64():
        return array.view(pa.date64()).cast(pa.date32())
    if types.is_temporal(kind):
        return array.view(kind)
    return reform(array, kind)


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values as `_storage` takes them, None among them."""
    types = pa.types
    if types.is_null(kind):
        return st.none()
    return st.none() | _present(kind) if not types.is_dictionary(kind) else _texts()


def _inner(field: pa.Field) -> st.SearchStrategy[Any]:
    return _values(field.type) if field.nullable else _present(field.type)


def _texts() -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(["", "a", "bc"])


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    types = pa.types
    if types.is_struct(kind):
        return st.fixed_dictionaries({each.name: _inner(each) for each in kind.fields})
    if types.is_map(kind):
        return st.lists(st.tuples(st.text(max_size=3), _inner(kind.item_field)), max_size=3)
    if types.is_fixed_size_list(kind):
        return st.lists(_inner(kind.value_field), min_size=2, max_size=2)
    if types.is_list(kind) or types.is_large_list(kind):
        return st.lists(_inner(kind.value_field), max_size=3)
    return next(values(kind) for test, values in _OF_LEAVES if test(kind))


def _decimals(kind: Any) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**kind.precision - 1

    def placed(number: int) -> decimal.Decimal:
        with decimal.localcontext(prec=80):
            return decimal.Decimal(number).scaleb(-kind.scale)

    return st.integers(-most, most).map(placed)


def _times(kind: Any) -> st.SearchStrategy[int]:
    return st.integers(0, 86_400 * _PER_SECOND[kind.unit] - 1)


_OF_LEAVES: list[tuple[Callable[[Any], bool], Callable[[Any], st.SearchStrategy[Any]]]] = [
    (pa.types.is_boolean, lambda _: st.booleans()),
    (lambda kind: isinstance(kind, pa.JsonType), lambda _: st.sampled_from(["1", '{"a": []}'])),
    (lambda kind: is_text(kind) or pa.types.is_dictionary(kind), lambda _: st.text(max_size=4)),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_fixed_size_binary, lambda _: st.binary(min_size=3, max_size=3)),
    (is_bytes, lambda _: st.binary(max_size=4)),
    (pa.types.is_floating, lambda _: st.floats(width=16, allow_nan=False)),
    (pa.types.is_date64, lambda _: st.integers(-9999, 9999).map(lambda day: day * _DAY_MS)),
    (pa.types.is_time, _times),
    (pa.types.is_temporal, lambda _: st.integers(-9999, 9999)),
    (lambda _: True, lambda _: st.integers(0, 100)),
]
