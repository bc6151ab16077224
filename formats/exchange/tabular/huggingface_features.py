"""Which column holds a feature of Hugging Face's `datasets`, and how do its arrays get there?

Features say what Arrow's types do not: that numbers are classes, that a struct is a picture, that
nested lists are one array. What no column type holds but JSON can say becomes a column of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.damage import refusals
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Json,
    Schema,
    Tensor,
)
from tensorrepo.formats.dtypes import dtype_name
from tensorrepo.formats.exchange.tabular.nested import json_says, json_texts
from tensorrepo.formats.exchange.tabular.tables import Adapted, null_below_zero
from tensorrepo.repo.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LISTS = frozenset({"Sequence", "List", "LargeList"})
_ARRAYS = frozenset({"Array2D", "Array3D", "Array4D", "Array5D"})
_FILES = frozenset({"Audio", "Video", "Pdf"})
_TEXTS = frozenset({"Translation", "TranslationVariableLanguages"})
Feature = Any  # a mapping with "_type", a mapping of features, or a list with one feature


def adapt_feature(field: pa.Field, feature: Feature, *, follow: bool) -> Adapted:
    """How a field becomes a column.

    Args:
        field: of the Arrow data.
        feature: what the features say of it; None: nothing.
        follow: read pictures that are named by a path only: of the user's own process.

    Raises:
        UnsupportedError: neither a column type nor JSON holds it.
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
        return _adapt_other(field, field.type)
    shape = _shape(feature, stored)
    leaf = _leaf(stored)
    if shape and _is_number(leaf):
        dtype = dtype_name(leaf.to_pandas_dtype())
        column = Column(field.name, Tensor(dtype, shape), nullable=field.nullable)
        return Adapted(column, lambda array: blocks(storage(array), shape))
    return _adapt_other(field, stored)


def storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def blocks(array: pa.Array, shape: Sequence[int | None]) -> list[NDArray[Any] | None]:
    """Nested lists as one array a row.

    Args:
        array: lists of lists, as deep as `shape`.
        shape: of a row; only the first dimension may be None.

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


def _adapt_other(field: pa.Field, stored: pa.DataType) -> Adapted:
    plain = pa.field(field.name, stored, field.nullable, field.metadata)
    try:
        (column,) = Schema.from_arrow(pa.schema([plain])).without_ids().columns
    except UnsupportedError:
        if not json_says(stored):
            raise
        column = Column(field.name, Json(), nullable=field.nullable)
        return Adapted(column, lambda array: json_texts(storage(array)))
    if pa.types.is_dictionary(stored):
        return Adapted(column, lambda array: storage(array).dictionary_decode())
    return Adapted(column, lambda array: array if array.type == stored else storage(array))


def _shape(feature: Feature, stored: pa.DataType) -> tuple[int | None, ...]:
    """The shape of the arrays of a feature; () when it is none, or not even."""
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    if kind in _ARRAYS:
        dims = tuple(feature["shape"])
        return dims if _depth(stored) == len(dims) and None not in dims[1:] else ()
    dims = _list_dims(stored)
    return dims if dims and None not in dims[1:] else ()


def _list_dims(kind: pa.DataType) -> tuple[int | None, ...]:
    dims: list[int | None] = []
    while _is_list(kind):
        dims.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(dims)


def _depth(kind: pa.DataType) -> int:
    return len(_list_dims(kind))


def _leaf(kind: pa.DataType) -> pa.DataType:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


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
