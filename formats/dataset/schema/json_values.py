"""JSON form of values: one rule for each kind, wherever the command line prints or keeps JSON.

The rules are those of Protocol Buffers' JSON where it has one. Whole numbers are written whole,
however large. What JSON has no number for (NaN, Infinity) is text, moments are ISO 8601, decimals
their digits. Bytes are an object of their count with either the bytes in base64, or, where they are
many, their SHA-256: `sha256sum` of the same file says the same.
"""

from __future__ import annotations

import datetime as dt
import math
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from tensorrepo.formats.common.arguments import number_text
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.schema.python_values import json_form
from tensorrepo.formats.dataset.schema.types import ClassLabel, ColumnType, LinkValue

WHOLE_BYTES = 1024  # of a value that JSON holds, unless more are asked for


def value_json(value: Any, whole_bytes: int | None = WHOLE_BYTES) -> Any:
    """One value as JSON has it; the rules stand in docs/reference/cli.md, section "JSON".

    `whole_bytes` is the size up to which bytes are written, None for any.
    """
    if isinstance(value, Mapping):
        return {str(key): value_json(item, whole_bytes) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [value_json(item, whole_bytes) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes_json(value, whole_bytes)
    if hasattr(value, "dtype"):  # scalars of bfloat16 and float8 are no np.generic
        return _array_json(value, whole_bytes)
    return _single_json(value)


def _single_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else number_text(value)
    if isinstance(value, complex):
        return [_single_json(value.real), _single_json(value.imag)]
    if isinstance(value, LinkValue):
        return msgspec.to_builtins(value)
    if isinstance(value, dt.date | dt.time | dt.timedelta):
        return json_form(value, str)
    return f"{value:f}" if isinstance(value, Decimal) and value.is_finite() else str(value)


def named_class(kind: ColumnType, value: Any) -> Any:
    """`value`, or the name of its class where a column of this type holds classes."""
    if not isinstance(kind, ClassLabel) or value is None:
        return value
    return kind.names[int(value)]


def bytes_json(data: bytes | bytearray | memoryview, whole_bytes: int | None) -> dict[str, Any]:
    """Bytes: their count, and themselves in base64; of more than `whole_bytes` their SHA-256."""
    size = memoryview(data).nbytes
    if whole_bytes is None or size <= whole_bytes:
        return {"bytes": size, "base64": b64encode(data).decode()}
    return {"bytes": size, "sha256": sha256(data).hexdigest()}


def _array_json(array: Any, whole_bytes: int | None) -> Any:
    """A scalar or an array of numpy's, as nested lists; masked elements are null."""
    if array.dtype.kind in "mM":  # nanoseconds have no object of Python's
        moments = np.asarray(array)
        found = [None if np.isnat(each) else json_form(each, str) for each in moments.ravel()]
        return np.array(found, object).reshape(moments.shape).tolist()
    wider = np.float32 if is_small_float(array.dtype) else array.dtype
    plain = array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    return value_json(plain.astype(wider, copy=False).tolist(), whole_bytes)
