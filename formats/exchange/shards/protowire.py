"""How do the bytes of a protobuf message split into fields?

Foreign records are protobuf messages of a handful of fields: TensorFlow's Example, Caffe's Datum.
Their few lines of wire format are read and written here, so that nobody needs protobuf itself and
a message is looked at no further than its own bytes go.

Source:
    Protocol Buffers Documentation, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.damage import damage

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_VARINT_BYTES = 10


class Wire(IntEnum):
    """How the value of a field is stored."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


def read_fields(message: memoryview, where: str) -> Iterator[tuple[int, Wire, int, memoryview]]:
    """(field, wire, number, bytes) of each field in order.

    `number` is that of a varint, else 0; `bytes` are those of any other field, else empty.

    Raises:
        InvalidInputError: a field that reaches past the message, or that no message has.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = read_varint(message, at, where)
        field, kind = tag >> 3, tag & 7
        if kind == Wire.VARINT:
            number, at = read_varint(message, at, where)
            yield field, Wire.VARINT, number, message[:0]
            continue
        if kind == Wire.BYTES:
            size, at = read_varint(message, at, where)
        elif kind in (Wire.FIXED32, Wire.FIXED64):
            size = 4 if kind == Wire.FIXED32 else 8
        else:
            raise damage(where, f"is no protobuf message: field {field} has wire type {kind}")
        if size > end - at:
            raise damage(where, f"is cut short: {size} bytes of field {field}, {end - at} are left")
        yield field, Wire(kind), 0, message[at : at + size]
        at += size


def read_varint(message: memoryview, at: int, where: str) -> tuple[int, int]:
    """The unsigned number at byte `at`, and where it ends."""
    number = shift = 0
    for place in range(at, min(at + MAX_VARINT_BYTES, len(message))):
        byte = message[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise damage(where, f"is no protobuf message: no whole number at byte {at}")


def signed(number: int) -> int:
    """A varint as the int32 or int64 that it stands for."""
    return number - (1 << 64) if number >> 63 else number


def read_varints(packed: memoryview, where: str) -> NDArray[np.int64]:
    """All numbers of a packed field."""
    data = np.frombuffer(packed, np.uint8)
    if not (data & 0x80).any():
        return data.astype(np.int64)
    ends = np.flatnonzero(data < 0x80)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise damage(where, "is cut short inside a whole number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > MAX_VARINT_BYTES:
        raise damage(where, f"has a whole number of {lengths.max()} bytes")
    place = np.arange(len(data)) - np.repeat(starts, lengths)
    shifted = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, starts).view(np.int64)


def write_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_varints(numbers: NDArray[Any]) -> bytes:
    """Numbers as a packed field; negative ones take ten bytes."""
    values = np.ascontiguousarray(numbers, np.int64).reshape(-1).view(np.uint64)
    lengths = np.ones(len(values), np.int64)
    for extra in range(1, MAX_VARINT_BYTES):
        lengths += values >> np.uint64(7 * extra) != 0
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        low = (values[here] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        out[starts[here] + place] = low | np.where(lengths[here] > place + 1, 0x80, 0)
    return out.tobytes()


def write_field(field: int, content: bytes) -> bytes:
    """A field of bytes, text, packed numbers or another message."""
    return write_varint(field << 3 | Wire.BYTES) + write_varint(len(content)) + content
