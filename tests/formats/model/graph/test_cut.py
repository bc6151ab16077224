from __future__ import annotations

import pytest

from tensorrepo.formats.model.graph.graph import (
    Graph,
    GraphNode,
    Input,
    Parameter,
    between,
    make_graph,
    nodes_named,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError


def node(name: str, *inputs: str, output: int = 0) -> GraphNode:
    weight = Parameter("weight", f"m.{name}.weight", "F32", (2,))
    taken = tuple(Input(str(at), one, output) for at, one in enumerate(inputs))
    return GraphNode(name, "op", {}, taken, (weight,))


def diamond() -> Graph:
    """in -> a -> (b, c) -> d -> e, and side -> d."""
    nodes = [GraphNode("in", "input"), GraphNode("side", "input"), node("a", "in"), node("b", "a"),
             node("c", "a"), node("d", "b", "c", "side"), node("e", "d")]  # fmt: skip
    return make_graph("given", nodes, [Input("0", "e")])


def names(graph: Graph) -> list[str]:
    return [one.name for one in graph.nodes]


def test_everything_on_a_way_between_two_nodes_is_kept() -> None:
    cut = between(diamond(), "a", "d")
    assert sorted(names(cut)) == ["a", "b", "c", "d", "input.0", "input.1"]
    assert [one.node for one in cut.outputs] == ["d"]
    assert {one.node for one in cut.node("d").inputs} == {"b", "c", "input.1"}


def test_one_branch_takes_the_other_one_from_outside() -> None:
    cut = between(diamond(), "b", "d")
    assert sorted(names(cut)) == ["b", "d", "input.0", "input.1", "input.2"]


def test_one_node_is_a_sub_network() -> None:
    cut = between(diamond(), "e", "e")
    assert names(cut) == ["input.0", "e"]
    assert list(cut.tensors()) == ["m.e.weight"]


def test_no_way_is_an_error_and_so_is_no_node() -> None:
    with pytest.raises(InvalidInputError, match="no way leads from 'd' to 'a'"):
        between(diamond(), "d", "a")
    with pytest.raises(NotFoundError, match=r"no node 'm\.x'"):
        between(diamond(), "m.x", "a")


def test_a_module_means_all_that_lies_in_it() -> None:
    assert [one.name for one in nodes_named(diamond(), "m.a")] == ["a"]
    assert len(nodes_named(diamond(), "m")) == 5
    assert [one.name for one in nodes_named(diamond(), "b")] == ["b"]
