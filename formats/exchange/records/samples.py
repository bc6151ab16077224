"""Samples of record formats: batches, inferred column types, bounded reads.

Their files hold one sample after another, each with named parts. Here samples become batches of
bounded bytes, arrays of samples become a column type, and bytes are read only as far as there are
any, whatever a length field says.

Their classes are declared here in a few lines, so that neither library is needed. The features of
an Example are a map; declared as the list of entries that a map is on the wire, they keep their
order.

Source:
    tensorflow/core/example/example.proto and feature.proto; caffe.proto of Caffe 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.dtypes import dtype_name
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    ColumnBatch,
    ColumnType,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.schema.values import BinaryValues, FixedValues, RaggedValues
from tensorrepo.formats.exchange.base import columns_of, grouped
from tensorrepo.formats.images.headers import HEAD_BYTES, codec_of, examine
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

SAMPLES = 256  # records from which types are inferred, unless an option says another number
# Up to here a block is read at once; a larger one grows with the bytes that really come.
_STEP_BYTES = 16 << 20
_VALUE_BYTES = 64  # what a value costs in memory beside its bytes


class Readable(Protocol):
    """What gives bytes when it is asked for them."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One row of a source: its values by column, and the bytes that they take."""

    values: Mapping[str, Any]
    bytes: int


def batches_of(records: Iterable[SampleRecord], names: Sequence[str]) -> Iterator[ColumnBatch]:
    """Records as batches of about `BATCH_BYTES`; a column that a record lacks is null there."""
    cost = _VALUE_BYTES * len(names)
    for rows in grouped((record.values, record.bytes + cost) for record in records):
        yield columns_of(rows, names)


def read_exactly(stream: Readable, size: int, where: str) -> bytes:
    """The next `size` bytes; memory grows with what comes. Raises InvalidInputError: too few."""
    if size <= _STEP_BYTES:
        data = stream.read(size)
        if len(data) < size:
            raise ends_early(where, size - len(data))
        return data
    grown = bytearray()
    while len(grown) < size:
        block = stream.read(min(_STEP_BYTES, size - len(grown)))
        if not block:
            raise ends_early(where, size - len(grown))
        grown += block
    return bytes(grown)


def ends_early(where: str, missing: int) -> InvalidInputError:
    return damage(where, f"ends {missing} bytes too early. Is the file cut short?")


def plain_array(array: NDArray[Any]) -> NDArray[Any]:
    """`array` little-endian and in C order, its bools exactly 0 or 1."""
    shape = array.shape  # ascontiguousarray gives a single number a dimension
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return (np.not_equal(flat.view(np.uint8), 0) if flat.dtype.kind == "b" else flat).reshape(shape)


def array_type(
    forms: Iterable[tuple[np.dtype[Any], tuple[int, ...]]], where: str
) -> Scalar | Tensor:
    """The column type that holds arrays of these element types and shapes, one for each sample.

    Raises:
        InvalidInputError: they differ in element type or in the number of dimensions, or no column
            has such elements.
    """
    found = list(dict.fromkeys(forms))
    dtype, shape = found[0]
    for other, other_shape in found:
        if other != dtype or len(other_shape) != len(shape):
            raise damage(
                where,
                f"one sample has {dtype} of shape {shape}, another {other} of shape {other_shape}; "
                "a column has one element type and one number of dimensions",
            )
    try:
        name = dtype_name(dtype.newbyteorder("<"))
    except InvalidInputError as problem:
        raise damage(where, f"has elements of type {dtype}: {problem}") from problem
    if not shape:
        return Scalar(name)
    sizes = zip(*(shape for _, shape in found), strict=True)
    return Tensor(name, tuple(dims[0] if len(set(dims)) == 1 else None for dims in sizes))


def check_array(kind: ColumnType, array: NDArray[Any], where: str) -> NDArray[Any]:
    """`array` if a column of this type holds it. Raises InvalidInputError: other type or shape."""
    wanted = kind.shape if isinstance(kind, Tensor) else ()
    dtype = kind.dtype if isinstance(kind, Tensor | Scalar) else ""
    fits = len(wanted) == array.ndim and all(
        dim is None or dim == found for dim, found in zip(wanted, array.shape, strict=True)
    )
    if not fits or array.dtype.name != dtype:
        shown = tuple("any" if dim is None else dim for dim in wanted)
        raise damage(
            where,
            f"is {array.dtype} of shape {array.shape}; the first samples are {dtype} of shape "
            f"{shown}. Infer from more of them: samples=N",
        )
    return array


def image_type(heads: Iterable[bytes]) -> Image | None:
    """The type of a column whose values begin like these, None unless all are images."""
    codecs = {codec_of(head[:HEAD_BYTES]) for head in heads}
    if not codecs or None in codecs:
        return None
    return Image(codecs.pop() if len(codecs) == 1 else None)


def check_image(kind: Image, data: bytes, where: str) -> bytes:
    """`data` if it is one whole image of this type. Raises InvalidInputError."""
    try:
        codec = examine(data).codec
    except InvalidInputError as problem:
        raise damage(where, str(problem)) from problem
    if kind.codec not in (None, codec):
        raise damage(where, f"is a {codec} image; the column holds {kind.codec} images")
    return data


def check_bytes(kind: ColumnType, data: bytes, where: str) -> Any:
    """Bytes as a column of this type has them: whole images, text, what JSON says, or bytes."""
    if isinstance(kind, Image):
        return check_image(kind, data, where)
    if isinstance(kind, Json):
        return check_json(data, where)
    return check_text(data, where) if isinstance(kind, Text) else data


def check_text(data: bytes, where: str) -> str:
    """`data` as text. Raises InvalidInputError: not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise damage(where, f"is not UTF-8 text: {problem}") from problem


def check_json(data: bytes, where: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """What JSON says; `parse_constant` is told of NaN. Raises InvalidInputError: not JSON."""
    try:
        return json.loads(data, parse_constant=parse_constant)
    except (ValueError, RecursionError) as problem:
        raise damage(where, f"is not JSON: {problem}") from problem


def row_values(column: Column, array: pa.Array) -> Callable[[int], Any]:
    """The value of a column by row of a batch, bytes or an array; None where it is null."""
    values = from_arrow_array(column.type, array)
    valid = None if values is None else values.valid

    def value(at: int) -> Any:
        if valid is not None and not valid[at]:
            return None
        if isinstance(values, BinaryValues):
            return values.data[values.offsets[at] : values.offsets[at + 1]].tobytes()
        if isinstance(values, RaggedValues):
            return values.row(at)
        assert isinstance(values, FixedValues), column
        return values.values[at]

    return value


def is_text(data: bytes) -> bool:
    """Whether bytes are text that people read: UTF-8 without control characters but line ends."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in text)


def choose(
    where: object,
    there: Sequence[str],
    columns: Sequence[str] | None,
    what: str = "column",
    exclude: Sequence[str] = (),
) -> list[str]:
    """The columns to read: all, or those asked for. Raises NotFoundError: one is not there."""
    for name in (*(columns or ()), *exclude):
        if name not in there:
            listed = ", ".join(map(repr, there))
            raise NotFoundError(f"{where}: holds no {what} {name!r}; there are {listed}")
    return [name for name in (there if columns is None else columns) if name not in exclude]


def parse_count(value: object) -> int:
    """A number of things, at least 1."""
    try:
        count = int(str(value))
    except ValueError as problem:
        raise InvalidInputError(f"expected a number, got {value!r}") from problem
    if count < 1:
        raise InvalidInputError(f"expected a number of at least 1, got {count}")
    return count


_ONE, _MANY = 1, 3
_FLOAT, _INT64, _INT32, _BOOL, _MESSAGE, _BYTES = 2, 3, 5, 8, 11, 12

# Fields: name, number, label, type, and the message that it is.
_FIELDS: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "BytesList": (("value", 1, _MANY, _BYTES, ""),),
    "FloatList": (("value", 1, _MANY, _FLOAT, ""),),
    "Int64List": (("value", 1, _MANY, _INT64, ""),),
    "Feature": (
        ("bytes_list", 1, _ONE, _MESSAGE, "BytesList"),
        ("float_list", 2, _ONE, _MESSAGE, "FloatList"),
        ("int64_list", 3, _ONE, _MESSAGE, "Int64List"),
    ),
    "Entry": (("key", 1, _ONE, _BYTES, ""), ("value", 2, _ONE, _MESSAGE, "Feature")),
    "Features": (("feature", 1, _MANY, _MESSAGE, "Entry"),),
    "Example": (("features", 1, _ONE, _MESSAGE, "Features"),),
    "Datum": (
        ("channels", 1, _ONE, _INT32, ""),
        ("height", 2, _ONE, _INT32, ""),
        ("width", 3, _ONE, _INT32, ""),
        ("data", 4, _ONE, _BYTES, ""),
        ("label", 5, _ONE, _INT32, ""),
        ("float_data", 6, _MANY, _FLOAT, ""),
        ("encoded", 7, _ONE, _BOOL, ""),
    ),
}
_ONE_OF = "kind"  # the fields of a Feature exclude each other


def parse_message(name: str, data: bytes, where: str, what: str) -> Any:
    """A message, "Example" or "Datum", that has no other fields than those declared.

    Raises:
        InvalidInputError: another message, or a damaged one.
        UnsupportedError: protobuf is not installed.
    """
    message_class, decode_error = _messages()
    message = message_class[name]()
    try:
        message.ParseFromString(data)
    except decode_error as problem:
        raise damage(where, f"is no {what}, or damaged: {problem}") from problem
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise damage(where, f"is no {what}: it has fields that none has")
    return message


@cache
def _messages() -> tuple[dict[str, Any], type[Exception]]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError as problem:
        raise UnsupportedError(
            "TFRecord's and Caffe's samples are protobuf messages, which need protobuf: "
            "pip install 'tensorrepo[tfrecord]'"
        ) from problem
    file = descriptor_pb2.FileDescriptorProto(name="records.proto", package="r", syntax="proto3")
    for name, fields in _FIELDS.items():
        declared = file.message_type.add(name=name)
        for field, number, label, kind, of in fields:
            declared.field.add(
                name=field, number=number, label=label, type=kind,
                type_name=f".r.{of}" if of else None,
                oneof_index=0 if name == "Feature" else None,
            )  # fmt: skip
    next(each for each in file.message_type if each.name == "Feature").oneof_decl.add(name=_ONE_OF)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"r.{name}"))
        for name in _FIELDS
    }
    return classes, message.DecodeError
