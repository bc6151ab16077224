"""Architecture graph: operations, Merkle hashes of prefixes, and cuts between nodes.

A graph is a value: nodes in one canonical order, whatever order they were given in, so that equal
graphs have equal bytes. Where it came from (`source`) tells how far it is to be trusted: a traced
program says what is computed, a graph derived from tensor names only what seems to be there.

Each node has a Merkle hash of all that leads to it: operation, configuration, shapes of its
tensors, hashes of its inputs. Equal hashes mean equal prefixes, so the longest common prefix of two
models is a join on hashes. A second hash takes the tensors' content in, too.

Names of nodes and tensors, and element types, are in neither: a renamed model, or one in bfloat16,
has the prefix of the one that it was made from.

A node is named by its own name, by the module that owns its tensors, or by a module that several
nodes lie in.

Source:
    docs/spec/model-graph.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final

import msgspec
from blake3 import blake3

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.canonical import decode_canonical, encode_canonical
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import Cell, RecordTable, Shown

VERSION: Final = 1
SOURCES: Final = ("export", "fx", "onnx", "names", "given")
INPUT: Final = "input"  # operation of a node that stands for what the model is given
MAX_NODES: Final = 1 << 20
_ENCODER = msgspec.msgpack.Encoder(order="sorted")


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


class GraphNode(msgspec.Struct, frozen=True, array_like=True):
    """One operation. Its name is for people and edges alone; `config` is JSON."""

    name: str
    op: str
    config: dict[str, Any] = {}
    inputs: tuple[Input, ...] = ()
    parameters: tuple[Parameter, ...] = ()


class Graph(msgspec.Struct, Shown, frozen=True):
    """An architecture. `nodes` are in canonical order; `outputs` are what the model returns.

    `source` is one of `SOURCES`; `config` is what is known of the whole, such as a config file's
    settings.
    """

    source: str
    nodes: tuple[GraphNode, ...] = ()
    outputs: tuple[Input, ...] = ()
    config: dict[str, Any] = {}
    version: int = VERSION

    def to_table(self) -> RecordTable:
        """A row for each node."""
        columns: dict[str, Cell] = {
            "node": "name",
            "operation": "op",
            "takes": lambda node: ", ".join(edge.node for edge in node.inputs),
            "tensors": lambda node: ", ".join(
                f"{one.role}{list(one.shape)}" for one in node.parameters
            ),
        }
        return RecordTable.of(self.nodes, columns, repr(self)[1:-1])

    def __repr__(self) -> str:
        return f"<graph of {counted(len(self.nodes), 'node')} ({self.source})>"

    def node(self, name: str) -> GraphNode:
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
    nodes: Iterable[GraphNode],
    outputs: Iterable[Input] = (),
    config: Mapping[str, Any] | None = None,
) -> Graph:
    """A graph of these nodes, given in any order.

    Raises:
        InvalidInputError: an edge from nowhere, a circle, or what no graph may hold.
    """
    found: dict[str, GraphNode] = {}
    for node in nodes:
        if node.name in found:
            raise InvalidInputError(f"graph: two nodes are called {node.name!r:.80}")
        inputs, parameters = tuple(sorted(node.inputs)), tuple(sorted(node.parameters))
        found[node.name] = msgspec.structs.replace(node, inputs=inputs, parameters=parameters)
    graph = Graph(source, _ordered(found), tuple(outputs), dict(config or {}))
    check_graph(graph)
    return graph


def encode_graph(graph: Graph) -> bytes:
    """The bytes of the blob. Raises InvalidInputError."""
    check_graph(graph)
    return encode_canonical(graph, "graph")


def decode_graph(payload: Buffer, where: str) -> Graph:
    """The graph in a blob that messages call `where`. Errors: `decode_canonical`."""
    return decode_canonical(payload, Graph, where, check_graph, version=VERSION)


def check_graph(graph: Graph) -> None:
    """Whether its parts fit together, and are in canonical order. Raises InvalidInputError."""
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


def _check_node(node: GraphNode) -> None:
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


def _ordered(nodes: Mapping[str, GraphNode]) -> tuple[GraphNode, ...]:
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
    done: list[GraphNode] = []
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


_NODE: Final = blake3(derive_key_context="tensorrepo graph node v1")
_GRAPH: Final = blake3(derive_key_context="tensorrepo graph v1")


def prefix_hashes(graph: Graph) -> dict[str, bytes]:
    """For each node the hash of the architecture that leads to it, 32 bytes."""
    hashes: dict[str, bytes] = {}
    for node in graph.nodes:  # each stands behind those that it takes from
        inputs = [[one.role, one.output, hashes[one.node]] for one in node.inputs]
        parameters = [[one.role, one.shape] for one in node.parameters]
        row = [node.op, node.config, inputs, parameters]
        hashes[node.name] = _NODE.copy().update(_ENCODER.encode(row)).digest()
    return hashes


def graph_hash(hashes: Iterable[bytes]) -> str:
    """One hash of a whole graph, of those of all of its nodes: 64 hex digits.

    Of all nodes, not of the last ones: a layer used twice is not two equal layers.
    """
    hasher = _GRAPH.copy()
    for one in sorted(hashes):
        hasher.update(one)
    return hasher.hexdigest()


def common_prefix(one: Graph, two: Graph) -> tuple[tuple[GraphNode, GraphNode], ...]:
    """Nodes of the longest common prefix, both sides of each, in the order of `one`.

    Nodes that share a hash (three projections of one input) are paired by name where names are
    equal, the rest in their order.
    """
    theirs: dict[bytes, list[GraphNode]] = {}
    hashes = prefix_hashes(two)
    for node in two.nodes:
        theirs.setdefault(hashes[node.name], []).append(node)
    pairs: dict[str, GraphNode] = {}
    mine = prefix_hashes(one)
    for by_name in (True, False):
        for node in one.nodes:
            left = theirs.get(mine[node.name], [])
            if node.name not in pairs and left:
                at = next((at for at, other in enumerate(left) if other.name == node.name), None)
                if at is not None or not by_name:
                    pairs[node.name] = left.pop(at or 0)
    return tuple((node, pairs[node.name]) for node in one.nodes if node.name in pairs)


def module_of(tensor: str) -> str:
    """The module that owns a tensor: its name up to the last dot."""
    return tensor.rpartition(".")[0]


def nodes_named(graph: Graph, name: str) -> tuple[GraphNode, ...]:
    """The nodes that a name means: one, all of a module, or all below it. Raises NotFoundError."""
    exact = tuple(node for node in graph.nodes if node.name == name)
    if exact:
        return exact
    below = f"{name}."
    found = tuple(
        node
        for node in graph.nodes
        if node.name.startswith(below)
        or any(one.tensor.startswith(below) for one in node.parameters)
    )
    if not found:
        known = {node.name for node in graph.nodes}
        known |= {module_of(one) for one in graph.tensors()} - {""}
        raise NotFoundError(
            f"the graph has no node {name!r:.80}.{did_you_mean(name, sorted(known))}"
        )
    return found


def between(graph: Graph, first: str, last: str) -> Graph:
    """The sub-network of everything on a way from one node to another, both included.

    What it takes from outside becomes inputs.

    Raises:
        NotFoundError: no such node.
        InvalidInputError: no way leads from the one to the other.
    """
    starts = {node.name for node in nodes_named(graph, first)}
    ends = {node.name for node in nodes_named(graph, last)}
    after = _after(graph.nodes, starts)
    kept = {name for name in _before(graph.nodes, ends) if name in after}
    if not kept & starts or not kept & ends:
        raise InvalidInputError(f"no way leads from {first!r:.80} to {last!r:.80} in the graph")
    nodes = [node for node in graph.nodes if node.name in kept]
    outside = sorted(
        {(one.node, one.output) for node in nodes for one in node.inputs if one.node not in kept}
    )
    names = _input_names(outside, kept)
    inputs = [
        GraphNode(names[place], INPUT, {"index": index}) for index, place in enumerate(outside)
    ]
    used = {(one.node, one.output) for node in nodes for one in node.inputs}
    outputs = [Input(str(at), name) for at, name in enumerate(sorted(ends & kept))]
    outputs += [
        Input(f"{len(outputs)}.{one.node}.{one.output}", one.node, one.output)
        for one in graph.outputs
        if one.node in kept - ends and (one.node, one.output) not in used
    ]
    return make_graph(
        graph.source, [*inputs, *(_renamed(node, names) for node in nodes)], outputs, graph.config
    )


def _after(nodes: Iterable[GraphNode], starts: set[str]) -> set[str]:
    found = set(starts)
    for node in nodes:
        if any(one.node in found for one in node.inputs):
            found.add(node.name)
    return found


def _before(nodes: tuple[GraphNode, ...], ends: set[str]) -> set[str]:
    found = set(ends)
    for node in reversed(nodes):
        if node.name in found:
            found.update(one.node for one in node.inputs)
    return found


def _input_names(outside: list[tuple[str, int]], taken: set[str]) -> dict[tuple[str, int], str]:
    names: dict[tuple[str, int], str] = {}
    for index, place in enumerate(outside):
        name = f"input.{index}"
        while name in taken:
            name += "_"
        names[place] = name
    return names


def _renamed(node: GraphNode, names: dict[tuple[str, int], str]) -> GraphNode:
    inputs = [
        Input(one.role, names[one.node, one.output]) if (one.node, one.output) in names else one
        for one in node.inputs
    ]
    return msgspec.structs.replace(node, inputs=tuple(inputs))
