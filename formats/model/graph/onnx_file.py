"""ONNX files and their graphs, parsed by ranges: nodes, initializers, values.

A file is one protobuf message. Its graph is walked field by field; bytes of tensors stay where they
are. Only the main graph's initialisers are tensors of the model: those of nested graphs, constants
in nodes and everything else belong to the graph.

A graph is read from a file, or from a stored model that came from one: of that, only what is no
tensor is fetched.

Source:
    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from hashlib import sha256
from struct import Struct
from typing import Any, Final

import numpy as np

from tensorrepo.formats.common.protobuf import (
    ProtoField,
    ProtoFile,
    Ranges,
    Wire,
    read_fields,
    read_varints,
    signed,
)
from tensorrepo.formats.common.tensors import TYPES, TensorType
from tensorrepo.formats.model.layout.manifest import Original
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.byte_exact import whole_original
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MAX_ITEMS: Final = 1 << 20  # nodes, and initialisers
MAX_DIMS: Final = 64
MAX_NODE_BYTES: Final = 64 << 20

# Number in the file: name of the type.
ONNX_TYPES: Final = {
    1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16",
    11: "F64", 12: "U32", 13: "U64", 14: "C64", 15: "C128", 16: "BF16", 17: "F8_E4M3",
    18: "F8_E4M3FNUZ", 19: "F8_E5M2", 20: "F8_E5M2FNUZ", 21: "U4", 22: "I4", 23: "F4",
    24: "F8_E8M0", 25: "U2", 26: "I2",
}  # fmt: skip

# Fields of the messages, by the names that the specification has.
_MODEL_IR_VERSION, _MODEL_PRODUCER, _MODEL_PRODUCER_VERSION = 1, 2, 3
_MODEL_GRAPH, _MODEL_OPSET = 7, 8
_GRAPH_NODE, _GRAPH_NAME, _GRAPH_INITIALIZER = 1, 2, 5
_DIMS, _DATA_TYPE, _SEGMENT, _FLOATS, _INT32S, _STRINGS, _INT64S, _NAME = 1, 2, 3, 4, 5, 6, 7, 8
_RAW, _DOUBLES, _UINT64S, _EXTERNAL, _LOCATION = 9, 10, 11, 13, 14
_ONCE: Final = {_DATA_TYPE, _SEGMENT, _NAME, _RAW, _LOCATION}
# Typed fields: those whose bytes are the tensor's, and those of numbers of varying length.
_PLAIN: Final = {_FLOATS: ("F32", "C64"), _DOUBLES: ("F64", "C128")}
_VARINTS: Final = {
    _INT32S: (
        "I32", "I16", "I8", "U16", "U8", "BOOL", "F16", "BF16", "F8_E4M3", "F8_E4M3FNUZ",
        "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0", "U4", "I4", "F4", "U2", "I2",
    ),
    _INT64S: ("I64",),
    _UINT64S: ("U32", "U64"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where the bytes of an initialiser lie in another file: ``[start, stop)`` of it."""

    location: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Initializer:
    """A tensor of the graph.

    Its bytes are ``[start, stop)`` of the file, or lie elsewhere (`external`), or are numbers of
    varying length in `varints`, ranges of the file.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0
    external: ExternalData | None = None
    varints: tuple[ProtoField, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.type.bytes_of(self.shape)


@dataclass(slots=True)
class OnnxFile:
    """What a file holds. `left` names initialisers that stay in the graph alone, and why.

    `graph` are the fields of the graph that are neither.
    """

    file: ProtoFile
    initializers: list[Initializer] = field(default_factory=list)
    nodes: list[ProtoField] = field(default_factory=list)
    graph: list[ProtoField] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    left: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class _Left(Exception):
    """An initialiser that is no tensor as we have them."""


def scan_onnx(ranges: Ranges, where: str) -> OnnxFile:
    """Walk a file. Raises InvalidInputError: no ONNX model, cut short, or one that lies."""
    scanned = OnnxFile(ProtoFile(ranges, where))
    graphs: list[ProtoField] = []
    for each in scanned.file.whole():
        if each.number == _MODEL_GRAPH:
            graphs.append(each)
        else:
            _note(scanned, each)
    if len(graphs) != 1 or graphs[0].wire is not Wire.BYTES or "ir_version" not in scanned.metadata:
        raise InvalidInputError(f"{where}: no ONNX model: expected a version and one graph")
    for each in scanned.file.fields(graphs[0].start, graphs[0].stop):
        _graph_field(scanned, each)
    return scanned


def _note(found: OnnxFile, each: ProtoField) -> None:
    """Keep what a person asks of a model first."""
    if each.number == _MODEL_IR_VERSION and each.wire is Wire.VARINT:
        found.metadata["ir_version"] = signed(each.value)
    elif each.number == _MODEL_PRODUCER:
        found.metadata["producer"] = found.file.text(each)
    elif each.number == _MODEL_PRODUCER_VERSION:
        found.metadata["producer_version"] = found.file.text(each)
    elif each.number == _MODEL_OPSET and each.wire is Wire.BYTES:
        parts = list(found.file.fields(each.start, each.stop))
        domain = next((found.file.text(part) for part in parts if part.number == 1), "")
        version = next((signed(part.value) for part in parts if part.number == 2), 0)
        found.metadata.setdefault("opset", {})[domain or "ai.onnx"] = version


def _graph_field(found: OnnxFile, each: ProtoField) -> None:
    if each.number == _GRAPH_INITIALIZER:
        _add_initializer(found, each)
    elif each.number == _GRAPH_NODE:
        found.nodes.append(each)
    else:
        found.graph.append(each)
    if each.number == _GRAPH_NAME:
        found.metadata["graph"] = found.file.text(each)
    if max(len(found.nodes), len(found.initializers), len(found.graph)) > MAX_ITEMS:
        raise InvalidInputError(f"{found.file.where}: more than {MAX_ITEMS} nodes or initialisers")


def _add_initializer(found: OnnxFile, each: ProtoField) -> None:
    proto = _Proto(found.file, each)
    if not proto.name or proto.name in found.names:
        raise InvalidInputError(
            f"{found.file.where}: initialiser {proto.name!r:.80} has no name of its own"
        )
    found.names.add(proto.name)
    try:
        found.initializers.append(proto.initializer())
    except _Left as reason:
        found.left[proto.name] = str(reason)


class _Proto:
    """A TensorProto: its small fields read, its large ones found."""

    def __init__(self, file: ProtoFile, message: ProtoField) -> None:
        self.file = file
        self.fields: dict[int, list[ProtoField]] = {}
        for each in file.fields(message.start, message.stop):
            known = self.fields.setdefault(each.number, [])
            if known and each.number in _ONCE:
                raise InvalidInputError(
                    f"{file.where}: field {each.number} of a tensor is there twice"
                )
            if len(known) >= MAX_ITEMS:
                raise InvalidInputError(f"{file.where}: a tensor of more than {MAX_ITEMS} fields")
            known.append(each)
        self.name = file.text(self.fields[_NAME][0]) if _NAME in self.fields else ""

    def initializer(self) -> Initializer:
        element, shape = self._type(), self._shape()
        try:
            size = element.bytes_of(shape)
        except InvalidInputError as error:
            raise _Left(str(error)) from error
        if self._number(_LOCATION):
            return Initializer(self.name, element, shape, external=self._external(size))
        if _RAW in self.fields:
            return self._at(element, shape, self.fields[_RAW][0], size)
        return self._typed(element, shape, size)

    def _number(self, number: int) -> int:
        return signed(self.fields[number][0].value) if number in self.fields else 0

    def _type(self) -> TensorType:
        kind = self._number(_DATA_TYPE)
        if kind not in ONNX_TYPES:
            raise _Left(f"type {kind} is no type of tensors here")
        if _SEGMENT in self.fields:
            raise _Left("it is a segment of a tensor")
        return TYPES[ONNX_TYPES[kind]]

    def _shape(self) -> tuple[int, ...]:
        dims: list[int] = []
        for each in self.fields.get(_DIMS, []):
            if each.wire is Wire.BYTES:
                packed = self.file.content(each, 10 * MAX_DIMS)
                dims += read_varints(memoryview(packed), self.file.where).tolist() if packed else []
            else:
                dims.append(signed(each.value))
        if len(dims) > MAX_DIMS or any(dim < 0 for dim in dims):
            raise InvalidInputError(f"{self.file.where}: initialiser {self.name!r:.80}: no shape")
        return tuple(dims)

    def _external(self, size: int) -> ExternalData:
        facts = {}
        for each in self.fields.get(_EXTERNAL, []):
            pair = {
                part.number: self.file.text(part)
                for part in self.file.fields(each.start, each.stop)
            }
            facts[pair.get(1, "")] = pair.get(2, "")
        try:
            offset, length = int(facts.get("offset", "0")), int(facts.get("length", size))
        except ValueError as error:
            raise InvalidInputError(
                f"{self.file.where}: initialiser {self.name!r:.80}: its place is no number"
            ) from error
        if offset < 0 or length != size or not facts.get("location"):
            raise InvalidInputError(
                f"{self.file.where}: initialiser {self.name!r:.80} has {size} bytes, its place "
                f"elsewhere is {facts!s:.200}"
            )
        return ExternalData(facts["location"], offset, offset + length)

    def _typed(self, element: TensorType, shape: tuple[int, ...], size: int) -> Initializer:
        for number, names in _PLAIN.items():
            chunks = self.fields.get(number, [])
            if element.name in names and len(chunks) == 1 and chunks[0].wire is Wire.BYTES:
                return self._at(element, shape, chunks[0], size)
        for number, kinds in _VARINTS.items():
            if element.name in kinds and number in self.fields:
                return Initializer(self.name, element, shape, varints=tuple(self.fields[number]))
        if not size:
            return Initializer(self.name, element, shape)
        raise _Left("its values are not stored as its type has them")

    def _at(
        self, element: TensorType, shape: tuple[int, ...], each: ProtoField, size: int
    ) -> Initializer:
        if each.wire is not Wire.BYTES or each.stop - each.start != size:
            raise InvalidInputError(
                f"{self.file.where}: initialiser {self.name!r:.80}: {element.name} of shape "
                f"{list(shape)!s:.80} has {size} bytes, {each.stop - each.start} are there"
            )
        return Initializer(self.name, element, shape, each.start, each.stop)


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
class OnnxConstant:
    """A constant inside a node: its content stands here as a SHA-256 of its message alone."""

    type: str | None
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation.

    Attributes are numbers, texts (bytes where they are no UTF-8), tuples of these, `OnnxConstant`,
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


def graph_of(model: StoredModel) -> OnnxGraph | None:
    """The graph of a stored model, None when it did not come from an ONNX file."""
    name = whole_original(model, "onnx", beside="onnx data")
    if name is None:
        return None
    return parse_graph(_Stored(model, model.originals[name]), name)


class _Stored:
    """A stored file of which tensors are left out: they read as zeros, and nobody asks for them."""

    def __init__(self, model: StoredModel, original: Original) -> None:
        self.size = original.size_bytes
        self._runs: list[tuple[int, memoryview]] = []
        at = 0
        for part in model.parts_of(original):
            if isinstance(part, str):
                at += model.spec(part).size_bytes
            else:
                self._runs.append((at, memoryview(part)))
                at += len(part)
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
    """The graph of an ONNX file. Raises InvalidInputError."""
    scanned = scan_onnx(ranges, where)
    parser = _Parser(where)
    nodes = (scanned.file.content(node, MAX_NODE_BYTES) for node in scanned.nodes)
    parsed = tuple(parser.node(memoryview(node), 0) for node in nodes)
    values = {
        number: tuple(
            parser.value(memoryview(scanned.file.content(each, MAX_NODE_BYTES)))
            for each in scanned.graph
            if each.number == number
        )
        for number in (_GRAPH_INPUT, _GRAPH_OUTPUT)
    }
    return OnnxGraph(
        str(scanned.metadata.get("graph", "")),
        values[_GRAPH_INPUT],
        values[_GRAPH_OUTPUT],
        tuple(sorted({*scanned.names, *_sparse_names(scanned)})),
        parsed,
        scanned.metadata.get("opset", {}),
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
        self._count = 0

    def value(self, message: memoryview) -> OnnxValue:
        """A ValueInfoProto."""
        name, kind = "", None
        shape: tuple[int | str | None, ...] | None = None
        for tag, _, _, content in read_fields(message, self.where):
            if tag == 1:
                name = self._text(content)
            elif tag == 2:
                kind, shape = self._tensor_type(content)
        return OnnxValue(name, kind, shape)

    def _tensor_type(
        self, message: memoryview
    ) -> tuple[str | None, tuple[int | str | None, ...] | None]:
        kind: str | None = None
        shape: tuple[int | str | None, ...] | None = None
        for tag, _, _, content in read_fields(message, self.where):
            if tag != 1:  # a sequence, a map, a sparse tensor
                continue
            for inner, _, number, part in read_fields(content, self.where):
                if inner == 1:
                    kind = ONNX_TYPES.get(number)
                elif inner == 2:
                    dims = read_fields(part, self.where)
                    shape = tuple(self._dim(dim) for each, _, _, dim in dims if each == 1)
        return kind, shape

    def _dim(self, message: memoryview) -> int | str | None:
        for tag, _, number, content in read_fields(message, self.where):
            if tag == 1:
                return signed(number)
            if tag == 2:
                return self._text(content)
        return None

    def node(self, message: memoryview, depth: int) -> OnnxNode:
        self._count += 1
        if self._count > _MAX_NODES or depth > _MAX_NESTING:
            raise InvalidInputError(f"{self.where}: more nodes, or nested deeper, than are read")
        inputs, outputs = [], []
        texts = {3: "", 4: "", 7: ""}
        attributes = {}
        for tag, _, _, content in read_fields(message, self.where):
            if tag == 1:
                inputs.append(self._text(content))
            elif tag == 2:
                outputs.append(self._text(content))
            elif tag in texts:
                texts[tag] = self._text(content)
            elif tag == 5:
                name, value = self._attribute(content, depth)
                attributes[name] = value
        return OnnxNode(texts[4], texts[7], texts[3], tuple(inputs), tuple(outputs), attributes)

    def _attribute(self, message: memoryview, depth: int) -> tuple[str, Any]:
        """An attribute's name and value: of the fields that hold one, the one that is there."""
        name, value = "", None
        lists: dict[int, list[Any]] = {}
        for tag, wire, number, content in read_fields(message, self.where):
            if tag == 1:
                name = self._text(content)
            elif tag == 2 and len(content) == 4:
                value = _F4.unpack(content)[0]
            elif tag == 3:
                value = signed(number)
            elif tag in (4, 5, 6):
                value = self._content(tag, content, depth)
            elif tag in (7, 8):
                lists.setdefault(tag, []).extend(self._list(tag, wire, number, content))
            elif tag in (9, 10, 11):
                lists.setdefault(tag, []).append(self._content(tag - 5, content, depth))
            elif tag == 21:
                value = f"@{self._text(content)}"
        return name, tuple(next(iter(lists.values()))) if lists else value

    def _content(self, tag: int, content: memoryview, depth: int) -> Any:
        if tag == 4:
            raw = bytes(content)
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw
        return self._constant(content) if tag == 5 else self._nested(content, depth + 1)

    def _list(self, tag: int, wire: Wire, number: int, content: memoryview) -> list[Any]:
        if tag == 7:
            floats: list[Any] = np.frombuffer(content[: len(content) // 4 * 4], "<f4").tolist()
            return floats
        if wire is Wire.VARINT:
            return [signed(number)]
        return list(read_varints(content, self.where).tolist()) if content else []

    def _constant(self, message: memoryview) -> OnnxConstant:
        dims: list[int] = []
        kind: str | None = None
        for tag, wire, number, content in read_fields(message, self.where):
            if tag == 1:
                dims += self._list(8, wire, number, content)
            elif tag == 2:
                kind = ONNX_TYPES.get(number)
        return OnnxConstant(kind, tuple(dims), sha256(message).hexdigest())

    def _nested(self, message: memoryview, depth: int) -> OnnxGraph:
        nodes: list[OnnxNode] = []
        values: dict[int, list[OnnxValue]] = {_GRAPH_INPUT: [], _GRAPH_OUTPUT: []}
        names: list[str] = []
        name = ""
        for tag, _, _, content in read_fields(message, self.where):
            if tag == 1:
                nodes.append(self.node(content, depth))
            elif tag == 2:
                name = self._text(content)
            elif tag == 5:
                names += self._names(content)
            elif tag == _GRAPH_SPARSE:
                names += self.sparse_names(content)
            elif tag in values:
                values[tag].append(self.value(content))
        inputs, outputs = tuple(values[_GRAPH_INPUT]), tuple(values[_GRAPH_OUTPUT])
        return OnnxGraph(name, inputs, outputs, tuple(sorted(names)), tuple(nodes), {})

    def sparse_names(self, message: memoryview) -> Iterator[str]:
        """The name of a SparseTensorProto: that of its values."""
        for tag, _, _, content in read_fields(message, self.where):
            if tag == 1:
                yield from self._names(content)

    def _names(self, message: memoryview) -> Iterator[str]:
        fields = read_fields(message, self.where)
        return (self._text(content) for tag, _, _, content in fields if tag == 8)

    def _text(self, content: memoryview) -> str:
        return bytes(content).decode("utf-8", "replace")
