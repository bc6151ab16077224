"""Frames of values: arrays, tensors and containers as bytes that are read without pickle.

What a value consists of is copied behind each other, and then a description in MessagePack says
where each array lies. Whoever reads a frame gets arrays of that very memory; nothing but numbers,
text, arrays and containers can come out of one.

    array bytes | array bytes | ... | description
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import SMALL_FLOATS, Bools, is_small_float
from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.dataset.schema.convert import as_torch
from tensorrepo.formats.dataset.streaming.collate.batch import Batch, Identify, batch_with
from tensorrepo.repo.errors import InvalidInputError

_ALIGNMENT = 64
_PLAIN = (bool, int, float, str, type(None))
_MOST_WHOLE, _LEAST_WHOLE = 1 << 64, -(1 << 63)


class _Kind(IntEnum):
    """Extensions of a description; each holds the arguments of its reader."""

    BYTES = 1
    ARRAY = 2
    SCALAR = 3
    MASKED = 4
    TENSOR = 5
    ARROW = 6
    TUPLE = 7
    BATCH = 8


class BatchFrame:
    """What `value` consists of, ready to be copied into shared memory.

    `parts` name what a tuple consists of, for errors.

    Raises:
        InvalidInputError: something in it cannot be handed over; says where, and what can.
    """

    def __init__(self, value: Any, parts: Sequence[str] = ()) -> None:
        self._pieces: list[tuple[int, NDArray[np.uint8]]] = []
        self.bytes = 0
        if parts:
            inside = [self._node(each, name) for each, name in zip(value, parts, strict=True)]
            node: Any = _extension(_Kind.TUPLE, inside)
        else:
            node = self._node(value, "what is handed out")
        description = np.frombuffer(msgspec.msgpack.encode(node), np.uint8)
        self.description_at = self._placed(description)
        self.description_bytes = len(description)

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Copy everything into `memory`, which has at least `bytes` bytes."""
        for at, piece in self._pieces:
            memory[at : at + len(piece)] = piece

    def _placed(self, piece: NDArray[np.uint8]) -> int:
        at = -(-self.bytes // _ALIGNMENT) * _ALIGNMENT
        self._pieces.append((at, piece))
        self.bytes = at + len(piece)
        return at

    def _node(self, value: Any, where: str) -> Any:
        """A value as the description has it."""
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy(value, where)
        if isinstance(value, _PLAIN):
            if isinstance(value, int) and not _LEAST_WHOLE <= value < _MOST_WHOLE:
                raise _refused(where, "an integer of more than 64 bits")
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            piece = np.frombuffer(value, np.uint8)
            return _extension(_Kind.BYTES, self._placed(piece), len(piece))
        if is_torch(value):
            return self._torch(value, where)
        if isinstance(value, pa.Array):
            piece = _arrow_stream(value)
            return _extension(_Kind.ARROW, self._placed(piece), len(piece))
        if isinstance(value, Batch):
            nodes = self._dict(value, where), self._dict(value.attributes, where)
            return _extension(_Kind.BATCH, *nodes)
        if isinstance(value, dict):
            return self._dict(value, where)
        if type(value) in (list, tuple):
            inside = [self._node(each, f"{where}[{at}]") for at, each in enumerate(value)]
            return inside if isinstance(value, list) else _extension(_Kind.TUPLE, inside)
        raise _refused(where, _of_type(value))

    def _dict(self, value: dict[Any, Any], where: str) -> dict[Any, Any]:
        for key in value:
            if not isinstance(key, _PLAIN):
                raise _refused(where, f"a key that is {_of_type(key)}")
        return {key: self._node(each, f"{where}[{key!r}]") for key, each in value.items()}

    def _numpy(self, value: NDArray[Any] | np.generic, where: str) -> msgspec.msgpack.Ext:
        if isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            nodes = self._numpy(np.ma.getdata(value), where), self._numpy(mask, where)
            return _extension(_Kind.MASKED, *nodes)
        array = np.asarray(value)
        if array.dtype.hasobject or (array.dtype.kind == "V" and not is_small_float(array.dtype)):
            raise _refused(where, f"an array of {array.dtype}")
        piece = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        name = array.dtype.name if is_small_float(array.dtype) else array.dtype.str
        kind = _Kind.ARRAY if isinstance(value, np.ndarray) else _Kind.SCALAR
        return _extension(kind, name, array.shape, self._placed(piece))

    def _torch(self, tensor: Any, where: str) -> msgspec.msgpack.Ext:
        import torch

        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise _refused(where, f"a {tensor.layout} tensor on {tensor.device}")
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        piece = plain.reshape(-1).view(torch.uint8).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        return _extension(_Kind.TENSOR, name, tuple(tensor.shape), self._placed(piece))


def _extension(kind: _Kind, *arguments: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(int(kind), msgspec.msgpack.encode(arguments))


def read_frame(
    memory: NDArray[np.uint8], description_at: int, description_bytes: int, identify: Identify
) -> Any:
    """What `BatchFrame` wrote into `memory`: its arrays and tensors are views of it.

    `identify` finds the row ids of batches.
    """
    described = memory[description_at : description_at + description_bytes]
    return _Reader(memory, identify).decode(described.data)


class _Reader:
    # It must not refer to itself: the memory is free with the last view, not with a collection.
    def __init__(self, memory: NDArray[np.uint8], identify: Identify) -> None:
        self._memory, self._identify = memory, identify

    def decode(self, data: memoryview) -> Any:
        return msgspec.msgpack.decode(data, ext_hook=self._value)

    def _value(self, code: int, data: memoryview) -> Any:
        return getattr(self, f"_{_Kind(code).name.lower()}")(*self.decode(data))

    def _bytes(self, at: int, size: int) -> bytes:
        return self._memory[at : at + size].tobytes()

    def _scalar(self, name: str, shape: list[int], at: int) -> Any:
        return self._array(name, shape, at)[()]

    def _masked(self, data: NDArray[Any], mask: Bools) -> Any:
        return np.ma.MaskedArray(data, mask)

    def _tuple(self, values: list[Any]) -> tuple[Any, ...]:
        return tuple(values)

    def _array(self, name: str, shape: list[int], at: int) -> NDArray[Any]:
        dtype = SMALL_FLOATS.get(name) or np.dtype(name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._memory[at : at + size].view(dtype).reshape(shape)

    def _tensor(self, name: str, shape: list[int], at: int) -> Any:
        import torch

        dtype = getattr(torch, name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return as_torch(self._memory[at : at + size]).view(dtype).reshape(shape)

    def _arrow(self, at: int, size: int) -> pa.Array:
        with pa.ipc.open_stream(pa.py_buffer(self._memory[at : at + size])) as stream:
            return stream.read_next_batch().column(0)

    def _batch(self, columns: dict[str, Any], attributes: dict[str, Any]) -> Batch:
        return batch_with(columns, attributes, self._identify)


def _arrow_stream(array: pa.Array) -> NDArray[np.uint8]:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _of_type(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _refused(where: str, value: str) -> InvalidInputError:
    return InvalidInputError(
        f"{where} is {value}, which cannot be handed over from another process: give arrays of "
        "numbers or text, tensors on the CPU, numbers, text, bytes, and dicts, lists and tuples of "
        "those; or use workers='thread'."
    )
