"""Types of lists and dicts of Python, as JSON and iterables of rows have them.

Arrow gives all dicts of a column the keys of all of them. So they are structs only where they
agree: each has the same keys, and each key values of one type. Else they are JSON, which keeps what
each of them says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.schema.arrow_forms import is_list
from tensorrepo.formats.dataset.schema.arrow_losses import says_all
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.types import ColumnType
from tensorrepo.formats.exchange.child_main import holds_null
from tensorrepo.repo.errors import UnsupportedError

_MOST_FIELDS = 256  # of one struct: more keys are data, not names


def nested_array(values: Sequence[Any]) -> pa.Array | None:
    """Lists and dicts as Arrow's lists and structs; None: they do not agree, or are neither.

    None of masked arrays too, of which Arrow takes what lies below the masks, and of values of
    which Arrow would take a part.
    """
    if any(isinstance(value, np.ma.MaskedArray) for value in values):
        return None
    try:
        array = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if not pa.types.is_nested(array.type) or not _is_known(array.type):
        return None
    if _holds_struct(array.type) and not _agrees(values, array.type):
        return None
    return array if says_all(values, array.type, inferred=True) else None


def nested_type(values: Sequence[Any], name: str) -> ColumnType | None:
    """The column type of lists and dicts; None where they do not agree."""
    array = nested_array(values)
    return None if array is None else nested_kind(array, name)


def nested_kind(array: pa.Array, name: str) -> ColumnType | None:
    """The column type of what `nested_array` made; None of what is nested too deep."""
    try:
        return infer_type(array.type, name, null_elements=holds_null(array))
    except UnsupportedError:
        return None


def _is_known(kind: pa.DataType) -> bool:
    """Whether each value inside has a type: of empty lists and of nulls alone nobody knows it."""
    if pa.types.is_struct(kind):
        return 0 < kind.num_fields <= _MOST_FIELDS and all(_is_known(f.type) for f in kind.fields)
    if is_list(kind):
        return _is_known(kind.value_type)
    return not pa.types.is_null(kind)


def _holds_struct(kind: pa.DataType) -> bool:
    while is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_struct(kind))


def _agrees(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether all dicts inside have the keys that their type has."""
    present = [value for value in values if value is not None]
    if is_list(kind):
        inner = kind.value_type
        nested = _holds_struct(inner)
        return not nested or _agrees((item for value in present for item in value), inner)
    if not pa.types.is_struct(kind):
        return True
    names = {each.name for each in kind.fields}
    if not all(isinstance(value, Mapping) and value.keys() == names for value in present):
        return False
    inside = [each for each in kind.fields if _holds_struct(each.type)]
    return all(_agrees([value[each.name] for value in present], each.type) for each in inside)


def is_matrix(kind: pa.DataType) -> bool:
    """Whether a type is lists in lists of numbers."""
    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth > 1 and _is_number(kind)


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def even_rows(array: pa.Array) -> np.ndarray[Any, Any] | None:
    """Lists of numbers, all of one length, as an array, masked where a row is null; else None."""
    if not is_list(array.type) or not _is_number(array.type.value_type) or holds_null(array):
        return None
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    lengths = np.diff(np.asarray(array.offsets))[valid]
    width = int(lengths[0])
    if not width or (lengths != width).any():
        return None
    flat = np.asarray(array.flatten().to_numpy(zero_copy_only=False))
    if valid.all():
        return flat.reshape(-1, width)
    rows = np.zeros((len(array), width), flat.dtype)
    rows[valid] = flat.reshape(-1, width)
    return np.ma.MaskedArray(rows, np.broadcast_to(~valid[:, None], rows.shape))
