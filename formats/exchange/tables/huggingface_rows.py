"""Columns as features of Hugging Face's datasets, and rows as they are written for these.

Images stay encoded; JSON and moments go as text and as Arrow's timestamps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Image,
    Json,
    Null,
    Scalar,
    Schema,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.dataset.schema.values import FixedValues, RaggedValues
from tensorrepo.formats.exchange.output import column_refused
from tensorrepo.formats.exchange.tables.files import is_any_list
from tensorrepo.formats.exchange.tables.huggingface_features import rebuilt
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

_LIGHT = (Scalar, ClassLabel, Text, Timestamp, Date, Time, Duration, Decimal)
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True, slots=True)
class _Feature:
    """How a column is written: what the features say, Arrow's field, and its arrays."""

    form: dict[str, Any]
    field: pa.Field
    convert: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """How rows are written for `datasets`.

    Attributes:
        features: form and conversion of each column.
        forms: description of each column in the words of `datasets`, by name.
        schema: schema of Arrow, with that description in its metadata.
        light: names of columns of small values, of which dictionaries and statistics pay.
    """

    features: tuple[_Feature, ...]
    forms: dict[str, Any]
    schema: pa.Schema
    light: list[str]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the dataset's own columns, as `schema` has them."""
        try:
            arrays = [
                feature.convert(array)
                for feature, array in zip(self.features, batch.columns, strict=True)
            ]
        except pa.ArrowException as problem:
            raise InvalidInputError(
                f"these rows cannot be written for datasets: {problem}"
            ) from problem
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def feature_table(columns: Schema) -> FeatureTable:
    """How rows of these columns are written.

    Raises:
        InvalidInputError: complex numbers, floats of 8 or 16 bits that Arrow lacks, or tensors of
            more than 5 dimensions or with several unknown ones.
    """
    features = tuple(_feature(column) for column in columns.columns)
    forms = {column.name: f.form for column, f in zip(columns.columns, features, strict=True)}
    metadata = {"huggingface": json.dumps({"info": {"features": forms}})}
    schema = pa.schema([feature.field for feature in features], metadata=metadata)
    light = [column.name for column in columns.columns if isinstance(column.type, _LIGHT)]
    return FeatureTable(features, forms, schema, light)


def _feature(column: Column) -> _Feature:
    match column.type:
        case ClassLabel(names=names):
            form = {"names": list(names), "_type": "ClassLabel"}
            return _plain(column, form, pa.int64())
        case Image():
            return _Feature({"_type": "Image"}, _field(column, _IMAGE), _pictures)
        case Bytes():
            return _plain(column, _value("binary"), pa.binary())
        case Text() | Json():
            return _plain(column, _value("string"), pa.string())
        case Timestamp(unit=unit, zone=zone):
            name = f"timestamp[{unit}, tz={zone}]" if zone else f"timestamp[{unit}]"
            return _plain(column, _value(name), pa.timestamp(unit, zone))
        case Scalar():
            return _plain(column, _value(_dtype(column)), _element(column))
    if isinstance(column.type, _AS_ARROW):
        kind = _short(arrow_type(column.type))
        return _Feature(_form(column, kind), _field(column, kind), lambda array: array.cast(kind))
    return _tensor(column)


_AS_ARROW = (Date, Time, Duration, Decimal, Null, *get_args(Nested))


def _short(kind: pa.DataType) -> pa.DataType:
    """A type with lists, text and bytes as `datasets` has them: with ends of 32 bits."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_short(kind.value_type)))
    short = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return short.get(kind) or rebuilt(kind, _short)


def _form(column: Column, kind: pa.DataType) -> Any:
    """What the features say of an Arrow type, and of those inside of it."""
    types = pa.types
    if types.is_map(kind):
        raise column_refused(column, "datasets has no maps")
    if types.is_struct(kind):
        return {each.name: _form(column, each.type) for each in kind.fields}
    if is_any_list(kind):
        form = {"feature": _form(column, kind.value_type), "_type": "List"}
        if types.is_fixed_size_list(kind):
            return {**form, "length": kind.list_size}
        return form
    names = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    plain = str(kind).replace("[day]", "")
    if types.is_fixed_size_binary(kind):
        raise column_refused(column, "datasets has no bytes of fixed size inside of others")
    if types.is_timestamp(kind) and kind.tz:
        return _value(f"timestamp[{kind.unit}, tz={kind.tz}]")
    return _value(names.get(kind, plain))


def _plain(column: Column, form: dict[str, Any], kind: pa.DataType) -> _Feature:
    return _Feature(form, _field(column, kind), lambda array: array.cast(kind))


def _field(column: Column, kind: pa.DataType, metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field(column.name, kind, column.nullable, metadata)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _dtype(column: Column) -> str:
    dtype = column.storage.dtype
    if column.storage.layout not in (ColumnLayout.FIXED, ColumnLayout.RAGGED) or not _is_plain(
        dtype
    ):
        raise column_refused(column, f"datasets has no {dtype}")
    return dtype


def _is_plain(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:  # bfloat16 and its like are not numpy's own
        return False


def _element(column: Column) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(_dtype(column)))


def _tensor(column: Column) -> _Feature:
    form: dict[str, Any]
    dtype, shape = _dtype(column), column.storage.shape
    if len(shape) > 5 or None in shape[1:] or 0 in shape or not shape:
        raise column_refused(
            column, f"datasets holds arrays of 1 to 5 dimensions, the first may vary; not {shape}"
        )
    kind = _element(column)
    inner = [dim for dim in shape[1:] if dim is not None]
    if len(shape) > 1:
        for _ in shape:
            kind = pa.list_(kind)
        array = f"Array{len(shape)}D"
        form = {"shape": list(shape), "dtype": dtype, "_type": array}
        # So `datasets` marks its own types; without the mark it does not take the file.
        metadata = {
            "ARROW:extension:name": f"datasets.features.features.{array}ExtensionType",
            "ARROW:extension:metadata": json.dumps([list(shape), dtype]),
        }
        field = _field(column, kind, metadata)
    else:
        (length,) = shape
        kind = pa.list_(kind) if length is None else pa.list_(kind, length)
        form = {"feature": _value(dtype), "_type": "List"}
        if length is not None:
            form["length"] = length
        field = _field(column, kind)
    return _Feature(form, field, lambda rows: _nested(column, rows, inner, kind))


def _nested(column: Column, array: pa.Array, inner: list[int], kind: pa.DataType) -> pa.Array:
    """Tensors as lists of lists; all rows have the inner dimensions."""
    values = from_arrow_array(column.type, array)
    if isinstance(values, FixedValues):
        rows, size = values.rows, int(np.prod(values.values.shape[1:]))
        ends = np.arange(rows + 1, dtype=np.int64) * size
        elements = np.ascontiguousarray(values.values).reshape(-1)
    elif isinstance(values, RaggedValues):
        ends, elements = values.offsets - values.offsets[0], values.elements
        elements = elements[int(values.offsets[0]) : int(values.offsets[-1])]
    else:
        raise column_refused(column, "its rows are no tensors")
    level = pa.array(np.ascontiguousarray(elements))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(level, type=kind, mask=_mask(values.valid))
    step = int(np.prod(inner, dtype=np.int64))
    for dim in reversed(inner):
        level = pa.ListArray.from_arrays(_ends(np.arange(len(level) // dim + 1) * dim), level)
    return pa.ListArray.from_arrays(_ends(ends // step), level, mask=_mask(values.valid))


def _mask(valid: NDArray[np.bool_] | None) -> pa.Array | None:
    return None if valid is None else pa.array(~valid)


def _ends(ends: NDArray[np.int64]) -> pa.Array:
    if len(ends) and int(ends[-1]) >= 1 << 31:
        raise InvalidInputError("a batch has 2^31 values, more than lists of datasets hold")
    return pa.array(ends.astype(np.int32))


def _pictures(array: pa.Array) -> pa.Array:
    data = array.cast(pa.binary())
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(
        [data, pa.nulls(len(array), pa.string())], fields=list(_IMAGE), mask=mask
    )
