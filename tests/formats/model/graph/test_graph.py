from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.graph.graph import (
    Graph,
    GraphNode,
    Input,
    Parameter,
    decode_graph,
    encode_graph,
    make_graph,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tests.support.builders.graphs import node_lists
from tests.support.faults.damage import places

CHAIN = [GraphNode("a", "input"), GraphNode("b", "relu", {}, (Input("0", "a"),))]


@given(node_lists(), st.randoms(use_true_random=False))
def test_a_graph_has_one_encoding_in_whatever_order_nodes_come(
    nodes: list[GraphNode], random: Any
) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)
    data = encode_graph(make_graph("given", nodes))
    assert encode_graph(make_graph("given", shuffled)) == data
    assert encode_graph(decode_graph(data, "graph")) == data


def test_arguments_are_sorted_by_role() -> None:
    node = GraphNode("b", "add", {}, (Input("y", "a"), Input("x", "a")))
    graph = make_graph("given", [CHAIN[0], node])
    assert [one.role for one in graph.node("b").inputs] == ["x", "y"]
    with pytest.raises(KeyError, match="c"):
        graph.node("c")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([GraphNode("a", "x", {}, (Input("0", "a"),))], "circle"),
        ([GraphNode("a", "x", {}, (Input("0", "b"),)), GraphNode("b", "x", {}, (Input("0", "a"),))],
         "circle"),
        ([GraphNode("a", "x", {}, (Input("0", "gone"),))], "no node 'gone'"),
        ([GraphNode("a", "x"), GraphNode("a", "y")], "two nodes"),
        ([GraphNode("", "x")], "0 bytes"),
        ([GraphNode("a", "x", {"value": object()})], "is not JSON"),
        ([*CHAIN, GraphNode("c", "x", {}, (Input("0", "a"), Input("0", "b")))], "each once"),
        ([*CHAIN, GraphNode("c", "x", {}, (Input("0", "a", -1),))], "counted from 0"),
        ([GraphNode("a", "x", {}, (), (Parameter("w", "t", "F32", (-1,)),))], "shape"),
        ([CHAIN[0], GraphNode("b", "x", {}, (Input("w", "a"),), (Parameter("w", "t", "F32", ()),))],
         "an input and a parameter"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(nodes: list[GraphNode], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        make_graph("given", nodes)


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (Graph("elsewhere"), "source"),
        (Graph("given", tuple(CHAIN), (Input("0", "gone"),)), "no output 0"),
        (Graph("given", tuple(reversed(CHAIN))), "canonical order"),
        (Graph("given", (CHAIN[0], CHAIN[0])), "one name"),
    ],
)
def test_a_graph_whose_parts_do_not_fit_is_not_encoded(graph: Graph, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        encode_graph(graph)


def test_another_encoding_of_a_graph_is_refused() -> None:
    value = msgspec.to_builtins(make_graph("given", CHAIN))
    backwards = dict(sorted(value.items(), reverse=True))
    with pytest.raises(CorruptError, match="canonical"):
        decode_graph(msgspec.msgpack.encode(backwards), "graph")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"version": 1})])
def test_what_is_no_encoding_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="graph 12"):
        decode_graph(data, "graph 12")


def test_a_newer_version_is_told_apart() -> None:
    with pytest.raises(UnsupportedError, match="Update"):
        decode_graph(msgspec.msgpack.encode({"version": 9}), "graph")


def test_no_flipped_bit_of_a_stored_graph_raises_anything_else() -> None:
    data = encode_graph(make_graph("given", CHAIN))
    for at in places(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        with suppress(CorruptError, UnsupportedError):
            decode_graph(damaged, "graph")
