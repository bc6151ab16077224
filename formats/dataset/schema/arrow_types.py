"""Arrow types of column types, both ways.

Arrow's own types where it has them (`fixed_shape_tensor` for tensors), else an extension over
fixed-size binary, a struct or text. The exact column type travels in the field's metadata, so a
schema survives the round trip; without that metadata a type is inferred.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, Final, cast

import pyarrow as pa

from tensorrepo.formats.common.dtypes import dtype_name, element_dtype, is_small_float
from tensorrepo.formats.dataset.schema.arrow_forms import (
    canonical,
    check_form,
    decimal_type,
    is_bytes,
    is_list,
    is_text,
)
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Embedding,
    Image,
    Json,
    Link,
    List,
    Map,
    Null,
    Scalar,
    Struct,
    Tensor,
    Text,
    Time,
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
        except (ValueError, KeyError, TypeError, RecursionError) as error:
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
def arrow_type(column_type: ColumnType) -> pa.DataType:  # noqa: PLR0911  one return for each kind
    """The Arrow type in which a column of this type is given out.

    Raises:
        UnsupportedError: rows of 2^31 elements or more: Arrow counts them in 32 bits.
    """
    if (plain := _PLAIN.get(type(column_type))) is not None:
        return plain
    match column_type:
        case Embedding(dtype=dtype, dim=dim) if not is_foreign(dtype):
            _check_row(dtype, (dim,), dim)
            return pa.list_(pa.field("item", element_type(dtype), nullable=False), dim)
        case Bytes(size=size):
            return pa.large_binary() if size is None else pa.binary(size)
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
        case Time(unit=unit):
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case Duration(unit=unit):
            return pa.duration(unit)
        case Decimal(precision=precision, scale=scale):
            return decimal_type(precision, scale)
        case List() | Struct() | Map():
            return _nested_type(column_type)
    storage = storage_of(column_type)
    if None not in storage.shape:
        return _fixed_type(storage.dtype, storage.row_shape)
    if len(storage.shape) == 1:
        return pa.large_list(element_type(storage.dtype))
    return RaggedTensorType(storage.dtype, storage.shape)


def _nested_type(column_type: List | Struct | Map) -> pa.DataType:
    match column_type:
        case List(value=value, size=None):
            return pa.large_list(arrow_type(value))
        case List(value=value, size=size):
            return pa.list_(arrow_type(value), size)
        case Struct(fields=fields):
            return pa.struct([(name, arrow_type(each)) for name, each in fields])
        case Map(key=key, value=value):
            return pa.map_(arrow_type(key), arrow_type(value))


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


def infer_type(arrow: pa.DataType, name: str, *, null_elements: bool = False) -> ColumnType:
    """The column type that holds values of an Arrow type of foreign origin.

    Lists of numbers are tensors, unless numbers in them may be null.

    Args:
        arrow: type of the values.
        name: name of the column, for errors.
        null_elements: whether numbers in lists may be null.

    Raises:
        UnsupportedError: no column type holds them.
    """
    if isinstance(arrow, _Shaped):
        return Tensor(arrow.dtype, arrow.shape) if arrow.shape else Scalar(arrow.dtype)
    if isinstance(arrow, LinkType):
        return Link()
    if isinstance(arrow, pa.FixedShapeTensorType):
        return _infer_tensor(arrow, name)
    if isinstance(arrow, pa.JsonType):
        return Json()
    check_form(arrow, name)
    plain = canonical(arrow)
    if not null_elements and (found := _list_of_numbers(plain)) is not None:
        return found
    return _infer_canonical(plain)


def _infer_tensor(arrow: Any, name: str) -> ColumnType:
    permutation = arrow.permutation
    if permutation is not None and list(permutation) != sorted(permutation):
        raise UnsupportedError(
            f"column {name!r}: {arrow} is permuted. Make it contiguous in C order first."
        )
    return Tensor(dtype_name(arrow.value_type.to_pandas_dtype()), tuple(arrow.shape))


def _list_of_numbers(arrow: pa.DataType) -> Tensor | None:
    """The tensor that rows are: a list of numbers, or such of fixed size, one in the other."""
    if is_list(arrow):
        found = arrow.value_type
        return Tensor(dtype_name(found.to_pandas_dtype()), (None,)) if _is_number(found) else None
    shape: list[int] = []
    while pa.types.is_fixed_size_list(arrow):
        shape.append(arrow.list_size)
        arrow = arrow.value_type
    if not shape or not _is_number(arrow):
        return None
    return Tensor(dtype_name(arrow.to_pandas_dtype()), tuple(shape))


def _is_number(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow))


def _infer_canonical(arrow: Any) -> ColumnType:
    """The column type of one value, or of nested ones, in canonical form."""
    types = pa.types
    if types.is_struct(arrow):
        return Struct(tuple((each.name, _infer_canonical(each.type)) for each in arrow.fields))
    if types.is_map(arrow):
        return Map(_infer_canonical(arrow.key_type), _infer_canonical(arrow.item_type))
    if types.is_fixed_size_list(arrow):
        return List(_infer_canonical(arrow.value_type), arrow.list_size)
    if is_list(arrow):
        return List(_infer_canonical(arrow.value_type))
    for test, column_type in _KINDS:
        if test(arrow):
            return column_type(arrow)
    return Scalar(dtype_name(arrow.to_pandas_dtype()))


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], ColumnType]], ...]] = (
    (is_text, lambda _: Text()),
    (pa.types.is_fixed_size_binary, lambda arrow: Bytes(arrow.byte_width)),
    (is_bytes, lambda _: Bytes()),
    (pa.types.is_timestamp, lambda arrow: Timestamp(arrow.unit, arrow.tz)),
    (pa.types.is_date, lambda _: Date()),
    (pa.types.is_time, lambda arrow: Time(arrow.unit)),
    (pa.types.is_duration, lambda arrow: Duration(arrow.unit)),
    (pa.types.is_decimal, lambda arrow: Decimal(arrow.precision, arrow.scale)),
    (pa.types.is_null, lambda _: Null()),
)


def is_form_of(arrow: pa.DataType, column_type: ColumnType) -> bool:
    """Whether rows of a column can be given out as an Arrow type, and come back from it."""
    try:
        if canonical(arrow) == canonical(arrow_type(column_type)):
            return True
        return infer_type(arrow, "") == column_type
    except UnsupportedError:
        return False


_PLAIN: Final = {
    Text: pa.large_string(),
    Json: pa.large_string(),
    Image: pa.large_binary(),
    Link: LinkType(),
    Date: pa.date32(),
    Null: pa.null(),
}


def _register() -> None:
    for kind in (FixedTensorType("bool", (1,)), RaggedTensorType("bool", (None, None)), LinkType()):
        try:
            pa.register_extension_type(kind)
        except pa.ArrowKeyError:  # a reloaded module: Arrow's registry outlives ours
            pa.unregister_extension_type(kind.extension_name)
            pa.register_extension_type(kind)


_register()
