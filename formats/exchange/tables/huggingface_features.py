"""Features of Hugging Face's datasets as columns.

They say what Arrow's types do not: that numbers are classes, that a struct is a picture, that
nested lists are one array. Structs and lists of anything are columns of these types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import refusals
from tensorrepo.formats.common.dtypes import dtype_name
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Tensor,
)
from tensorrepo.formats.exchange.tables.files import (
    Adapted,
    adapt_plain,
    is_any_list,
    null_below_zero,
    storage,
)
from tensorrepo.repo.errors import UnsupportedError

_ARRAYS = frozenset({"Array2D", "Array3D", "Array4D", "Array5D"})
_FILES = frozenset({"Audio", "Video", "Pdf"})
HuggingFaceFeature = Any  # a mapping with "_type" or of features, or a list with one feature


def adapt_feature(field: pa.Field, feature: HuggingFaceFeature, *, follow: bool) -> Adapted:
    """How a field of which the features say this, or nothing (None), becomes a column.

    With `follow`, for the user's own process alone, pictures that are named by a path are read.

    Raises:
        UnsupportedError: no column type holds it.
    """
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    stored = storage_type(field.type)
    if kind == "ClassLabel" and pa.types.is_integer(stored) and feature.get("names"):
        names = tuple(feature["names"])
        # A missing label is written as -1.
        label = Column(field.name, ClassLabel(names), nullable=field.nullable)
        return Adapted(label, lambda array: null_below_zero(array.cast(pa.int64())))
    if kind == "Image":
        column = Column(field.name, Image(), nullable=field.nullable)
        return Adapted(column, _embedded(stored, follow=follow))
    if kind in _FILES:
        column = Column(field.name, Bytes(), nullable=field.nullable)
        return Adapted(column, _embedded(stored, follow=follow))
    if isinstance(field.type, pa.FixedShapeTensorType):
        return adapt_plain(field, field.type)
    dims, leaf = _nesting(stored)
    shape = tuple(feature["shape"]) if kind in _ARRAYS else dims
    if shape and len(shape) == len(dims) and None not in shape[1:] and _is_number(leaf):
        dtype = dtype_name(leaf.to_pandas_dtype())
        column = Column(field.name, Tensor(dtype, shape), nullable=field.nullable)
        return Adapted(column, lambda array: blocks(storage(array), shape))
    return adapt_plain(field, stored)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type that is stored for an extension type, also of those inside of lists and structs."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    return rebuilt(kind, storage_type) if _holds_extension(kind) else kind


def _holds_extension(kind: pa.DataType) -> bool:
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return isinstance(kind, pa.BaseExtensionType) or any(map(_holds_extension, inside))


def rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A list or struct whose inner types are changed; any other type as it is."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(change(each.type)) for each in kind.fields])
    if not is_any_list(kind):
        return kind
    inner = kind.value_field.with_type(change(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def blocks(array: pa.Array, shape: Sequence[int | None]) -> list[NDArray[Any] | None]:
    """Nested lists as one array a row, of a `shape` whose first dimension alone may be None.

    Raises:
        pa.ArrowInvalid: a list inside is null or has another length.
    """
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    counts: NDArray[np.int64] = np.ones(int(valid.sum()), np.int64)
    level = array
    for depth, dim in enumerate(shape):
        lengths = pc.list_value_length(level)
        if depth and level.null_count:
            raise pa.ArrowInvalid("a list inside a row is null")
        found = lengths.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        if dim is not None and (found != dim).any():
            wrong = int(found[found != dim][0])
            raise pa.ArrowInvalid(f"a list has {wrong} values, the feature says {dim}")
        counts = found if not depth else counts * (dim or 0)
        level = level.flatten()
    if level.null_count:
        raise pa.ArrowInvalid("a number inside a row is null")
    elements = level.to_numpy(zero_copy_only=False)
    ends = iter(np.split(elements, np.cumsum(counts)[:-1]) if len(counts) else [])
    inner = tuple(dim for dim in shape[1:] if dim is not None)
    return [
        next(ends).reshape(-1 if shape[0] is None and all(inner) else shape[0] or 0, *inner)
        if there
        else None
        for there in valid
    ]


def _nesting(kind: pa.DataType) -> tuple[tuple[int | None, ...], pa.DataType]:
    """The dimensions of nested lists, and what the innermost hold."""
    dims: list[int | None] = []
    while is_any_list(kind):
        dims.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(dims), kind


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _embedded(stored: pa.DataType, *, follow: bool) -> Callable[[pa.Array], Any]:
    """A function that gives the bytes of pictures or sounds."""
    if not pa.types.is_struct(stored):
        return storage
    if stored.get_field_index("bytes") < 0:
        raise UnsupportedError(f"{stored} holds no bytes")

    def convert(array: pa.Array) -> Any:
        held = storage(array)
        data = held.field("bytes")
        if held.null_count:
            data = pc.if_else(held.is_valid(), data, None)
        if not data.null_count or stored.get_field_index("path") < 0:
            return data
        return _filled(held, data, follow=follow)

    return convert


def _filled(held: pa.Array, data: pa.Array, *, follow: bool) -> list[bytes | None]:
    """Bytes of rows that only name a file."""
    there = held.is_valid().to_pylist()
    named = held.field("path").to_pylist()
    return [
        _read_named(path, follow=follow) if value is None and is_there and path else value
        for is_there, value, path in zip(there, data.to_pylist(), named, strict=True)
    ]


def _read_named(path: str, *, follow: bool) -> bytes:
    if not follow:
        raise pa.ArrowInvalid(
            f"a picture is only named, {path!r}. Embed it: save_to_disk of datasets does, and "
            "tensorrepo.read of the object reads the file"
        )
    with refusals(path, "file"):
        return Path(path).read_bytes()
