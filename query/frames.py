"""How do the two ends of a sandboxed query talk?

In frames over a pipe: ``u32 head_bytes | u64 body_bytes | head, JSON | body``. Bodies are Arrow's
stream format, or nothing. Each side bounds what it takes: the other one may be hostile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from struct import Struct
from typing import Any

import pyarrow as pa

from tensorrepo.repo.errors import InvalidInputError

SIZES = Struct("<IQ")
MOST_HEAD_BYTES = 1 << 20
MOST_BODY_BYTES = 1 << 30


class Pipe:
    """Frames from one file descriptor, and to another."""

    def __init__(self, incoming: int, outgoing: int, most_bytes: int = MOST_BODY_BYTES) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._most_bytes = most_bytes

    def send(self, head: Mapping[str, Any], body: pa.Buffer | bytes = b"") -> None:
        """Raises BrokenPipeError when the other end is gone."""
        text = json.dumps(head).encode()
        view = memoryview(body).cast("B")
        self._write(memoryview(SIZES.pack(len(text), len(view)) + text))
        self._write(view)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises EOFError when the other end is gone."""
        head_bytes, body_bytes = SIZES.unpack(self._read(SIZES.size))
        if head_bytes > MOST_HEAD_BYTES or body_bytes > self._most_bytes:
            raise InvalidInputError(
                f"a frame of {head_bytes:,} and {body_bytes:,} bytes, at most "
                f"{MOST_HEAD_BYTES:,} and {self._most_bytes:,} are taken"
            )
        head = json.loads(self._read(head_bytes))
        return head, self._read(body_bytes)

    def close(self) -> None:
        os.close(self._incoming)
        os.close(self._outgoing)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self._incoming, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError("the other end of the pipe is gone")
            parts += part
        return bytes(parts)

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._outgoing, view) :]


def packed(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Buffer:
    """Batches as a body."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def unpacked(body: bytes) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """What `packed` made, validated: a body may be made to crash who reads it.

    Raises:
        InvalidInputError: it is no such thing.
    """
    try:
        with pa.ipc.open_stream(body) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
            return stream.schema, batches
    except pa.ArrowException as error:
        raise InvalidInputError(f"a body that is no Arrow stream: {error}") from error
