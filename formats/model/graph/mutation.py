"""Graph mutation: nodes inserted, replaced and deleted, as a new graph.

One output flows: a node put behind another one takes that one's first output, and whoever took
that takes the new node's. What would be left without a source, or with two, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from tensorrepo.formats.model.graph.graph import INPUT, Graph, GraphNode, Input, make_graph
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError

ROLE: Final = "input"  # of what an inserted node takes
Verb = Literal["insert", "replace", "delete"]


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One change.

    Attributes:
        verb: "insert" puts `made` behind a node, "replace" in its place, "delete" takes it out.
        node: name of the node.
        made: the new node without inputs; None to delete.
    """

    verb: Verb
    node: str
    made: GraphNode | None = None


def mutated(graph: Graph, changes: Iterable[GraphChange]) -> Graph:
    """A graph after changes, made one after the other.

    Raises:
        InvalidInputError: a node that cannot be taken out, or has been; names it.
        ConflictError: a new node whose name is taken.
    """
    nodes = {node.name: node for node in graph.nodes}
    outputs = graph.outputs
    for change in changes:
        old = nodes.get(change.node)
        if old is None:
            raise InvalidInputError(f"node {change.node!r:.80} was changed twice: it is gone")
        made = change.made
        if made is not None and made.name in nodes and made.name != change.node:
            raise ConflictError(f"there is a node {made.name!r:.80} already: name the new one else")
        if change.verb == "insert" and made is not None:
            if made.name == change.node:
                raise ConflictError(f"there is a node {made.name!r:.80} already")
            nodes, outputs = _repointed(nodes, outputs, old.name, Input("", made.name))
            inputs = (Input(ROLE, old.name),)
            nodes[made.name] = msgspec.structs.replace(made, inputs=inputs)
            continue
        if made is None:
            source = _only_input(old, nodes, outputs)
            nodes, outputs = _repointed(nodes, outputs, old.name, source)
            del nodes[old.name]
            continue
        if old.op == INPUT:
            raise InvalidInputError(f"node {old.name!r:.80} is an input of the model: it stays")
        nodes, outputs = _repointed(nodes, outputs, old.name, Input("", made.name))
        del nodes[old.name]
        nodes[made.name] = msgspec.structs.replace(made, inputs=old.inputs)
    # Whatever it was traced from, or guessed: nobody has traced this one.
    return make_graph("given", nodes.values(), outputs, graph.config)


def _only_input(node: GraphNode, nodes: dict[str, GraphNode], outputs: tuple[Input, ...]) -> Input:
    """What users of a node are to take when it is gone."""
    where = f"node {node.name!r:.80} cannot be deleted"
    if node.op == INPUT:
        raise InvalidInputError(f"{where}: it is an input of the model")
    if len(node.inputs) != 1:
        raise InvalidInputError(f"{where}: it joins {len(node.inputs)} inputs, replace it")
    taken = [one for other in nodes.values() for one in other.inputs] + [*outputs]
    if any(one.node == node.name and one.output for one in taken):
        raise InvalidInputError(f"{where}: its other outputs are used")
    return node.inputs[0]


def _repointed(
    nodes: dict[str, GraphNode], outputs: tuple[Input, ...], old: str, new: Input
) -> tuple[dict[str, GraphNode], tuple[Input, ...]]:
    """All that took the first output of `old`, taking `new` in its place."""

    def moved(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
        return tuple(
            Input(one.role, new.node, new.output) if (one.node, one.output) == (old, 0) else one
            for one in inputs
        )

    return (
        {
            name: msgspec.structs.replace(node, inputs=moved(node.inputs))
            for name, node in nodes.items()
        },
        moved(outputs),
    )
