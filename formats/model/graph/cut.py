"""Which part of a graph lies between two of its nodes?

A node is named by its own name, by the module that owns its tensors, or by a module that several
nodes lie in.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import msgspec

from tensorrepo.formats.model.graph.graph import INPUT, Graph, Input, Node, make_graph
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable


def module_of(tensor: str) -> str:
    """The module that owns a tensor: its name up to the last dot."""
    return tensor.rpartition(".")[0]


def nodes_named(graph: Graph, name: str) -> tuple[Node, ...]:
    """The nodes that a name means: one of that name, else all of a module, else all below it.

    Raises:
        NotFoundError: none; near names are suggested.
    """
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
        near = get_close_matches(name, sorted(known), 3)
        told = f" Did you mean {' or '.join(near)}?" if near else ""
        raise NotFoundError(f"the graph has no node {name!r:.80}.{told}")
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
    inputs = [Node(names[place], INPUT, {"index": index}) for index, place in enumerate(outside)]
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


def _after(nodes: Iterable[Node], starts: set[str]) -> set[str]:
    found = set(starts)
    for node in nodes:
        if any(one.node in found for one in node.inputs):
            found.add(node.name)
    return found


def _before(nodes: tuple[Node, ...], ends: set[str]) -> set[str]:
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


def _renamed(node: Node, names: dict[tuple[str, int], str]) -> Node:
    inputs = [
        Input(one.role, names[one.node, one.output]) if (one.node, one.output) in names else one
        for one in node.inputs
    ]
    return msgspec.structs.replace(node, inputs=tuple(inputs))
