"""Protobuf messages of foreign records: TensorFlow's Example and Caffe's Datum.

Their classes are declared here in a few lines, so that neither library is needed. The features of
an Example are a map; declared as the list of entries that a map is on the wire, they keep their
order.

Source:
    tensorflow/core/example/example.proto and feature.proto; caffe.proto of Caffe 1.0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tensorrepo.formats.damage import damage
from tensorrepo.repo.errors import UnsupportedError

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
    """A message that has no other fields than those declared.

    Args:
        name: "Example" or "Datum".
        data: the whole message.
        where: names its place in messages of errors.
        what: its kind, as such a sentence calls it.

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
