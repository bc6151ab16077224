"""Rows and batches of columns told apart: what a mapping of names is, by the types of its columns.

The value of a scalar column is a number in a row, and an array or list of numbers in a batch. Any
column that can tell decides, wherever it stands; where none can, it is a batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnLayout,
    Image,
    Json,
    Schema,
)
from tensorrepo.formats.images.encode import is_picture

_CHANNELS = range(1, 5)  # of the last dimension of one image


def is_row(schema: Schema, given: Mapping[str, Any]) -> bool:
    """Whether a mapping is one row, and not a batch of columns."""
    for column in schema.columns:
        value = given.get(column.name)
        if value is not None and (decided := _is_one(column, value)) is not None:
            return decided
    return False


def _is_one(column: Column, value: Any) -> bool | None:
    """Whether `value` is one value of the column; None where it cannot be told."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | os.PathLike):
        return True
    storage = column.storage
    shape = _shape(value)
    if storage.layout is ColumnLayout.BINARY:
        return _is_one_binary(column, shape, _is_bytes(value))
    depth = len(storage.shape)
    return {depth: True, depth + 1: False}.get(len(shape)) if None not in shape else None


def _is_one_binary(
    column: Column, shape: tuple[int | None, ...], is_bytes: bool
) -> bool | None:  # private
    if not shape:
        return True  # a link, or a number as JSON
    if isinstance(column.type, Json):
        return None  # a list is as good a value as many values
    if not isinstance(column.type, Image):
        return is_bytes and len(shape) == 1
    if len(shape) == 3:
        return shape[2] in _CHANNELS
    return len(shape) == 2


def _is_bytes(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).removeprefix("torch.") == "uint8"


def _shape(value: Any) -> tuple[int | None, ...]:
    """The shape of an array or of nested lists by their first items; None beyond an empty one."""
    if is_picture(value):  # which Arrow takes for an array of bytes
        return ()
    if hasattr(value, "__arrow_c_array__") or hasattr(value, "__arrow_c_stream__"):
        return (len(value), *_shape(_first(value)))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        own = tuple(value.shape)
        nested = own and own[0] and str(value.dtype) == "object"
        return (*own, *_shape(value.reshape(-1)[0])) if nested else own
    if not isinstance(value, list | tuple):
        return ()
    if not value:
        return (0, None)
    return (len(value), *_shape(_first(value)))


def _first(values: Any) -> Any:
    found = next((value for value in values if value is not None), None)
    return found if found is None or not hasattr(found, "as_py") else found.as_py()
