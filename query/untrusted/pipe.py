"""Framed pipe with bounds, checks of Arrow streams before they are decoded, and message forms.

Frames are ``u32 head_bytes | u64 body_bytes | head, a JSON object | body``. Bodies are
Arrow's stream format, or nothing. Each side bounds what it takes: the other one may be hostile. A
body is looked at before Arrow decodes it, because some hundred bytes of the format can ask for
terabytes: compressed buffers, buffers that share their bytes, and values that take none.

Every head has one of a few forms and nothing else. A filter comes as the tree of it, and is built
anew from the few functions that DuckDB pushes down: Arrow's own decoder of expressions is not made
for hostile bytes.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.selecting.expression import (
    ArrowCall,
    ColumnRef,
    ExpressionNode,
    Literal,
    stored_tree,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.repo.typed_decoding import from_plain

SIZES = Struct("<IQ")
MOST_HEAD_BYTES = 1 << 20
MOST_BODY_BYTES = 1 << 30
PASSED_FILES = 4  # with the request for a child: its standard streams, and its leash
STATUS = Struct("<i")  # comes over a leash: the child's exit status, as `subprocess` counts it
NO_PROCESS = -1 << 31  # in the place of a status: there was no child to be had
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
    """Batches as a body, which is made in its own size: a sink that grows takes thrice that."""
    size = pa.MockOutputStream()
    _write(size, batches, schema)
    body = pa.allocate_buffer(size.size())
    _write(pa.FixedSizeBufferWriter(body), batches, schema)
    return body


def _write(sink: pa.NativeFile, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


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
    if _offset(table, batch, _BATCH_COMPRESSION):
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
    if not _offset(table, at, place):
        return np.zeros((0, 2), np.int64)
    start = _field(table, at, place)
    start += _unsigned(table, start)
    count = _unsigned(table, start)
    return np.frombuffer(table, "<i8", 2 * count, start + 4).reshape(-1, 2)


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


# ------------------------------------------------------------------------------ messages

MOST_FILTER_BYTES = 1 << 20
MOST_DEPTH = 100  # of calls in one another
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


class _Said(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Ready(_Said, frozen=True, tag="ready"):
    """The tables are there."""


class Begun(_Said, frozen=True, tag="begun"):
    """The query was understood; the body has the columns of its result."""


class RowsMessage(_Said, frozen=True, tag="rows"):
    """Rows of the result."""


class Done(_Said, frozen=True, tag="done"):
    """There are no more."""


class Failed(_Said, frozen=True, tag="error"):
    """The query is wrong."""

    type: str
    text: str


class ScanRequest(_Said, frozen=True, tag="scan"):
    """Begin to read columns of a table; the body is the filter, if there is one."""

    scan: _Number
    table: _Number
    columns: list[str]
    ended: list[_Number]


class Next(_Said, frozen=True, tag="next"):
    """Give the next rows of a scan."""

    scan: _Number
    ended: list[_Number]


Said: TypeAlias = Ready | Begun | RowsMessage | Done | Failed | ScanRequest | Next


def said_in(head: dict[str, Any]) -> Said:
    """What a head says. Raises InvalidInputError where it is none of the things that may be."""
    try:
        said: Said = from_plain(head, Said)  # type: ignore[arg-type]  # a union
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise misbehaved(f"it said what has no meaning: {error!s:.200}") from error
    return said


def misbehaved(what: str) -> InvalidInputError:
    """The error of a process that does what ours never does."""
    return InvalidInputError(
        f"the process of the untrusted query was stopped, for {what}. The query, or the data that "
        "it read, may have taken it over: nothing of its answer is to be believed"
    )


# ------------------------------------------------------------------------------ filters


def packed_filter(where: pc.Expression) -> pa.Buffer | None:
    """A filter as a body; None: it is none that `filter_in` gives back."""
    _, (stored,) = where.__reduce__()
    batch = pa.ipc.open_file(stored).get_batch(0)
    body = packed([batch], batch.schema)
    try:
        return body if filter_in(body).equals(where) else None
    except InvalidInputError:
        return None


def filter_in(body: bytes | pa.Buffer) -> pc.Expression:
    """The filter that `packed_filter` made a body of. Raises InvalidInputError for any other."""
    if len(body) > MOST_FILTER_BYTES:
        raise InvalidInputError(f"a filter of {len(body):,} bytes: {MOST_FILTER_BYTES:,} are taken")
    batches = unpacked(body).batches
    if len(batches) != 1 or batches[0].num_rows != 1:
        raise InvalidInputError("a filter that is not one row of literals")
    try:
        return _built(stored_tree(batches[0], MOST_DEPTH))
    except (pa.ArrowException, ValueError, TypeError, LookupError, StopIteration) as error:
        raise InvalidInputError(f"a filter that is not understood: {error!s:.200}") from error


def _built(node: ExpressionNode) -> pc.Expression:
    match node:
        case ColumnRef(name):
            return pc.field(name)
        case Literal(value):
            return pc.scalar(value)
        case ArrowCall(function, arguments, options):
            made = _FUNCTIONS[function](options)
            given = [_built(each) for each in arguments]
            return pc.Expression._call(function, given, made)  # noqa: SLF001 - names any function
    raise ValueError("a part of it is not known")


def _lookup(options: dict[str, pa.Scalar]) -> pc.FunctionOptions:
    if options["null_matching_behavior"].as_py() != 0:
        raise ValueError("it matches nulls in another way")
    return pc.SetLookupOptions(value_set=options["value_set"].values)


_PLAIN = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and_kleene",
    "or_kleene", "invert", "is_valid", "is_nan", "if_else",
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[[dict[str, pa.Scalar]], pc.FunctionOptions | None]] = {
    **dict.fromkeys(_PLAIN, lambda _: None),
    "is_null": lambda options: pc.NullOptions(nan_is_null=options["nan_is_null"].as_py()),
    "is_in": _lookup,
}
