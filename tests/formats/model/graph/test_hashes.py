from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.graph.graph import (
    GraphNode,
    Input,
    Parameter,
    common_prefix,
    graph_hash,
    make_graph,
    prefix_hashes,
)
from tests.support.builders.graphs import node_lists


def chain(*ops: str, name: str = "n", width: int = 2) -> Any:
    """Operations one after the other, each with a square weight."""
    nodes: list[GraphNode] = []
    for at, op in enumerate(ops):
        inputs = (Input("x", nodes[-1].name),) if nodes else ()
        weight = Parameter("weight", f"{name}{at}.weight", "F32", (width, width))
        nodes.append(GraphNode(f"{name}{at}", op, {}, inputs, (weight,)))
    return make_graph("given", nodes)


@given(node_lists(), st.randoms(use_true_random=False))
def test_hashes_do_not_depend_on_names_or_on_the_order_of_nodes(
    nodes: list[GraphNode], random: Any
) -> None:
    names = [node.name for node in nodes]
    others = [f"other{at}" for at in range(len(names))]
    random.shuffle(others)
    renamed = dict(zip(names, others, strict=True))
    copies = [
        msgspec.structs.replace(
            node,
            name=renamed[node.name],
            inputs=tuple(Input(one.role, renamed[one.node]) for one in node.inputs),
            parameters=tuple(
                msgspec.structs.replace(one, tensor=f"{renamed[node.name]}.w")
                for one in node.parameters
            ),
        )
        for node in nodes
    ]
    random.shuffle(copies)
    mine = prefix_hashes(make_graph("given", nodes))
    theirs = prefix_hashes(make_graph("given", copies))
    assert {renamed[name]: one for name, one in mine.items()} == theirs
    assert graph_hash(mine.values()) == graph_hash(theirs.values())


@given(node_lists())
def test_a_change_is_seen_by_all_that_follow_and_by_nothing_else(nodes: list[GraphNode]) -> None:
    changed = [msgspec.structs.replace(nodes[0], op="other"), *nodes[1:]]
    graph = make_graph("given", nodes)
    before, after = prefix_hashes(graph), prefix_hashes(make_graph("given", changed))
    reached = {nodes[0].name}
    for node in graph.nodes:
        reached |= {node.name} if any(one.node in reached for one in node.inputs) else set()
    assert {name for name in before if before[name] != after[name]} == reached


def test_shapes_count_and_types_do_not() -> None:
    wide = prefix_hashes(chain("linear", width=3))
    assert wide != prefix_hashes(chain("linear"))
    half = Parameter("weight", "n0.weight", "BF16", (2, 2))
    graph = make_graph("given", [GraphNode("n0", "linear", {}, (), (half,))])
    assert prefix_hashes(graph) == prefix_hashes(chain("linear"))


def test_a_layer_used_twice_is_not_two_equal_layers() -> None:
    def siamese(*names: str) -> Any:
        layers = [
            GraphNode(name, "linear", {}, (Input("x", "in"),)) for name in dict.fromkeys(names)
        ]
        joined = tuple(Input(str(at), name) for at, name in enumerate(names))
        return make_graph(
            "given", [GraphNode("in", "input"), *layers, GraphNode("out", "add", {}, joined)]
        )

    once, twice = siamese("a", "a"), siamese("a", "b")
    assert prefix_hashes(once)["out"] == prefix_hashes(twice)["out"]
    assert graph_hash(prefix_hashes(once).values()) != graph_hash(prefix_hashes(twice).values())


def test_the_common_prefix_ends_where_architectures_part() -> None:
    pairs = common_prefix(
        chain("linear", "relu", "linear", "softmax"),
        chain("linear", "relu", "linear", "linear", name="m"),
    )
    assert [(one.name, two.name) for one, two in pairs] == [
        ("n0", "m0"),
        ("n1", "m1"),
        ("n2", "m2"),
    ]


def test_equal_siblings_are_paired_by_name() -> None:
    def attention(*names: str) -> Any:
        return make_graph(
            "given",
            [
                GraphNode("x", "input"),
                *(GraphNode(name, "linear", {}, (Input("x", "x"),)) for name in names),
            ],
        )

    pairs = common_prefix(attention("q", "k", "v"), attention("v", "q", "other"))
    assert {one.name: two.name for one, two in pairs} == {
        "x": "x", "q": "q", "v": "v", "k": "other",
    }  # fmt: skip


def test_hashes_are_the_same_on_every_machine() -> None:
    found = prefix_hashes(chain("linear", "relu"))["n1"]
    assert found.hex() == "0106ea4c06dfea98d13f39c49d54d93ae2762c6e8d927376956d13cd5ca4a72d"
