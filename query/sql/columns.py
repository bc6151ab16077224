"""SQL types of dataset columns.

Numbers, text, bytes and moments as they are. Classes by their names. Tensors as lists, one in the
other, of as many dimensions: ``element(image, 3, 5)`` and ``image[4][6]`` need no other knowledge
of their shape.
Numbers that DuckDB lacks come as ones that hold them: float16, bfloat16 and float8 as float32,
complex numbers as a list of their two parts; decimals of more than 38 digits as text. Durations
are intervals, which DuckDB counts in microseconds. Lists, structs and maps are its own.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.arrow_forms import fixed_lists, is_list
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    Date,
    Decimal,
    Duration,
    Null,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    as_fixed,
    as_ragged,
    row_shapes,
)

# Bytes of a value that is an ARRAY of DuckDB, which reserves 2,048 of them before it reads the
# first: larger ones are LISTs, of ARRAYs where those are small.
MOST_ARRAY_BYTES = 16 << 10


def sql_field(column: Column) -> pa.Field:
    """How a column is called, and its type, as Arrow says it to DuckDB."""
    return pa.field(column.name, sql_array(column, coerce_column(column, [])).type)


def sql_array(column: Column, values: ColumnValues) -> pa.Array:
    """Some rows of a column, of the type that `sql_field` says; where it can be, without a copy."""
    if isinstance(column.type, ClassLabel):
        return _class_names(column.type, values)
    if isinstance(values, BinaryValues) or isinstance(column.type, _AS_IN_ARROW):
        array = to_arrow_array(column.type, values)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        return array if _is_known(array.type) else _known(array)
    shape = column.storage.row_shape if None not in column.storage.shape else None
    if shape is None or 0 in shape:
        return _lists(
            as_ragged(values, column.storage) if isinstance(values, FixedValues) else values
        )
    fixed = as_fixed(values) if isinstance(values, RaggedValues) else values
    return _arrays(fixed)


def _class_names(kind: ClassLabel, values: Any) -> pa.Array:
    """Text, not an enumeration of DuckDB: filters on that would not be pushed down."""
    numbers = pa.array(values.values, mask=None if values.valid is None else ~values.valid)
    return pa.array(kind.names, pa.string()).take(numbers)


_AS_IN_ARROW = (Timestamp, Date, Time, Duration, Decimal, Null)


@cache
def _is_known(kind: pa.DataType) -> bool:
    """Whether DuckDB has an Arrow type, in canonical form, and those inside of it."""
    if pa.types.is_decimal256(kind) or pa.types.is_float16(kind):
        return False
    return all(_is_known(kind.field(at).type) for at in range(kind.num_fields))


def _known(array: pa.Array) -> pa.Array:
    """Values that DuckDB lacks, wherever they are inside, as ones that it has."""
    kind = array.type
    mask = array.is_null() if array.null_count else None
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_decimal256(kind):
        return array.cast(pa.large_string())
    if pa.types.is_struct(kind):
        parts = [_known(array.field(at)) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, kind.names, mask=mask)
    if pa.types.is_map(kind):
        keys, items = _known(array.keys), _known(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, mask=mask)
    if pa.types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        values = _known(values)
        return fixed_lists(values, pa.list_(values.type, kind.list_size), mask)
    if is_list(kind):
        return pa.LargeListArray.from_arrays(array.offsets, _known(array.values), mask=mask)
    return array


def _arrays(values: Any) -> pa.Array:
    """Rows of one shape, as lists of fixed size."""
    numbers = _plain(np.ascontiguousarray(values.values))
    if numbers.ndim == 1:
        return pa.array(numbers, mask=None if values.valid is None else ~values.valid)
    return _nested(numbers.reshape(-1), numbers.shape[1:], len(numbers), values.valid)


def _nested(
    flat: NDArray[Any], shape: tuple[int, ...], rows: int, valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """`rows` lists of `shape`, one in the other: of fixed size as long as they are small."""
    array = pa.array(flat)
    for at in range(len(shape) - 1, -1, -1):
        count = rows * prod(shape[:at])
        if prod(shape[at:]) * flat.itemsize > MOST_ARRAY_BYTES:
            mask = None if at or valid is None else pa.array(~valid)
            offsets = pa.array(np.arange(count + 1) * shape[at])
            array = pa.LargeListArray.from_arrays(offsets, array, mask=mask)
            continue
        kind, bits = pa.list_(array.type, shape[at]), None
        if at == 0 and valid is not None:
            bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
        # Not from_arrays: it finds no validity where every row has as many elements.
        array = pa.Array.from_buffers(kind, count, [bits], children=[array])
    return array


def _lists(values: Any) -> pa.Array:
    """Rows of different shapes.

    Lists, one in the other, where only the first dimension differs; else all elements of a row,
    flat, beside its shape.
    """
    mask = None if values.valid is None else pa.array(~values.valid)
    inner = values.shape[1:]
    numbers = _plain(values.elements)
    if None not in inner and 0 not in inner:
        inner += numbers.shape[1:]  # a complex number is two
        each = prod(values.shape[1:])
        elements = _nested(numbers.reshape(-1), inner, len(values.elements) // each)
        offsets = pa.array(np.ascontiguousarray(values.offsets) // each)
        return pa.LargeListArray.from_arrays(offsets, elements, mask=mask)
    elements = _nested(numbers.reshape(-1), numbers.shape[1:], len(numbers))
    data = pa.LargeListArray.from_arrays(pa.array(np.ascontiguousarray(values.offsets)), elements)
    shapes = row_shapes(values)
    dims = pa.FixedSizeListArray.from_arrays(pa.array(shapes.reshape(-1)), shapes.shape[1])
    return pa.StructArray.from_arrays([data, dims], ["data", "shape"], mask=mask)


def is_nested(kind: pa.DataType) -> bool:
    """Whether values are lists in lists, some of which may have any length."""
    depth = any_length = 0
    while is_list(kind) or pa.types.is_fixed_size_list(kind):
        depth += 1
        any_length += is_list(kind)
        kind = kind.value_type
    return depth > 1 and any_length > 0


def row_shape(values: pa.Array) -> tuple[int | None, ...]:
    """The shape that all rows have that are not null; None: rows differ in this dimension.

    Args:
        values: lists in lists of numbers.
    """
    shape: list[int | None] = []
    while is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        if pa.types.is_fixed_size_list(values.type):
            shape.append(values.type.list_size)
        else:
            lengths = pc.unique(pc.list_value_length(values.drop_null())).to_pylist()
            shape.append(lengths[0] if len(lengths) == 1 else None)
        values = values.flatten()
    return tuple(shape)


def _plain(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers that DuckDB has, or that hold those it lacks."""
    dtype = numbers.dtype
    if is_small_float(dtype) or dtype == np.float16:
        return numbers.astype(np.float32)
    if dtype.kind == "c":
        part: Any = np.float32 if dtype == np.complex64 else np.float64
        parts: NDArray[Any] = np.ascontiguousarray(numbers).view(part)
        return parts.reshape(*numbers.shape, 2)
    return numbers
