"""How does a batch lie in memory that two processes share, without pickle?

A frame is what a batch consists of, copied behind each other, and then a description: nested lists
that name types and say where each array lies. Whoever reads a frame gets arrays of that very
memory; nothing but numbers, text and the containers below can come out of one.

    array bytes | array bytes | ... | description, in MessagePack

Node of the description, by its first element:
    v value                     None, bool, int, float or str
    b at, bytes                 bytes
    a dtype, shape, at          numpy array
    g dtype, shape, at          numpy scalar
    m data node, mask node      masked array
    t dtype, shape, at          torch tensor
    w at, bytes                 Arrow array, as an Arrow stream
    l nodes | u nodes           list | tuple
    d [[key, node], ...]        dict
    B columns node, other node  Batch: its columns, and its attributes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.columns.convert import as_torch
from tensorrepo.formats.dataset.streaming.batching.batch import Batch
from tensorrepo.formats.dtypes import SMALL_FLOATS, is_small_float
from tensorrepo.formats.tensors import is_torch
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.streaming.batching.batch import Identify

Node = list[Any]
_ALIGNMENT = 64
_PLAIN = (bool, int, float, str, type(None))
_MOST_WHOLE, _LEAST_WHOLE = 1 << 64, -(1 << 63)


class Frame:
    """What `value` consists of, ready to be copied into shared memory.

    `parts` name what a tuple consists of, for errors.

    Raises:
        InvalidInputError: something in it cannot be handed over; says where, and what can.
    """

    def __init__(self, value: Any, parts: Sequence[str] = ()) -> None:
        self._pieces: list[tuple[int, NDArray[np.uint8]]] = []
        self._used = 0
        node = self._parts(value, parts) if parts else self._node(value, "what is handed out")
        self._description = np.frombuffer(msgspec.msgpack.encode(node), np.uint8)
        self.description_at = self._placed(self._description)

    @property
    def description_bytes(self) -> int:
        return len(self._description)

    @property
    def bytes(self) -> int:
        return self._used

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Copy everything into `memory`, which has at least `bytes` bytes."""
        for at, piece in self._pieces:
            memory[at : at + len(piece)] = piece

    def _placed(self, piece: NDArray[np.uint8]) -> int:
        at = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        self._pieces.append((at, piece))
        self._used = at + len(piece)
        return at

    def _parts(self, value: tuple[Any, ...], names: Sequence[str]) -> Node:
        return ["u", [self._node(each, name) for each, name in zip(value, names, strict=True)]]

    def _node(self, value: Any, where: str) -> Node:
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy(value, where)
        if isinstance(value, _PLAIN):
            return self._plain(value, where)
        if isinstance(value, bytes | bytearray | memoryview):
            piece = np.frombuffer(value, np.uint8)
            return ["b", self._placed(piece), len(piece)]
        if is_torch(value):
            return self._torch(value, where)
        if isinstance(value, pa.Array):
            piece = _arrow_stream(value)
            return ["w", self._placed(piece), len(piece)]
        return self._container(value, where)

    def _container(self, value: Any, where: str) -> Node:
        if isinstance(value, Batch):
            other = {name: each for name, each in vars(value).items() if name != "_identify"}
            return ["B", self._dict(value, where), self._dict(other, where)]
        if isinstance(value, dict):
            return self._dict(value, where)
        if type(value) in (list, tuple):
            nodes = [self._node(each, f"{where}[{at}]") for at, each in enumerate(value)]
            return ["l" if isinstance(value, list) else "u", nodes]
        raise _refused(where, _of_type(value))

    def _dict(self, value: dict[Any, Any], where: str) -> Node:
        for key in value:
            if not isinstance(key, _PLAIN):
                raise _refused(where, f"a key that is {_of_type(key)}")
        return ["d", [[key, self._node(each, f"{where}[{key!r}]")] for key, each in value.items()]]

    def _plain(self, value: Any, where: str) -> Node:
        if isinstance(value, int) and not _LEAST_WHOLE <= value < _MOST_WHOLE:
            raise _refused(where, "an integer of more than 64 bits")
        return ["v", value]

    def _numpy(self, value: NDArray[Any] | np.generic, where: str) -> Node:
        if isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            return ["m", self._numpy(np.ma.getdata(value), where), self._numpy(mask, where)]
        array = np.asarray(value)
        if array.dtype.hasobject or (array.dtype.kind == "V" and not is_small_float(array.dtype)):
            raise _refused(where, f"an array of {array.dtype}")
        piece = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        name = array.dtype.name if is_small_float(array.dtype) else array.dtype.str
        tag = "a" if isinstance(value, np.ndarray) else "g"
        return [tag, name, list(array.shape), self._placed(piece)]

    def _torch(self, tensor: Any, where: str) -> Node:
        import torch

        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise _refused(where, f"a {tensor.layout} tensor on {tensor.device}")
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        piece = plain.reshape(-1).view(torch.uint8).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        return ["t", name, list(tensor.shape), self._placed(piece)]


def read_frame(
    memory: NDArray[np.uint8], description_at: int, description_bytes: int, identify: Identify
) -> Any:
    """What `Frame` wrote into `memory`: its arrays and tensors are views of it.

    Args:
        memory: the frame.
        description_at: where its description begins.
        description_bytes: of the description.
        identify: finds the row ids of batches.
    """
    described = memory[description_at : description_at + description_bytes]
    return _Reader(memory, identify).value(msgspec.msgpack.decode(described.data))


class _Reader:
    def __init__(self, memory: NDArray[np.uint8], identify: Identify) -> None:
        self._memory = memory
        self._identify = identify

    def value(self, node: Node) -> Any:
        tag, *rest = node
        return getattr(self, f"_{tag}")(*rest)

    def _v(self, value: Any) -> Any:
        return value

    def _b(self, at: int, size: int) -> bytes:
        return self._memory[at : at + size].tobytes()

    def _a(self, name: str, shape: list[int], at: int) -> NDArray[Any]:
        dtype = SMALL_FLOATS.get(name) or np.dtype(name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._memory[at : at + size].view(dtype).reshape(shape)

    def _g(self, name: str, shape: list[int], at: int) -> Any:
        return self._a(name, shape, at)[()]

    def _m(self, data: Node, mask: Node) -> Any:
        return np.ma.MaskedArray(self.value(data), self.value(mask))

    def _t(self, name: str, shape: list[int], at: int) -> Any:
        import torch

        dtype = getattr(torch, name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return as_torch(self._memory[at : at + size]).view(dtype).reshape(shape)

    def _w(self, at: int, size: int) -> pa.Array:
        with pa.ipc.open_stream(pa.py_buffer(self._memory[at : at + size])) as stream:
            return stream.read_next_batch().column(0)

    def _l(self, nodes: list[Node]) -> list[Any]:
        return [self.value(node) for node in nodes]

    def _u(self, nodes: list[Node]) -> tuple[Any, ...]:
        return tuple(self.value(node) for node in nodes)

    def _d(self, items: list[list[Any]]) -> dict[Any, Any]:
        return {key: self.value(node) for key, node in items}

    def _B(self, columns: Node, other: Node) -> Batch:  # noqa: N802  named by its tag
        known = self.value(other)
        batch = Batch(
            self.value(columns),
            position=known["position"],
            rows=known["rows"],
            identify=self._identify,
        )
        vars(batch).update(known)
        return batch


def _arrow_stream(array: pa.Array) -> NDArray[np.uint8]:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _of_type(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _refused(where: str, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"{where} is {found}, which cannot be handed over from another process: give arrays of "
        "numbers or text, tensors on the CPU, numbers, text, bytes, and dicts, lists and tuples of "
        "those; or use workers='thread'."
    )
