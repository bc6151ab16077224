"""Where in an ONNX file do its initialisers and nodes lie?

A file is one protobuf message. Its graph is walked field by field; bytes of tensors stay where they
are. Only the main graph's initialisers are tensors of the model: those of nested graphs, constants
in nodes and everything else belong to the graph.

Source:
    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tensorrepo.formats.exchange.checkpoints.protoranges import Field, ProtoFile, Ranges
from tensorrepo.formats.exchange.shards.protowire import Wire, read_varints, signed
from tensorrepo.formats.tensors import TYPES, TensorType
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
_MODEL_IR_VERSION, _MODEL_PRODUCER, _MODEL_PRODUCER_VERSION, _MODEL_GRAPH, _MODEL_OPSET = (
    1,
    2,
    3,
    7,
    8,
)
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
class External:
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
    external: External | None = None
    varints: tuple[Field, ...] = ()

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
    nodes: list[Field] = field(default_factory=list)
    graph: list[Field] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    left: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class _Left(Exception):
    """An initialiser that is no tensor as we have them."""


def scan_onnx(ranges: Ranges, where: str) -> OnnxFile:
    """Walk a file.

    Raises:
        InvalidInputError: no ONNX model, cut short, or one that lies.
    """
    found = OnnxFile(ProtoFile(ranges, where))
    graphs: list[Field] = []
    for each in found.file.whole():
        if each.number == _MODEL_GRAPH:
            graphs.append(each)
        else:
            _note(found, each)
    if len(graphs) != 1 or graphs[0].wire is not Wire.BYTES or "ir_version" not in found.metadata:
        raise InvalidInputError(f"{where}: no ONNX model: expected a version and one graph")
    for each in found.file.fields(graphs[0].start, graphs[0].stop):
        _graph_field(found, each)
    return found


def _note(found: OnnxFile, each: Field) -> None:
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


def _graph_field(found: OnnxFile, each: Field) -> None:
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


def _add_initializer(found: OnnxFile, each: Field) -> None:
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

    def __init__(self, file: ProtoFile, message: Field) -> None:
        self.file = file
        self.fields: dict[int, list[Field]] = {}
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

    def _external(self, size: int) -> External:
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
        return External(facts["location"], offset, offset + length)

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
        self, element: TensorType, shape: tuple[int, ...], each: Field, size: int
    ) -> Initializer:
        if each.wire is not Wire.BYTES or each.stop - each.start != size:
            raise InvalidInputError(
                f"{self.file.where}: initialiser {self.name!r:.80}: {element.name} of shape "
                f"{list(shape)!s:.80} has {size} bytes, {each.stop - each.start} are there"
            )
        return Initializer(self.name, element, shape, each.start, each.stop)
