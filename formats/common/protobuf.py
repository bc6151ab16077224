"""Protobuf wire format: fields of messages in memory or by ranges of a file.

Foreign records are protobuf messages of a handful of fields: TensorFlow's Example, Caffe's Datum.
Their few lines of wire format are read and written here, so that nobody needs protobuf itself and
a message is looked at no further than its own bytes go.

Messages of gigabytes are walked without being read: a field's content is a range of the file, and
only what somebody asks for is fetched.

Source:
    Protocol Buffers Documentation, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refused
from tensorrepo.repo.errors import InvalidInputError

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


_WINDOW_BYTES: Final = 64 << 10
_TAG_BYTES: Final = 2 * MAX_VARINT_BYTES  # a tag and a length


class Ranges(Protocol):
    """Bytes somewhere, of which ranges are read."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, size: int) -> bytes: ...


class ProtoField(NamedTuple):
    """A field: its content is ``[start, stop)`` of the file, or the `value` of a number."""

    number: int
    wire: Wire
    value: int
    start: int
    stop: int


class ProtoFile:
    """A message in a file, or in anything that gives ranges."""

    def __init__(self, ranges: Ranges, where: str) -> None:
        self.ranges = ranges
        self.where = where
        self._window = b""
        self._window_start = 0

    def whole(self) -> Iterator[ProtoField]:
        return self.fields(0, self.ranges.size)

    def fields(self, start: int, stop: int) -> Iterator[ProtoField]:
        """The fields of the message that is ``[start, stop)`` of the file, in order.

        Raises:
            InvalidInputError: a field that reaches past the message, or that no message has.
        """
        at = start
        while at < stop:
            head = self._head(at, min(_TAG_BYTES, stop - at))
            tag, used = read_varint(head, 0, self.where)
            number, kind = tag >> 3, tag & 7
            if not number or kind not in set(Wire):
                raise InvalidInputError(
                    f"{self.where}: no protobuf message: field {number} of wire type {kind} at "
                    f"byte {at}"
                )
            value, size = 0, {Wire.FIXED32: 4, Wire.FIXED64: 8}.get(Wire(kind), 0)
            if kind == Wire.VARINT:
                value, used = read_varint(head, used, self.where)
            elif kind == Wire.BYTES:
                size, used = read_varint(head, used, self.where)
            if size > stop - at - used:
                raise refused(
                    f"{self.where}: cut short: field {number} at byte {at} has {size} bytes, "
                    f"{stop - at - used} are left"
                )
            yield ProtoField(number, Wire(kind), value, at + used, at + used + size)
            at += used + size

    def content(self, field: ProtoField, limit_bytes: int) -> bytes:
        """The bytes of a field. Raises InvalidInputError: more than `limit_bytes`, or a number."""
        size = field.stop - field.start
        if field.wire is not Wire.BYTES or size > limit_bytes:
            raise InvalidInputError(
                f"{self.where}: field {field.number} of {size} bytes at byte {field.start}, "
                f"at most {limit_bytes} are read"
            )
        return self.ranges.read(field.start, size)

    def text(self, field: ProtoField, limit_bytes: int = 1 << 16) -> str:
        try:
            return self.content(field, limit_bytes).decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{self.where}: text at byte {field.start} is no UTF-8"
            ) from error

    def _head(self, at: int, size: int) -> memoryview:
        start = at - self._window_start
        if not 0 <= start <= start + size <= len(self._window):
            self._window = self.ranges.read(at, min(_WINDOW_BYTES, self.ranges.size - at))
            self._window_start, start = at, 0
        return memoryview(self._window)[start : start + size]
