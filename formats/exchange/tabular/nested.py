"""How do structs, maps and uneven lists of Arrow become a column of JSON?

A struct becomes an object, a map with keys of text as well; any other map is a list of pairs of
key and value. Moments, dates and decimals are text. Bytes have no place in JSON, nor have NaN and
the infinities.
"""

from __future__ import annotations

import json
from datetime import date, time
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from tensorrepo.formats.dataset.columns.arrow_types import is_list, is_text

MAX_DEPTH = 64
STEP_BYTES = 1 << 20  # of Arrow's: as Python's objects they are many times as much


def is_nested(kind: pa.DataType) -> bool:
    """Whether rows are structs, maps or lists."""
    types = pa.types
    return bool(types.is_struct(kind) or types.is_map(kind) or _is_list(kind))


def json_says(kind: pa.DataType, depth: int = 0) -> bool:
    """Whether JSON says every value of an Arrow type, NaN and the infinities aside."""
    types = pa.types
    if depth > MAX_DEPTH:
        return False
    if types.is_struct(kind):
        return all(json_says(kind.field(at).type, depth + 1) for at in range(kind.num_fields))
    if types.is_map(kind):
        return json_says(kind.key_type, depth + 1) and json_says(kind.item_type, depth + 1)
    if _is_list(kind) or types.is_dictionary(kind):
        return json_says(kind.value_type, depth + 1)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    moment = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    return bool(number or moment or is_text(kind) or types.is_null(kind) or types.is_decimal(kind))


def json_texts(array: pa.Array) -> pa.Array:
    """The rows of an array as JSON.

    Raises:
        pa.ArrowInvalid: NaN or an infinity, or a map that has a key twice.
    """
    step = max(1, STEP_BYTES * len(array) // max(1, array.nbytes))
    texts: list[str | None] = []
    for start in range(0, len(array), step):
        rows = array.slice(start, step).to_pylist()
        if _holds_map(array.type):
            rows = [_plain(row, array.type) for row in rows]
        texts += [None if row is None else _encode(row) for row in rows]
    return pa.array(texts, pa.large_string())


def _encode(value: Any) -> str:
    try:
        return _ENCODER.encode(value)
    except ValueError as error:
        raise pa.ArrowInvalid(
            "a value inside is NaN or infinite, which JSON cannot say. Make it null"
        ) from error


def _text(value: Any) -> str:
    """What JSON has no word for."""
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise pa.ArrowInvalid(f"a value inside is {type(value).__name__}, which JSON cannot say")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_text
)


@cache
def _holds_map(kind: pa.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    types = pa.types
    if types.is_struct(kind):
        return any(_holds_map(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_map(kind)) or (is_nested(kind) and _holds_map(kind.value_type))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """`value` with objects for maps, which Python gets as pairs."""
    types = pa.types
    if value is None or not _holds_map(kind):
        return value
    if types.is_struct(kind):
        fields = (kind.field(at) for at in range(kind.num_fields))
        return {field.name: _plain(value[field.name], field.type) for field in fields}
    if not types.is_map(kind):
        return [_plain(each, kind.value_type) for each in value]
    pairs = [(key, _plain(item, kind.item_type)) for key, item in value]
    if not is_text(kind.key_type):
        return [[_plain(key, kind.key_type), item] for key, item in pairs]
    found = dict(pairs)
    if len(found) < len(pairs):
        raise pa.ArrowInvalid("a map has a key twice")
    return found


def _is_list(kind: pa.DataType) -> bool:
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))
