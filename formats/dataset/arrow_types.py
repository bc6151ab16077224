"""Which Arrow type stands for which column type, both ways?

Arrow's own types where it has them (`fixed_shape_tensor` for tensors), else an extension over
fixed-size binary or a struct. The exact column type travels in the field's metadata, so a schema
survives the round trip; without that metadata a type is inferred.
"""

from __future__ import annotations

import json
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.types import (
    Bytes,
    ColumnType,
    Embedding,
    Image,
    Json,
    Layout,
    Scalar,
    Tensor,
    Text,
    Timestamp,
    storage_of,
    type_from_json,
    type_to_json,
)
from tensorrepo.formats.dtypes import dtype_name
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

TYPE_KEY = b"tensorrepo.type"
ID_KEY = b"tensorrepo.id"
MAX_ROW_ELEMENTS = (1 << 31) - 1
_UNITS = ("s", "ms", "us", "ns")


class _Shaped(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is untyped
    """An Arrow extension type told by element type and shape."""

    NAME = ""

    def __init__(self, dtype: str, shape: tuple[int | None, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        super().__init__(self.storage_for(dtype, shape), self.NAME)

    @classmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        raise NotImplementedError

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps({"dtype": self.dtype, "shape": self.shape}).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _Shaped:
        try:
            form = json.loads(serialized)
            dtype, shape = dtype_name(form["dtype"]), tuple(form["shape"])
            expected = cls.storage_for(dtype, shape)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"not a {cls.NAME} type: {serialized!r:.80}") from error
        if storage != expected:
            raise InvalidInputError(f"{cls.NAME} {dtype}{shape} is stored as {expected}: {storage}")
        return cls(dtype, shape)


class FixedTensorType(_Shaped):
    """Rows that Arrow has no tensor of (bool, complex, no elements), as fixed-size binary."""

    NAME = "tensorrepo.tensor"

    @classmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        return pa.binary(np.dtype(dtype).itemsize * prod(cast("tuple[int, ...]", shape)))


class RaggedTensorType(_Shaped):
    """Rows of different shapes: Arrow's canonical storage of a variable-shape tensor."""

    NAME = "tensorrepo.ragged"

    @classmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        dims = pa.list_(pa.field("item", pa.uint32(), nullable=False), len(shape))
        return pa.struct([("data", pa.large_list(element_type(dtype))), ("shape", dims)])


@cache
def element_type(dtype: str) -> pa.DataType:
    """Arrow's type of one stored element; complex ones are fixed-size binary."""
    element = np.dtype(dtype)
    return pa.binary(element.itemsize) if element.kind == "c" else pa.from_numpy_dtype(element)


@cache
def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The Arrow type in which a column of this type is given out.

    Raises:
        UnsupportedError: rows of more than 2^31 - 1 elements: Arrow counts them in 32 bits.
    """
    match column_type:
        case Embedding(dtype=dtype, dim=dim) if np.dtype(dtype).kind != "c":
            return pa.list_(pa.field("item", element_type(dtype), nullable=False), dim)
        case Text() | Json():
            return pa.large_string()
        case Image() | Bytes():
            return pa.large_binary()
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
    storage = storage_of(column_type)
    if storage.layout is Layout.RAGGED:
        if len(storage.shape) == 1:
            return pa.large_list(element_type(storage.dtype))
        return RaggedTensorType(storage.dtype, storage.shape)
    return _fixed_type(storage.dtype, storage.row_shape)


def _fixed_type(dtype: str, shape: tuple[int, ...]) -> pa.DataType:
    elements = prod(shape)
    if elements > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"Arrow cannot hold rows of {elements} elements (shape {shape}). Read rows one by one."
        )
    kind = np.dtype(dtype).kind
    if not shape:
        return FixedTensorType(dtype, shape) if kind == "c" else pa.from_numpy_dtype(dtype)
    if kind in "bc" or not elements:
        return FixedTensorType(dtype, shape)
    return pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), shape)


def to_field(name: str, column_type: ColumnType, *, nullable: bool, column_id: str) -> pa.Field:
    """An Arrow field that `from_field` turns back into exactly this."""
    metadata = {TYPE_KEY: json.dumps(type_to_json(column_type)).encode()}
    if column_id:
        metadata[ID_KEY] = column_id.encode()
    return pa.field(name, arrow_type(column_type), nullable=nullable, metadata=metadata)


def from_field(field: pa.Field) -> tuple[ColumnType, str]:
    """Column type and column id (or "") of an Arrow field.

    Raises:
        UnsupportedError: Arrow types that no column type holds.
    """
    metadata = field.metadata or {}
    if TYPE_KEY in metadata:
        column_type = type_from_json(_parse(metadata[TYPE_KEY], field.name))
        # A tool that casts a column may keep the metadata: then the data's own type counts.
        if arrow_type(column_type) == field.type:
            return column_type, metadata.get(ID_KEY, b"").decode("ascii", "replace")
    return infer_type(field.type, field.name), ""


def _parse(text: bytes, name: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"column {name!r}: metadata {text!r:.80} is not JSON") from error


def infer_type(arrow: pa.DataType, name: str) -> ColumnType:
    """The column type that holds values of an Arrow type of foreign origin."""
    types = pa.types
    if isinstance(arrow, pa.BaseExtensionType):
        return _infer_extension(arrow, name)
    if types.is_dictionary(arrow):
        return infer_type(arrow.value_type, name)
    if is_text(arrow):
        return Text()
    if is_bytes(arrow):
        return Bytes()
    if types.is_timestamp(arrow):
        return Timestamp(arrow.unit, arrow.tz)
    if types.is_date(arrow):
        return Timestamp("s" if types.is_date32(arrow) else "ms")
    return _infer_numbers(arrow, name)


def _infer_extension(arrow: Any, name: str) -> ColumnType:
    if isinstance(arrow, _Shaped):
        return Tensor(arrow.dtype, arrow.shape) if arrow.shape else Scalar(arrow.dtype)
    if not isinstance(arrow, pa.FixedShapeTensorType):
        return infer_type(arrow.storage_type, name)
    permutation = arrow.permutation
    if permutation is not None and list(permutation) != sorted(permutation):
        raise UnsupportedError(
            f"column {name!r}: {arrow} is permuted. Make it contiguous in C order first."
        )
    return Tensor(_element_name(arrow.value_type, name), tuple(arrow.shape))


def _infer_numbers(arrow: Any, name: str) -> ColumnType:
    if is_list(arrow):
        return Tensor(_element_name(arrow.value_type, name), (None,))
    shape: list[int] = []
    while pa.types.is_fixed_size_list(arrow):
        shape.append(arrow.list_size)
        arrow = arrow.value_type
    dtype = _element_name(arrow, name)
    return Tensor(dtype, tuple(shape)) if shape else Scalar(dtype)


def is_text(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow)
    )


def is_bytes(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(arrow)
        or types.is_large_binary(arrow)
        or types.is_fixed_size_binary(arrow)
        or types.is_binary_view(arrow)
    )


def is_list(arrow: pa.DataType) -> bool:
    """Whether rows are lists of any length."""
    types = pa.types
    return bool(
        types.is_list(arrow)
        or types.is_large_list(arrow)
        or types.is_list_view(arrow)
        or types.is_large_list_view(arrow)
    )


def _element_name(arrow: pa.DataType, name: str) -> str:
    types = pa.types
    if not (types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow)):
        raise UnsupportedError(
            f"column {name!r}: no column type holds Arrow's {arrow}. Cast it, or leave it out."
        )
    return dtype_name(arrow.to_pandas_dtype())


def _register() -> None:
    for kind in (FixedTensorType("bool", (1,)), RaggedTensorType("bool", (None, None))):
        try:
            pa.register_extension_type(kind)
        except pa.ArrowKeyError:  # a reloaded module: Arrow's registry outlives ours
            pa.unregister_extension_type(kind.extension_name)
            pa.register_extension_type(kind)


_register()
