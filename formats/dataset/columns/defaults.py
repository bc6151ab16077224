"""What do rows have that got no value for a column?

A column's default is a JSON value, kept in the schema: numbers and nested lists of them (NaN and
the infinities as text, a complex number as its two parts), text, base64 of bytes, a class as its
number, a moment as its count. Where there is none, such rows are null.

Source:
    docs/spec/dataset.md, section "Schema".
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from datetime import datetime
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tensorrepo.formats.dataset.columns.convert import as_array, convert
from tensorrepo.formats.dataset.columns.fit import coerce_column, null_values
from tensorrepo.formats.dataset.columns.present import present_row
from tensorrepo.formats.dataset.columns.types import (
    Bytes,
    Embedding,
    Image,
    Link,
    Scalar,
    Storage,
    Tensor,
    Timestamp,
)
from tensorrepo.formats.dtypes import is_small_float
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues

MAX_DEFAULT_BYTES = 1 << 16
_BEYOND_JSON = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def default_values(column: Column, rows: int = 1) -> ColumnValues:
    """`rows` times the default of a column; nulls where it has none.

    Raises:
        InvalidInputError: it has none and is not nullable, or one that does not fit its type.
    """
    if column.default is not None:
        return _values(column).take(np.zeros(rows, np.int64))
    if not column.nullable:
        raise InvalidInputError(
            f"column {column.name!r} is not nullable and has no default: "
            "rows without a value need one. Give values, or a default."
        )
    return null_values(column, rows)


def default_row(column: Column) -> Any:
    """The default as reading a row gives it, None where there is none."""
    return None if column.default is None else present_row(column, default_values(column))


def check_default(column: Column) -> Column:
    """The column with its default as the JSON value that is stored.

    It may be given as anything that would do for a row: an array, bytes, a datetime, a class name.
    An empty array is kept as one with 0 in every unknown dimension.

    Raises:
        InvalidInputError: a default that does not fit the column's type, or above 64 KiB.
    """
    if column.default is None:
        return column
    form = _to_json(column, _values(column))
    size = len(json.dumps(form))
    if size > MAX_DEFAULT_BYTES:
        raise InvalidInputError(
            f"the default of column {column.name!r} takes {size} bytes of JSON, at most "
            f"{MAX_DEFAULT_BYTES} are kept in a schema. Add the column with values instead."
        )
    return replace(column, default=form)


def _values(column: Column) -> ColumnValues:
    try:
        return coerce_column(column, [_from_json(column, column.default)])
    except (ValueError, TypeError, InvalidInputError) as error:
        raise InvalidInputError(f"the default of column {column.name!r}: {error}") from error


def _from_json(column: Column, default: Any) -> Any:
    match column.type:
        case Bytes() | Image() if isinstance(default, str):
            return b64decode(default, validate=True)
        case Timestamp() if isinstance(default, str):
            return datetime.fromisoformat(default)
        case Scalar() | Tensor() | Embedding():
            return _array(column.storage, default)
        case _:
            return default


def _array(storage: Storage, default: Any) -> NDArray[Any]:
    array = as_array(_named_numbers(default), storage.element)
    least = tuple(dim or 0 for dim in storage.shape)
    if not array.size and not np.prod(least):
        return np.zeros(least, storage.element)
    parts = array.ndim == len(storage.shape) + 1 and array.shape[-1] == 2
    if storage.element.kind == "c" and parts and array.dtype.kind != "c":
        return np.ascontiguousarray(array, np.float64).view(np.complex128)[..., 0]
    return array


def _named_numbers(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_named_numbers(each) for each in value]
    return _BEYOND_JSON.get(value, value) if isinstance(value, str) else value


def _to_json(column: Column, values: ColumnValues) -> Any:
    row = present_row(column, values)
    match column.type:
        case Bytes() | Image():
            return b64encode(row).decode("ascii")
        case Link():
            return msgspec.to_builtins(row)
        case Timestamp():
            return int(row.astype(np.int64))
        case Scalar() | Tensor() | Embedding():
            return _numbers(np.asarray(row))
        case _:
            return row.item() if isinstance(row, np.generic) else row


def _numbers(array: NDArray[Any]) -> Any:
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    if is_small_float(array.dtype):  # whose scalars are no Python floats
        array = convert(array, np.dtype(np.float64), "", 0)
    return _nameable(array.tolist())


def _nameable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nameable(each) for each in value]
    if not isinstance(value, float) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
