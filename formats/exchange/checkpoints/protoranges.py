"""Where in a large protobuf message do its fields lie?

Messages of gigabytes are walked without being read: a field's content is a range of the file, and
only what somebody asks for is fetched.

Source:
    Protocol Buffers Documentation, "Encoding".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tensorrepo.formats.damage import refused
from tensorrepo.formats.exchange.shards.protowire import MAX_VARINT_BYTES, Wire, read_varint
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_WINDOW_BYTES: Final = 64 << 10
_TAG_BYTES: Final = 2 * MAX_VARINT_BYTES  # a tag and a length


class Ranges(Protocol):
    """Bytes somewhere, of which ranges are read."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, size: int) -> bytes: ...


class Field(NamedTuple):
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

    def whole(self) -> Iterator[Field]:
        return self.fields(0, self.ranges.size)

    def fields(self, start: int, stop: int) -> Iterator[Field]:
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
            yield Field(number, Wire(kind), value, at + used, at + used + size)
            at += used + size

    def content(self, field: Field, limit_bytes: int) -> bytes:
        """The bytes of a field.

        Raises:
            InvalidInputError: more than `limit_bytes`, or no bytes but a number.
        """
        size = field.stop - field.start
        if field.wire is not Wire.BYTES or size > limit_bytes:
            raise InvalidInputError(
                f"{self.where}: field {field.number} of {size} bytes at byte {field.start}, "
                f"at most {limit_bytes} are read"
            )
        return self.ranges.read(field.start, size)

    def text(self, field: Field, limit_bytes: int = 1 << 16) -> str:
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
