"""Which operations does an ONNX model consist of?

A graph is read from a file, or from a stored model that came from one: of that, only what is no
tensor is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.exchange.checkpoints.onnxfile import (
    MAX_NODE_BYTES,
    ONNX_TYPES,
    scan_onnx,
)
from tensorrepo.formats.exchange.shards.protowire import Wire, read_fields, read_varints, signed
from tensorrepo.formats.model.originals import whole_original
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorrepo.formats.exchange.checkpoints.onnxfile import OnnxFile
    from tensorrepo.formats.exchange.checkpoints.protoranges import Ranges
    from tensorrepo.formats.model.manifest import Original
    from tensorrepo.formats.model.read import Model

_MAX_NESTING: Final = 16
_MAX_NODES: Final = 1 << 20  # those of nested graphs with them
_F4: Final = Struct("<f")
_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 11, 12, 15


@dataclass(frozen=True, slots=True)
class OnnxValue:
    """An input or output of a graph. `type` is ours, None for what is no tensor.

    `shape` has a text for a dimension that is named, None for one that is open; None as a whole
    says nothing at all.
    """

    name: str
    type: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """A constant inside a node: its content stands here as a SHA-256 of its message alone."""

    type: str | None
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation.

    Attributes are numbers, texts (bytes where they are no UTF-8), tuples of these, `OnnxTensor`,
    or `OnnxGraph`. Optional inputs and outputs that are left out are "".
    """

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph: `nodes` in the order of the file, which is one in which they can run."""

    name: str
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    initializers: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    opset: Mapping[str, int]


def graph_of(model: Model) -> OnnxGraph | None:
    """The graph of a stored model, None when it did not come from an ONNX file."""
    name = whole_original(model, "onnx", beside="onnx data")
    if name is None:
        return None
    return parse_graph(_Stored(model, model.originals[name]), name)


class _Stored:
    """A stored file of which tensors are left out: they read as zeros, and nobody asks for them."""

    def __init__(self, model: Model, original: Original) -> None:
        self.size = original.size_bytes
        literals = memoryview(model.literals(original))
        at = taken = 0
        self._runs: list[tuple[int, memoryview]] = []
        for part in original.parts:
            if isinstance(part, int):
                self._runs.append((at, literals[taken : taken + part]))
                taken += part
                at += part
            else:
                at += model.spec(part).size_bytes
        self._starts = np.array([start for start, _ in self._runs], np.int64)

    def read(self, start: int, size: int) -> bytes:
        out = bytearray(size)
        first = max(int(np.searchsorted(self._starts, start, "right")) - 1, 0)
        for begins, run in self._runs[first:]:
            if begins >= start + size:
                break
            low, high = max(begins, start), min(begins + len(run), start + size)
            if low < high:
                out[low - start : high - start] = run[low - begins : high - begins]
        return bytes(out)


def parse_graph(ranges: Ranges, where: str) -> OnnxGraph:
    """The graph of an ONNX file.

    Raises:
        InvalidInputError: no ONNX model, or damaged.
    """
    found = scan_onnx(ranges, where)
    parser = _Parser(where)
    for node in found.nodes:
        parser.add(found.file.content(node, MAX_NODE_BYTES))
    values = {
        number: tuple(
            parser.value(memoryview(found.file.content(each, MAX_NODE_BYTES)))
            for each in found.graph
            if each.number == number
        )
        for number in (_GRAPH_INPUT, _GRAPH_OUTPUT)
    }
    return OnnxGraph(
        str(found.metadata.get("graph", "")),
        values[_GRAPH_INPUT],
        values[_GRAPH_OUTPUT],
        tuple(sorted({*found.names, *_sparse_names(found)})),
        tuple(parser.nodes),
        found.metadata.get("opset", {}),
    )


def _sparse_names(found: OnnxFile) -> Iterator[str]:
    """What sparse initialisers are called, which stay in the file: as the values of each are."""
    for each in found.graph:
        if each.number == _GRAPH_SPARSE and each.wire is Wire.BYTES:
            for values in found.file.fields(each.start, each.stop):
                if values.number == 1 and values.wire is Wire.BYTES:
                    inside = found.file.fields(values.start, values.stop)
                    yield from (found.file.text(one) for one in inside if one.number == 8)


class _Parser:
    """Parses nodes; counts them, those of nested graphs too."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.nodes: list[OnnxNode] = []
        self._count = 0

    def add(self, message: bytes) -> None:
        self.nodes.append(self._node(memoryview(message), 0))

    def value(self, message: memoryview) -> OnnxValue:
        """A ValueInfoProto."""
        name, kind = "", None
        shape: tuple[int | str | None, ...] | None = None
        for field, _, _, content in read_fields(message, self.where):
            if field == 1:
                name = self._text(content)
            elif field == 2:
                kind, shape = self._tensor_type(content)
        return OnnxValue(name, kind, shape)

    def _tensor_type(
        self, message: memoryview
    ) -> tuple[str | None, tuple[int | str | None, ...] | None]:
        kind: str | None = None
        shape: tuple[int | str | None, ...] | None = None
        for field, _, _, content in read_fields(message, self.where):
            if field != 1:  # a sequence, a map, a sparse tensor
                continue
            for inner, _, number, part in read_fields(content, self.where):
                if inner == 1:
                    kind = ONNX_TYPES.get(number)
                elif inner == 2:
                    dims = read_fields(part, self.where)
                    shape = tuple(self._dim(dim) for each, _, _, dim in dims if each == 1)
        return kind, shape

    def _dim(self, message: memoryview) -> int | str | None:
        for field, _, number, content in read_fields(message, self.where):
            if field == 1:
                return signed(number)
            if field == 2:
                return self._text(content)
        return None

    def _node(self, message: memoryview, depth: int) -> OnnxNode:
        self._count += 1
        if self._count > _MAX_NODES or depth > _MAX_NESTING:
            raise InvalidInputError(f"{self.where}: more nodes, or nested deeper, than are read")
        inputs, outputs = [], []
        texts = {3: "", 4: "", 7: ""}
        attributes = {}
        for field, _, _, content in read_fields(message, self.where):
            if field == 1:
                inputs.append(self._text(content))
            elif field == 2:
                outputs.append(self._text(content))
            elif field in texts:
                texts[field] = self._text(content)
            elif field == 5:
                name, value = self._attribute(content, depth)
                attributes[name] = value
        return OnnxNode(texts[4], texts[7], texts[3], tuple(inputs), tuple(outputs), attributes)

    def _attribute(self, message: memoryview, depth: int) -> tuple[str, Any]:
        """An attribute's name and value: of the fields that hold one, the one that is there."""
        name, value = "", None
        lists: dict[int, list[Any]] = {}
        for field, wire, number, content in read_fields(message, self.where):
            if field == 1:
                name = self._text(content)
            elif field == 2 and len(content) == 4:
                value = _F4.unpack(content)[0]
            elif field == 3:
                value = signed(number)
            elif field in (4, 5, 6):
                value = self._content(field, content, depth)
            elif field in (7, 8):
                lists.setdefault(field, []).extend(self._list(field, wire, number, content))
            elif field in (9, 10, 11):
                lists.setdefault(field, []).append(self._content(field - 5, content, depth))
            elif field == 21:
                value = f"@{self._text(content)}"
        return name, tuple(next(iter(lists.values()))) if lists else value

    def _content(self, field: int, content: memoryview, depth: int) -> Any:
        if field == 4:
            raw = bytes(content)
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw
        return self._constant(content) if field == 5 else self._nested(content, depth + 1)

    def _list(self, field: int, wire: Wire, number: int, content: memoryview) -> list[Any]:
        if field == 7:
            floats: list[Any] = np.frombuffer(content[: len(content) // 4 * 4], "<f4").tolist()
            return floats
        if wire is Wire.VARINT:
            return [signed(number)]
        return list(read_varints(content, self.where).tolist()) if content else []

    def _constant(self, message: memoryview) -> OnnxTensor:
        dims: list[int] = []
        kind: str | None = None
        for field, wire, number, content in read_fields(message, self.where):
            if field == 1:
                dims += self._list(8, wire, number, content)
            elif field == 2:
                kind = ONNX_TYPES.get(number)
        return OnnxTensor(kind, tuple(dims), sha256(message).hexdigest())

    def _nested(self, message: memoryview, depth: int) -> OnnxGraph:
        nodes: list[OnnxNode] = []
        values: dict[int, list[OnnxValue]] = {_GRAPH_INPUT: [], _GRAPH_OUTPUT: []}
        names: list[str] = []
        name = ""
        for field, _, _, content in read_fields(message, self.where):
            if field == 1:
                nodes.append(self._node(content, depth))
            elif field == 2:
                name = self._text(content)
            elif field == 5:
                names += self._names(content)
            elif field == _GRAPH_SPARSE:
                names += self.sparse_names(content)
            elif field in values:
                values[field].append(self.value(content))
        inputs, outputs = tuple(values[_GRAPH_INPUT]), tuple(values[_GRAPH_OUTPUT])
        return OnnxGraph(name, inputs, outputs, tuple(sorted(names)), tuple(nodes), {})

    def sparse_names(self, message: memoryview) -> Iterator[str]:
        """The name of a SparseTensorProto: that of its values."""
        for field, _, _, content in read_fields(message, self.where):
            if field == 1:
                yield from self._names(content)

    def _names(self, message: memoryview) -> Iterator[str]:
        fields = read_fields(message, self.where)
        return (self._text(content) for field, _, _, content in fields if field == 8)

    def _text(self, content: memoryview) -> str:
        return bytes(content).decode("utf-8", "replace")
