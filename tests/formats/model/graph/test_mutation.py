"""Graphs whose nodes are inserted, replaced and deleted."""

from __future__ import annotations

import pytest

from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Input, Parameter, make_graph
from tensorrepo.formats.model.graph.mutation import GraphChange, mutated
from tensorrepo.repo.errors import ConflictError, InvalidInputError

WEIGHT = Parameter("weight", "conv.weight", "F32", (4, 3, 3, 3))


def diamond() -> Graph:
    """in -> conv -> (a, b) -> add, which is what it returns; a takes the second output of split."""
    nodes = [
        GraphNode("in", "input", {"index": 0}),
        GraphNode("conv", "conv2d", {"stride": 2}, (Input("x", "in"),), (WEIGHT,)),
        GraphNode("a", "relu", {}, (Input("x", "conv"),)),
        GraphNode("b", "tanh", {}, (Input("x", "conv"),)),
        GraphNode("add", "add", {}, (Input("l", "a"), Input("r", "b"))),
        GraphNode("split", "split", {}, (Input("x", "add"),)),
        GraphNode("end", "sum", {}, (Input("x", "split", 1),)),
    ]
    return make_graph("fx", nodes, [Input("0", "add"), Input("1", "end")], {"k": 1})


def inputs(graph: Graph, name: str) -> list[tuple[str, int]]:
    return [(one.node, one.output) for one in graph.node(name).inputs]


def test_an_inserted_node_stands_between_a_node_and_all_its_users() -> None:
    made = mutated(diamond(), [GraphChange("insert", "conv", GraphNode("new", "gelu", {"k": 2}))])
    assert inputs(made, "new") == [("conv", 0)]
    assert inputs(made, "a") == inputs(made, "b") == [("new", 0)]
    assert made.node("new").config == {"k": 2}
    assert (made.source, made.config) == ("given", {"k": 1})


def test_what_a_model_returns_comes_from_behind_it() -> None:
    made = mutated(diamond(), [GraphChange("insert", "add", GraphNode("new", "relu"))])
    assert [one.node for one in made.outputs] == ["new", "end"]
    assert inputs(made, "split") == [("new", 0)]


def test_a_replaced_node_leaves_its_inputs_and_its_users() -> None:
    made = mutated(diamond(), [GraphChange("replace", "conv", GraphNode("conv", "linear"))])
    assert inputs(made, "conv") == [("in", 0)]
    assert made.node("conv").parameters == ()
    assert inputs(made, "b") == [("conv", 0)]
    other = mutated(diamond(), [GraphChange("replace", "conv", GraphNode("fc", "linear"))])
    assert inputs(other, "a") == [("fc", 0)]
    assert other.tensors() == {}


def test_a_deleted_node_leaves_its_source_to_its_users() -> None:
    made = mutated(diamond(), [GraphChange("delete", "a"), GraphChange("delete", "conv")])
    assert inputs(made, "add") == [("in", 0), ("b", 0)]
    assert inputs(made, "b") == [("in", 0)]


def test_changes_follow_one_another() -> None:
    changes = [
        GraphChange("insert", "conv", GraphNode("n1", "relu")),
        GraphChange("insert", "conv", GraphNode("n2", "relu")),
        GraphChange("delete", "n1"),
    ]
    made = mutated(diamond(), changes)
    assert inputs(made, "n2") == [("conv", 0)]
    assert inputs(made, "a") == [("n2", 0)]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ([GraphChange("delete", "add")], InvalidInputError, "joins 2 inputs"),
        ([GraphChange("delete", "in")], InvalidInputError, "is an input"),
        ([GraphChange("replace", "in", GraphNode("z", "relu"))], InvalidInputError, "it stays"),
        ([GraphChange("delete", "split")], InvalidInputError, "other outputs are used"),
        ([GraphChange("delete", "a"), GraphChange("delete", "a")], InvalidInputError, "twice"),
        ([GraphChange("insert", "a", GraphNode("b", "relu"))], ConflictError, "'b' already"),
        ([GraphChange("insert", "a", GraphNode("a", "relu"))], ConflictError, "'a' already"),
        ([GraphChange("replace", "a", GraphNode("b", "relu"))], ConflictError, "'b' already"),
    ],
)
def test_what_would_leave_no_sound_graph_is_refused(
    changes: list[GraphChange], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        mutated(diamond(), changes)
