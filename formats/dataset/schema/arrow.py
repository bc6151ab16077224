"""Arrow arrays of column values, both ways.

Without a copy wherever the bytes lie alike: numbers, tensors, text and bytes both ways. Bools are
bits in Arrow and bytes here, so they are converted. Tiled tensors look like any others in Arrow.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, TypeVar, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.schema.arrow_forms import (
    canonical,
    fixed_lists,
    is_list,
    is_text,
    reform,
    with_required,
    without_dictionary,
)
from tensorrepo.formats.dataset.schema.arrow_types import (
    FixedTensorType,
    RaggedTensorType,
    arrow_type,
    element_type,
    is_foreign,
)
from tensorrepo.formats.dataset.schema.nested import aligned, decode_nested, encode_nested
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnLayout,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Nested,
    Null,
    Storage,
    Time,
    Timestamp,
    storage_of,
)
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    as_fixed,
    as_ragged,
    blank_values,
    concat,
    offsets_of,
    row_shapes,
)
from tensorrepo.repo.errors import CorruptError

_V = TypeVar("_V", BinaryValues, RaggedValues)


# ------------------------------------------------------------------------------ to Arrow


def column_array(column: Column, values: ColumnValues) -> pa.Array:
    """All rows as one Arrow array of type `column.arrow_type`, as they are given out."""
    array = to_arrow_array(column.type, values)
    target = column.arrow
    if target is None:
        return array
    if isinstance(values, FixedValues) and pa.types.is_fixed_size_list(target):
        return _lists_of_lists(values, target)
    return with_required(reform(array, target))


def in_usual_form(column: Column, array: pa.Array) -> pa.Array:
    """Rows of a column, in whichever form, in the usual one of its type."""
    if array.type == arrow_type(column.type):
        return array
    values = from_arrow_array(column.type, array)
    if values is None:
        raise pa.ArrowTypeError(f"{array.type} is no form of column {column.name!r}")
    return to_arrow_array(column.type, values)


def _lists_of_lists(values: FixedValues, target: pa.DataType) -> pa.Array:
    """Tensors of one shape as lists of fixed size, one in the other."""
    levels, kind = [], target
    while pa.types.is_fixed_size_list(kind):
        levels.append(kind)
        kind = kind.value_type
    array = reform(pa.array(np.ascontiguousarray(values.values).reshape(-1)), kind)
    for level in levels[:0:-1]:
        array = fixed_lists(array, level, None)
    return fixed_lists(array, target, None if values.valid is None else pa.array(~values.valid))


def to_arrow_array(  # noqa: PLR0911  one return for each kind
    column_type: ColumnType, values: ColumnValues
) -> pa.Array:
    """All rows as one Arrow array of type `arrow_type(column_type)`."""
    target = arrow_type(column_type)
    mask = None if values.valid is None else pa.array(~values.valid)
    if isinstance(values, BinaryValues):
        if isinstance(column_type, Nested):
            return decode_nested(values, canonical(target))
        return _binary_to_arrow(target, values)
    if isinstance(values, RaggedValues):
        if None in values.shape:
            return _ragged_to_arrow(target, values, mask)
        values = as_fixed(values)
    flat = np.ascontiguousarray(values.values).reshape(-1)
    if isinstance(column_type, Null):
        return pa.nulls(values.rows)
    if isinstance(column_type, Decimal):
        return _made(target, values, aligned(_wide_decimals(flat)))
    if isinstance(target, FixedTensorType):
        return pa.ExtensionArray.from_storage(target, _made(target.storage_type, values, flat))
    if isinstance(target, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(target):
        lists = target.storage_type if isinstance(target, pa.BaseExtensionType) else target
        elements = _elements_to_arrow(flat, lists.value_type)
        # Not from_arrays: it divides by the length of a row.
        storage = _made(lists, values, children=[elements])
        if lists is target:
            return storage
        return pa.ExtensionArray.from_storage(target, storage)
    if isinstance(column_type, Timestamp | Date | Time | Duration):
        return _made(target, values, flat)
    return pa.array(flat, mask=None if values.valid is None else ~values.valid)


def _elements_to_arrow(flat: NDArray[Any], target: pa.DataType) -> pa.Array:
    """Elements of tensors, none of which is null."""
    if flat.dtype.kind in "iuf" or is_foreign(flat.dtype.name):  # `pa.array` looks for much else
        return pa.Array.from_buffers(target, len(flat), [None, pa.py_buffer(flat)], 0)
    return pa.array(flat) if len(flat) else pa.array([], target)


def _wide_decimals(numbers: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers of 64 bits as ones of 128, low half first; longer ones as they are."""
    return np.stack([numbers, numbers >> 63], axis=1) if numbers.dtype == np.int64 else numbers


def _made(
    target: pa.DataType, values: ColumnValues, *data: NDArray[Any], **children: list[pa.Array]
) -> pa.Array:
    """An array over our buffers, with the nulls of `values`."""
    valid, bits, nulls = values.valid, None, 0
    if valid is not None:
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
        nulls = values.rows - int(np.count_nonzero(valid))
    buffers = [bits, *map(pa.py_buffer, data)]
    return pa.Array.from_buffers(target, values.rows, buffers, nulls, **children)


def _binary_to_arrow(target: pa.DataType, values: BinaryValues) -> pa.Array:
    if isinstance(target, pa.BaseExtensionType):
        storage = _binary_to_arrow(target.storage_type, values)
        return pa.ExtensionArray.from_storage(target, storage)
    if pa.types.is_fixed_size_binary(target):
        return _sized(_binary_to_arrow(pa.large_binary(), values), target)
    return _made(target, values, np.ascontiguousarray(values.offsets), values.data)


def _sized(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise CorruptError(f"stored bytes: {error}") from error


def _ragged_to_arrow(target: pa.DataType, values: RaggedValues, mask: pa.Array) -> pa.Array:
    lists = target.storage_type.field(0).type if isinstance(target, RaggedTensorType) else target
    elements = _elements_to_arrow(np.ascontiguousarray(values.elements), lists.value_type)
    offsets = pa.array(np.ascontiguousarray(values.offsets))
    data = pa.LargeListArray.from_arrays(
        offsets, elements, type=lists, mask=None if isinstance(target, RaggedTensorType) else mask
    )
    if not isinstance(target, RaggedTensorType):
        return data
    shapes = row_shapes(values)
    dims = pa.FixedSizeListArray.from_arrays(
        pa.array(shapes.reshape(-1)), type=target.storage_type.field(1).type
    )
    fields = [target.storage_type.field(0), target.storage_type.field(1)]
    storage = pa.StructArray.from_arrays([data, dims], fields=fields, mask=mask)
    return pa.ExtensionArray.from_storage(target, storage)


# ------------------------------------------------------------------------------ from Arrow


def from_arrow_array(
    column_type: ColumnType, array: pa.Array | pa.ChunkedArray
) -> ColumnValues | None:
    """The values of an Arrow array for a column of this type.

    Returns:
        None where Arrow cannot convert every row: the caller names the row.
    """
    if isinstance(array, pa.ChunkedArray):
        chunks = array.chunks or [pa.array([], array.type)]
        parts = [from_arrow_array(column_type, chunk) for chunk in chunks]
        found = [part for part in parts if part is not None]
        return concat(found) if len(found) == len(parts) else None
    if pa.types.is_dictionary(array.type):
        array = without_dictionary(array)
    if isinstance(column_type, _BY_FORM) or _has_size(column_type):
        return _from_form(column_type, array)
    if isinstance(column_type, ClassLabel) and is_text(array.type):
        texts = array.cast(pa.large_string())  # of views Arrow looks nothing up
        numbers = pc.index_in(texts, pa.array(column_type.names, texts.type))
        if numbers.null_count != array.null_count:
            return None
        array = numbers
    target = arrow_type(column_type)
    if isinstance(target, FixedTensorType) and pa.types.is_fixed_size_list(array.type):
        width = prod(storage_of(column_type).row_shape)
        target = pa.list_(element_type(target.dtype), width)  # bools, bit by bit
    try:
        array = array if array.type == target else _cast(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    storage = storage_of(column_type)
    if storage.layout is not ColumnLayout.TILED:
        return _decode(storage, array)
    plain = ColumnLayout.RAGGED if None in storage.shape else ColumnLayout.FIXED
    values = _decode(Storage(plain, storage.dtype, storage.shape), array)
    return as_ragged(values, storage) if isinstance(values, FixedValues) else values


# Types whose values Arrow holds as we do, in one form or another.
_BY_FORM = (Date, Time, Duration, Decimal, Null, *get_args(Nested))


def _has_size(column_type: ColumnType) -> bool:
    return isinstance(column_type, Bytes) and column_type.size is not None


def _from_form(column_type: ColumnType, array: pa.Array) -> ColumnValues | None:
    try:
        array = reform(array, canonical(arrow_type(column_type)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    valid = None
    if array.null_count:
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if isinstance(column_type, Null):
        return (
            None
            if array.null_count < len(array)
            else blank_values(storage_of(column_type), len(array), np.zeros(len(array), np.bool_))
        )
    if isinstance(column_type, Nested):
        return encode_nested(array)
    if isinstance(column_type, Bytes):
        return _decode(storage_of(column_type), array.cast(pa.large_binary()))
    if isinstance(column_type, Decimal):
        return _decimals(column_type, array, valid)
    return _decode_fixed(storage_of(column_type), array, valid)


def _decimals(column_type: Decimal, array: pa.Array, valid: Bools | None) -> FixedValues:
    words, data = array.type.byte_width // 8, array.buffers()[1]
    count = len(array) * words
    flat = np.zeros(count, np.uint64)
    if data is not None and count:
        flat = np.frombuffer(data, np.uint64, count, array.offset * words * 8).copy()
    numbers: NDArray[Any] = flat.reshape(-1, words)
    if storage_of(column_type).dtype == "int64":
        numbers = np.ascontiguousarray(numbers[:, 0]).view(np.int64)
    if valid is not None:
        numbers[~valid] = 0
    return FixedValues(numbers, valid)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """`array` as `target`; tensors and lists by way of their storage."""
    if isinstance(array, pa.ExtensionArray):
        # Bytes of the same width may well be elements of another type.
        if isinstance(array.type, FixedTensorType | RaggedTensorType):
            raise pa.ArrowTypeError(f"{array.type} is not {target}")
        array = array.storage
    if isinstance(target, pa.BaseExtensionType):
        storage = _cast(array, target.storage_type)
        return pa.ExtensionArray.from_storage(target, storage)
    if pa.types.is_fixed_size_list(target):
        return _cast_fixed_list(array, target)
    if is_text(target) and not is_text(array.type):
        raise pa.ArrowTypeError(f"{array.type} is no text")
    if pa.types.is_fixed_size_binary(target) and not pa.types.is_fixed_size_binary(array.type):
        raise pa.ArrowTypeError(f"{array.type} is not {target}")
    if pa.types.is_large_binary(target) and is_text(array.type):
        raise pa.ArrowTypeError("text is not bytes")
    if is_list(target) and not is_list(array.type):
        raise pa.ArrowTypeError(f"{array.type} is no list")
    return array.cast(target)


def _cast_fixed_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Nested fixed-size lists, flattened to one level of `target`."""
    rows, valid = len(array), array.is_valid()
    size = 1
    while pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        array = array.values.slice(array.offset * width, len(array) * width)
        size *= width
    if size != target.list_size or len(array) != rows * size or array.null_count:
        raise pa.ArrowTypeError(f"rows of {size} elements are not {target.list_size}")
    mask = pc.invert(valid) if pc.any(pc.invert(valid)).as_py() else None
    elements = array.cast(target.value_type)
    return pa.FixedSizeListArray.from_arrays(elements, type=target, mask=mask)


def _decode(storage: Storage, array: pa.Array) -> ColumnValues | None:
    valid = None
    if array.null_count:
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    match storage.layout:
        case ColumnLayout.BINARY:
            data = array.buffers()[2]
            content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            return _emptied(BinaryValues(_offsets(array), content, valid))
        case ColumnLayout.FIXED:
            return _decode_fixed(storage, array, valid)
        case _:
            return _decode_ragged(storage, array, valid)


def _decode_fixed(storage: Storage, array: pa.Array, valid: Bools | None) -> FixedValues | None:
    shape = (len(array), *storage.row_shape)
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        elements = array.values.slice(array.offset * width, len(array) * width)
        if elements.null_count and (valid is None or elements.null_count > width * (~valid).sum()):
            return None
        flat = _elements(elements, storage)
    else:
        flat = _elements(array, storage)
    values = flat.reshape(shape)
    if valid is not None:
        values = values.copy()
        values[~valid] = 0
    bits = pa.types.is_fixed_size_binary(array.type) and values.dtype.kind == "b"
    if bits and (values.view(np.uint8) > 1).any():
        return None
    return FixedValues(values, valid)


def _elements(array: pa.Array, storage: Storage) -> NDArray[Any]:
    """The elements of a primitive or fixed-size binary array, nulls as whatever lies there."""
    if pa.types.is_boolean(array.type):
        filled = array.fill_null(False) if array.null_count else array
        return np.asarray(filled.to_numpy(zero_copy_only=False), np.bool_)
    width = array.type.byte_width if pa.types.is_fixed_size_binary(array.type) else None
    width = storage.element.itemsize if width is None else width
    data = array.buffers()[-1]
    count = len(array) * width // storage.element.itemsize
    if data is None or not count:
        return np.zeros(count, storage.element)
    return np.frombuffer(data, storage.element, count, array.offset * width)


def _offsets(array: pa.Array) -> Ints:
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(data, np.int64, len(array) + 1, array.offset * 8)


def _decode_ragged(storage: Storage, array: pa.Array, valid: Bools | None) -> RaggedValues | None:
    dims = None
    if pa.types.is_struct(array.type):
        sizes = array.field(1)
        width = len(storage.shape)
        flat = sizes.values.slice(sizes.offset * width, len(sizes) * width)
        table = flat.to_numpy(zero_copy_only=False).reshape(len(array), width).astype(np.uint32)
        array = array.field(0)
        if not _shapes_fit(storage, table, np.diff(_offsets(array)), valid):
            return None
        unknown = [at for at, dim in enumerate(storage.shape) if dim is None]
        if valid is not None:
            table[~valid] = 0
        dims = table[:, unknown] if storage.stores_dims else None
    if array.values.null_count:
        return None
    elements = _elements(array.values, storage)
    return _emptied(RaggedValues(_offsets(array), elements, storage.shape, dims, valid))


def _shapes_fit(
    storage: Storage, table: NDArray[np.uint32], lengths: Ints, valid: Bools | None
) -> bool:
    wanted = [0 if dim is None else dim for dim in storage.shape]
    known = np.array([dim is not None for dim in storage.shape])
    right = ((table == np.array(wanted)) | ~known).all(axis=1)
    right &= table.astype(np.float64).prod(axis=1) == lengths
    return bool((right if valid is None else right | ~valid).all())


def _emptied(values: _V) -> _V:
    """Rows that are null take no bytes: Arrow allows any under a null."""
    valid = values.valid
    if valid is None or not np.diff(values.offsets)[~valid].any():
        return values
    kept = values.take(np.flatnonzero(valid))
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(kept.offsets)
    if isinstance(kept, BinaryValues):
        return replace(values, offsets=offsets_of(lengths), data=kept.data)
    return replace(values, offsets=offsets_of(lengths), elements=kept.elements)
