"""Arrow types of column types, both ways.

Arrow's own types where it has them (`fixed_shape_tensor` for tensors), else an extension over
fixed-size binary, a struct or text. The exact column type travels in the field's metadata, so a
schema survives the round trip; without that metadata a type is inferred.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from functools import cache
from math import prod
from typing import Any, cast

import pyarrow as pa

from tensorrepo.formats.common.dtypes import dtype_name, element_dtype, is_small_float
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ColumnType,
    Embedding,
    Image,
    Json,
    Link,
    Scalar,
    Tensor,
    Text,
    Timestamp,
    storage_of,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

TYPE_KEY = b"tensorrepo.type"
MAX_ROW_ELEMENTS = (1 << 31) - 1  # Arrow counts a row's elements, or its bytes, in 32 bits


class _Shaped(pa.ExtensionType, ABC):  # type: ignore[misc]  # pyarrow is untyped
    """An Arrow extension type told by element type and shape."""

    NAME = ""

    def __init__(self, dtype: str, shape: tuple[int | None, ...]) -> None:
        self.dtype = dtype
        self.shape = shape
        super().__init__(self.storage_for(dtype, shape), self.NAME)

    @classmethod
    @abstractmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        """The type that values of this element type and shape are stored as."""

    def __eq__(self, other: object) -> bool:
        # Arrow's own looks at the storage alone: bytes of equal width would pass for each other.
        if type(other) is not type(self):
            return NotImplemented
        return (self.dtype, self.shape) == (other.dtype, other.shape)

    def __hash__(self) -> int:
        return hash((self.NAME, self.dtype, self.shape))

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
    """Rows that Arrow has no tensor of, as fixed-size binary.

    Those of bool, complex, bfloat16 and float8, and those without elements.
    """

    NAME = "tensorrepo.tensor"

    @classmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        return pa.binary(element_dtype(dtype).itemsize * prod(cast("tuple[int, ...]", shape)))


class RaggedTensorType(_Shaped):
    """Rows of different shapes: Arrow's canonical storage of a variable-shape tensor."""

    NAME = "tensorrepo.ragged"

    @classmethod
    def storage_for(cls, dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
        dims = pa.list_(pa.field("item", pa.uint32(), nullable=False), len(shape))
        return pa.struct([("data", pa.large_list(element_type(dtype))), ("shape", dims)])


class LinkType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is untyped
    """The JSON of a `LinkValue`, as text."""

    NAME = "tensorrepo.link"

    def __init__(self) -> None:
        super().__init__(pa.large_string(), self.NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> LinkType:
        if storage != pa.large_string() or serialized:
            raise InvalidInputError(f"{cls.NAME} is stored as large_string: {storage}")
        return cls()


def is_foreign(dtype: str) -> bool:
    """Whether Arrow has no number like this element: complex, bfloat16, float8."""
    element = element_dtype(dtype)
    return element.kind == "c" or is_small_float(element)


@cache
def element_type(dtype: str) -> pa.DataType:
    """Arrow's type of one stored element; what Arrow lacks is fixed-size binary."""
    element = element_dtype(dtype)
    return pa.binary(element.itemsize) if is_foreign(dtype) else pa.from_numpy_dtype(element)


@cache
def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The Arrow type in which a column of this type is given out.

    Raises:
        UnsupportedError: rows of 2^31 elements or more: Arrow counts them in 32 bits.
    """
    match column_type:
        case Embedding(dtype=dtype, dim=dim) if not is_foreign(dtype):
            _check_row(dtype, (dim,), dim)
            return pa.list_(pa.field("item", element_type(dtype), nullable=False), dim)
        case Text() | Json():
            return pa.large_string()
        case Image() | Bytes():
            return pa.large_binary()
        case Link():
            return LinkType()
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
    storage = storage_of(column_type)
    if None not in storage.shape:
        return _fixed_type(storage.dtype, storage.row_shape)
    if len(storage.shape) == 1:
        return pa.large_list(element_type(storage.dtype))
    return RaggedTensorType(storage.dtype, storage.shape)


def _fixed_type(dtype: str, shape: tuple[int, ...]) -> pa.DataType:
    as_bytes = is_foreign(dtype) or (shape and (dtype == "bool" or not prod(shape)))
    if as_bytes:
        _check_row(dtype, shape, prod(shape) * element_dtype(dtype).itemsize)
        return FixedTensorType(dtype, shape)
    _check_row(dtype, shape, prod(shape))
    element = pa.from_numpy_dtype(element_dtype(dtype))
    return pa.fixed_shape_tensor(element, shape) if shape else element


def _check_row(dtype: str, shape: tuple[int, ...], counted: int) -> None:
    if counted > MAX_ROW_ELEMENTS:
        raise UnsupportedError(
            f"Arrow cannot hold rows of shape {shape} of {dtype}: it counts what is in a row in 32 "
            "bits. Leave the column out, or read regions of its rows as numpy arrays: "
            "dataset[column][row, 0:64, ...]."
        )


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
    if isinstance(arrow, LinkType):
        return Link()
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
    return any(test(arrow) for test in _TEXTS)


def is_bytes(arrow: pa.DataType) -> bool:
    return any(test(arrow) for test in _BYTES)


def is_list(arrow: pa.DataType) -> bool:
    """Whether rows are lists of any length."""
    return any(test(arrow) for test in _LISTS)


_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary, pa.types.is_binary_view,
)  # fmt: skip
_LISTS = (
    pa.types.is_list, pa.types.is_large_list,
    pa.types.is_list_view, pa.types.is_large_list_view,
)  # fmt: skip


def _element_name(arrow: pa.DataType, name: str) -> str:
    types = pa.types
    if not (types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow)):
        raise UnsupportedError(
            f"column {name!r}: no column type holds Arrow's {arrow}. Cast it, or leave it out."
        )
    return dtype_name(arrow.to_pandas_dtype())


def _register() -> None:
    for kind in (FixedTensorType("bool", (1,)), RaggedTensorType("bool", (None, None)), LinkType()):
        try:
            pa.register_extension_type(kind)
        except pa.ArrowKeyError:  # a reloaded module: Arrow's registry outlives ours
            pa.unregister_extension_type(kind.extension_name)
            pa.register_extension_type(kind)


_register()
