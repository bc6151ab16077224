"""Framed pipe with bounds, and checks of Arrow streams before they are decoded.

In frames over a pipe: ``u32 head_bytes | u64 body_bytes | head, a JSON object | body``. Bodies are
Arrow's stream format, or nothing. Each side bounds what it takes: the other one may be hostile. A
body is looked at before Arrow decodes it, because some hundred bytes of the format can ask for
terabytes: compressed buffers, buffers that share their bytes, and values that take none.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.repo.errors import Error, InvalidInputError

SIZES = Struct("<IQ")
MOST_HEAD_BYTES = 1 << 20
MOST_BODY_BYTES = 1 << 30
LOOK_MS = 200  # between two looks at whether the other end was told to go
_EXTENSION = b"ARROW:extension:name"  # what stands before types that run code of their own
# A table of flatbuffers, `org.apache.arrow.flatbuf`: places of its fields in their order.
_MESSAGE_HEADER = 2
_BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 1, 2, 3


class Pipe:
    """Frames from one file descriptor, and to another.

    `is_over` is asked while nothing comes: whoever holds the other end need not be who should.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        most_bytes: int = MOST_BODY_BYTES,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._most_bytes = most_bytes
        self._is_over = is_over

    def send(self, head: Mapping[str, Any], body: pa.Buffer | bytes = b"") -> None:
        """Raises BrokenPipeError when the other end is gone."""
        text = json.dumps(head).encode()
        view = memoryview(body).cast("B")
        self._write(memoryview(SIZES.pack(len(text), len(view)) + text))
        self._write(view)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame.

        Raises:
            EOFError: the other end is gone.
            InvalidInputError: it is no frame, or one of more bytes than are taken.
        """
        head_bytes, body_bytes = SIZES.unpack(self._read(SIZES.size))
        if head_bytes > MOST_HEAD_BYTES or body_bytes > self._most_bytes:
            raise InvalidInputError(
                f"a frame of {head_bytes:,} and {body_bytes:,} bytes, at most "
                f"{MOST_HEAD_BYTES:,} and {self._most_bytes:,} are taken"
            )
        return _head(self._read(head_bytes)), self._read(body_bytes)

    def close(self) -> None:
        os.close(self._incoming)
        os.close(self._outgoing)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait()
            part = os.read(self._incoming, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError("the other end of the pipe is gone")
            parts += part
        return bytes(parts)

    def _wait(self) -> None:
        ready = select.poll()
        ready.register(self._incoming, select.POLLIN)
        while not ready.poll(LOOK_MS):
            if self._is_over():
                raise EOFError("the other end of the pipe was told to go")

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._outgoing, view) :]


def _head(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"a frame whose head is no JSON: {error!s:.200}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"a frame whose head is no JSON object: {found!r:.80}")
    return found


# ------------------------------------------------------------------------------ bodies


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a body holds; `values` counts those of all arrays, nested ones and nulls too."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]
    values: int


def packed(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Buffer:
    """Batches as a body."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def unpacked(body: bytes | pa.Buffer, expected: pa.Schema | None = None) -> Unpacked:
    """What `packed` made, validated: a body may be made to crash who reads it.

    Args:
        body: the bytes.
        expected: the schema that it has to have; None: any.

    Raises:
        InvalidInputError: it is no such thing.
    """
    with _as_ours():
        messages = _messages(body)
        first = next(messages, None)
        if first is None or first.type != "schema":
            raise InvalidInputError("a body that is no Arrow stream: it begins with no schema")
        if _EXTENSION in first.metadata.to_pybytes():
            raise InvalidInputError("a body with types of extensions of Arrow is not taken")
        schema = pa.ipc.read_schema(first)
        if expected is not None and schema != expected:
            raise InvalidInputError(f"a body of other columns: {schema.names!r:.200}")
        batches, values = [], 0
        for message in messages:
            values += _checked_values(message)
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            batches.append(batch)
        return Unpacked(schema, batches, values)


@contextmanager
def _as_ours() -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    # Arrow raises OSError for what is cut short, and struct where a place lies outside.
    except (pa.ArrowException, OSError, ValueError, MemoryError, struct.error) as error:
        raise InvalidInputError(f"a body that is no Arrow stream: {error!s:.200}") from error


def _messages(body: bytes | pa.Buffer) -> Iterator[pa.ipc.Message]:
    reader = pa.ipc.MessageReader.open_stream(body)
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _checked_values(message: pa.ipc.Message) -> int:
    """How many values a message claims to have, which decodes to no more bytes than it has.

    Raises:
        InvalidInputError: it is another kind of message, compressed, or its buffers share bytes.

    Source:
        Arrow's format/Message.fbs: ``RecordBatch {length, nodes, buffers, compression, ...}``.
    """
    if message.type != "record batch":
        raise InvalidInputError(f"a body with a message of kind {message.type!r:.40} is not taken")
    table = memoryview(message.metadata)
    batch = _field(table, _unsigned(table, 0), _MESSAGE_HEADER)
    batch += _unsigned(table, batch)
    if _has_field(table, batch, _BATCH_COMPRESSION):
        raise InvalidInputError("a body whose buffers are compressed is not taken")
    lengths = _pairs(table, batch, _BATCH_NODES)[:, 0]
    places = _pairs(table, batch, _BATCH_BUFFERS)
    if _is_outside(lengths) or _is_outside(places):
        raise InvalidInputError("a body that is no Arrow stream: sizes that no body has")
    used = places[places[:, 1] != 0]
    used = used[used[:, 0].argsort()]
    if (used[1:, 0] < used[:-1].sum(axis=1)).any():
        raise InvalidInputError("a body whose buffers share bytes is not taken")
    return sum(lengths.tolist())


def _is_outside(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    return bool(((sizes < 0) | (sizes >= 1 << 62)).any())


def _pairs(table: memoryview, at: int, place: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A vector of structs of two i64, as int64 ``(n, 2)``."""
    if not _has_field(table, at, place):
        return np.zeros((0, 2), np.int64)
    start = _field(table, at, place)
    start += _unsigned(table, start)
    count = _unsigned(table, start)
    return np.frombuffer(table, "<i8", 2 * count, start + 4).reshape(-1, 2)


def _has_field(table: memoryview, at: int, place: int) -> bool:
    return _offset(table, at, place) != 0


def _field(table: memoryview, at: int, place: int) -> int:
    offset = _offset(table, at, place)
    if not offset:
        raise InvalidInputError("a body that is no Arrow stream: a message lacks its header")
    return at + offset


def _offset(table: memoryview, at: int, place: int) -> int:
    """Where a field of the table at `at` lies, from there; 0: it has its default."""
    places = at - int(struct.unpack_from("<i", table, at)[0])
    size = int(struct.unpack_from("<H", table, places)[0])
    entry = 4 + 2 * place
    return int(struct.unpack_from("<H", table, places + entry)[0]) if entry < size else 0


def _unsigned(table: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", table, at)[0])
