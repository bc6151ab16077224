"""How much do two architectures have in common?

Each node has a Merkle hash of all that leads to it: operation, configuration, shapes of its
tensors, hashes of its inputs. Equal hashes mean equal prefixes, so the longest common prefix of two
models is a join on hashes. A second hash takes the tensors' content in, too.

Names of nodes and tensors, and element types, are in neither: a renamed model, or one in bfloat16,
has the prefix of the one that it was made from.

Source:
    docs/spec/model-graph.md, section "Hashes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensorrepo.formats.model.graph.graph import Graph, Node, Parameter

_NODE: Final = blake3(derive_key_context="tensorrepo graph node v1")
_WEIGHTS: Final = blake3(derive_key_context="tensorrepo graph node with weights v1")
_GRAPH: Final = blake3(derive_key_context="tensorrepo graph v1")
_ENCODER = msgspec.msgpack.Encoder(order="sorted")


def prefix_hashes(graph: Graph) -> dict[str, bytes]:
    """For each node the hash of the architecture that leads to it, 32 bytes."""
    return _hashes(graph, _NODE, lambda parameter: [parameter.role, parameter.shape])


def weight_hashes(graph: Graph, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same with the content of tensors, and their types.

    Args:
        graph: whose.
        contents: what `Model.content` says of each tensor; one that is missing counts as unknown.
    """
    return _hashes(
        graph,
        _WEIGHTS,
        lambda parameter: [
            parameter.role,
            parameter.type,
            parameter.shape,
            contents.get(parameter.tensor),
        ],
    )


def graph_hash(hashes: Iterable[bytes]) -> str:
    """One hash of a whole graph, of those of all of its nodes: 64 hex digits.

    Of all nodes, not of the last ones: a layer used twice is not two equal layers.
    """
    hasher = _GRAPH.copy()
    for one in sorted(hashes):
        hasher.update(one)
    return hasher.hexdigest()


def _hashes(graph: Graph, context: blake3, told: Callable[[Parameter], object]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for node in graph.nodes:  # each stands behind those that it takes from
        inputs = [[one.role, one.output, found[one.node]] for one in node.inputs]
        parameters = [told(one) for one in node.parameters]
        row = [node.op, node.config, inputs, parameters]
        found[node.name] = context.copy().update(_ENCODER.encode(row)).digest()
    return found


def common_prefix(one: Graph, two: Graph) -> tuple[tuple[Node, Node], ...]:
    """Nodes of the longest common prefix, both sides of each, in the order of `one`.

    Nodes that share a hash (three projections of one input) are paired by name where names are
    equal, the rest in their order.
    """
    theirs: dict[bytes, list[Node]] = {}
    hashes = prefix_hashes(two)
    for node in two.nodes:
        theirs.setdefault(hashes[node.name], []).append(node)
    pairs: dict[str, Node] = {}
    mine = prefix_hashes(one)
    for by_name in (True, False):
        for node in one.nodes:
            left = theirs.get(mine[node.name], [])
            if node.name not in pairs and left:
                at = next((at for at, other in enumerate(left) if other.name == node.name), None)
                if at is not None or not by_name:
                    pairs[node.name] = left.pop(at or 0)
    return tuple((node, pairs[node.name]) for node in one.nodes if node.name in pairs)
