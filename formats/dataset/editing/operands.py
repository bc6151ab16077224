"""Which values may be compared with a column, and as what does Arrow take them?

Numbers go with numbers, text with text, and so on. Arrow's own conversions would compare 2^63 with
the wrong number, or fail at the first row that they do not suit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.columns.types import (
    ClassLabel,
    Embedding,
    Layout,
    Tensor,
    Timestamp,
    storage_of,
)

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.types import ColumnType

_NUMBER, _BOOL, _TEXT, _MOMENT = "a number", "true or false", "text in quotes", "a moment"


def operand_kind(column_type: ColumnType) -> str | None:
    """What a column is compared with, in words; None: with nothing. Equal words go together."""
    storage = storage_of(column_type)
    if isinstance(column_type, Tensor | Embedding) or storage.element.kind == "c":
        return None
    if isinstance(column_type, Timestamp):
        return _MOMENT
    if storage.layout is Layout.BINARY:
        return _TEXT
    return _BOOL if storage.element.kind == "b" else _NUMBER


def type_name(column_type: ColumnType) -> str:
    """What a column is, in a word for messages."""
    fields = column_type.__struct_config__.tag
    return str(getattr(column_type, "dtype", fields)).replace("_", " ")


def fits(value: Any, column_type: ColumnType) -> bool:
    """Whether a literal, given as Python's, may be compared with a column."""
    kind = operand_kind(column_type)
    if isinstance(value, str):
        return kind == _TEXT
    if isinstance(value, bool):
        return kind == _BOOL
    return kind == _NUMBER and _is_within(value, storage_of(column_type).element)


def needed(value: Any, column_type: ColumnType) -> str:
    """What a literal must be to be compared with a column, in words; `value` is none such."""
    if isinstance(column_type, ClassLabel):
        return "a class in quotes or its number"
    kind = operand_kind(column_type)
    if kind != _NUMBER or isinstance(value, str | bool):
        return str(kind)
    low, high = _bounds(storage_of(column_type).element)
    return f"a number from {low} to {high}"


def as_scalar(value: Any, column_type: ColumnType | None) -> pa.Scalar:
    """A literal as Arrow compares it, without loss where the column's numbers are whole."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and column_type is not None and storage_of(column_type).element == np.uint64:
        return pa.scalar(value, pa.uint64())
    if is_whole and not -(2**63) <= value < 2**63:
        return pa.scalar(float(value))
    return pa.scalar(value)


def _is_within(value: Any, element: np.dtype[Any]) -> bool:
    """Whether a whole number is one that Arrow compares exactly with integers of this type."""
    low, high = _bounds(element)
    return element.kind not in "iu" or isinstance(value, float) or low <= value <= high


def _bounds(element: np.dtype[Any]) -> tuple[int, int]:
    return (0, 2**64 - 1) if element == np.uint64 else (-(2**63), 2**63 - 1)
