"""What is a model's architecture, as a graph of operations?

A graph is a value: nodes in one canonical order, whatever order they were given in, so that equal
graphs have equal bytes. Where it came from (`source`) tells how far it is to be trusted: a traced
program says what is computed, a graph derived from tensor names only what seems to be there.

Source:
    docs/spec/model-graph.md.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorrepo.formats.jsonvalues import check_json
from tensorrepo.formats.model.manifest import check_tensor_name
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensorrepo.repo.ids import Buffer

VERSION: Final = 1
SOURCES: Final = ("export", "fx", "onnx", "names", "given")
INPUT: Final = "input"  # operation of a node that stands for what the model is given
MAX_NODES: Final = 1 << 20
_ENCODER = msgspec.msgpack.Encoder(order="sorted")
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)


class Input(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What a node takes from another one: its `output`, counted from 0, as its argument `role`."""

    role: str
    node: str
    output: int = 0


class Parameter(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A stored tensor that a node takes as its argument `role`; `type` is an element type."""

    role: str
    tensor: str
    type: str
    shape: tuple[int, ...]


class Node(msgspec.Struct, frozen=True, array_like=True):
    """One operation. Its name is for people and edges alone; `config` is JSON."""

    name: str
    op: str
    config: dict[str, Any] = {}
    inputs: tuple[Input, ...] = ()
    parameters: tuple[Parameter, ...] = ()


class Graph(msgspec.Struct, frozen=True):
    """An architecture. `nodes` are in canonical order; `outputs` are what the model returns.

    `source` is one of `SOURCES`; `config` is what is known of the whole, such as a config file's
    settings.
    """

    source: str
    nodes: tuple[Node, ...] = ()
    outputs: tuple[Input, ...] = ()
    config: dict[str, Any] = {}
    version: int = VERSION

    def node(self, name: str) -> Node:
        """Raises KeyError."""
        found = next((node for node in self.nodes if node.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    def tensors(self) -> dict[str, Parameter]:
        """The tensors that its nodes take, by name."""
        return {one.tensor: one for node in self.nodes for one in node.parameters}


def make_graph(
    source: str,
    nodes: Iterable[Node],
    outputs: Iterable[Input] = (),
    config: Mapping[str, Any] | None = None,
) -> Graph:
    """A graph of these nodes, given in any order.

    Raises:
        InvalidInputError: an edge from nowhere, a circle, or what no graph may hold.
    """
    found: dict[str, Node] = {}
    for node in nodes:
        if node.name in found:
            raise InvalidInputError(f"graph: two nodes are called {node.name!r:.80}")
        found[node.name] = _canonical(node)
    graph = Graph(source, _ordered(found), tuple(outputs), dict(config or {}))
    check_graph(graph)
    return graph


def encode_graph(graph: Graph) -> bytes:
    """The bytes of the blob."""
    check_graph(graph)
    try:
        return _ENCODER.encode(graph)
    except (*_BROKEN, TypeError) as error:
        raise InvalidInputError(f"graph: {error}") from error


def decode_graph(payload: Buffer, where: str) -> Graph:
    """The graph in a blob that messages call `where`.

    Raises:
        CorruptError: not well-formed, or not canonical.
        UnsupportedError: of a newer version.
    """
    try:
        version = msgspec.msgpack.decode(payload, type=_Head).version
        if version != VERSION:
            raise UnsupportedError(
                f"{where}: version {version}, this tensorrepo reads {VERSION}. Update it."
            )
        graph = msgspec.msgpack.decode(payload, type=Graph)
        check_graph(graph)
        same = _ENCODER.encode(graph) == bytes(payload)
    except (*_BROKEN, InvalidInputError) as error:
        raise CorruptError(f"{where}: not well-formed: {error}") from error
    if not same:
        raise CorruptError(f"{where}: its bytes are not the canonical ones for what they say")
    return graph


class _Head(msgspec.Struct):
    version: int


def check_graph(graph: Graph) -> None:
    """Whether its parts fit together, and are in canonical order.

    Raises:
        InvalidInputError: they do not; says which.
    """
    if graph.source not in SOURCES:
        raise InvalidInputError(f"graph: source {graph.source!r:.40}: one of {', '.join(SOURCES)}")
    if len(graph.nodes) > MAX_NODES:
        raise InvalidInputError(f"graph: {len(graph.nodes)} nodes, at most {MAX_NODES}")
    by_name = {node.name: node for node in graph.nodes}
    if len(by_name) != len(graph.nodes):
        raise InvalidInputError("graph: two nodes have one name")
    for node in graph.nodes:
        _check_node(node)
    for one in graph.outputs:
        if one.node not in by_name or one.output < 0:
            raise InvalidInputError(f"graph: no output {one.output} of a node {one.node!r:.80}")
    check_json(graph.config, "graph config")
    if _ordered(by_name) != graph.nodes:
        raise InvalidInputError("graph: its nodes are not in canonical order")


def _check_node(node: Node) -> None:
    where = f"graph node {node.name!r:.80}"
    check_tensor_name(node.name)
    check_tensor_name(node.op)
    check_json(node.config, where)
    roles = [one.role for one in node.inputs], [one.role for one in node.parameters]
    for names in roles:
        if any(before >= after for before, after in pairwise(names)):
            raise InvalidInputError(f"{where}: its arguments are not sorted by role, each once")
    if set(roles[0]) & set(roles[1]):
        raise InvalidInputError(f"{where}: an argument is an input and a parameter, too")
    if any(one.output < 0 for one in node.inputs):
        raise InvalidInputError(f"{where}: outputs are counted from 0")
    for one in node.parameters:
        check_tensor_name(one.tensor)
        if any(dim < 0 for dim in one.shape):
            raise InvalidInputError(f"{where}: shape {one.shape!s:.80}")


def _canonical(node: Node) -> Node:
    return msgspec.structs.replace(
        node, inputs=tuple(sorted(node.inputs)), parameters=tuple(sorted(node.parameters))
    )


def _ordered(nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """Each node behind those that it takes from; of several that could be next, the least name."""
    users: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    for node in nodes.values():
        before = {one.node for one in node.inputs}
        waiting[node.name] = len(before)
        for name in before:
            if name not in nodes:
                raise InvalidInputError(f"graph node {node.name!r:.80}: no node {name!r:.80}")
            users.setdefault(name, []).append(node.name)
    ready = [name for name, count in waiting.items() if not count]
    heapify(ready)
    done: list[Node] = []
    while ready:
        name = heappop(ready)
        done.append(nodes[name])
        for user in users.get(name, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, user)
    if len(done) != len(nodes):
        left = min(name for name, count in waiting.items() if count)
        raise InvalidInputError(f"graph node {left!r:.80} is in a circle, or behind one")
    return tuple(done)
