from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.graph.graph import (
    Graph,
    Input,
    Node,
    Parameter,
    decode_graph,
    encode_graph,
    make_graph,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tests.support.damage import places
from tests.support.graphs import node_lists

CHAIN = [Node("a", "input"), Node("b", "relu", {}, (Input("0", "a"),))]


@given(node_lists(), st.randoms(use_true_random=False))
def test_a_graph_has_one_encoding_in_whatever_order_nodes_come(
    nodes: list[Node], random: Any
) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)
    data = encode_graph(make_graph("given", nodes))
    assert encode_graph(make_graph("given", shuffled)) == data
    assert encode_graph(decode_graph(data, "graph")) == data


def test_arguments_are_sorted_by_role() -> None:
    node = Node("b", "add", {}, (Input("y", "a"), Input("x", "a")))
    graph = make_graph("given", [CHAIN[0], node])
    assert [one.role for one in graph.node("b").inputs] == ["x", "y"]
    with pytest.raises(KeyError, match="c"):
        graph.node("c")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([Node("a", "x", {}, (Input("0", "a"),))], "circle"),
        ([Node("a", "x", {}, (Input("0", "b"),)), Node("b", "x", {}, (Input("0", "a"),))],
         "circle"),
        ([Node("a", "x", {}, (Input("0", "gone"),))], "no node 'gone'"),
        ([Node("a", "x"), Node("a", "y")], "two nodes"),
        ([Node("", "x")], "0 bytes"),
        ([Node("a", "x", {"value": object()})], "is not JSON"),
        ([*CHAIN, Node("c", "x", {}, (Input("0", "a"), Input("0", "b")))], "each once"),
        ([*CHAIN, Node("c", "x", {}, (Input("0", "a", -1),))], "counted from 0"),
        ([Node("a", "x", {}, (), (Parameter("w", "t", "F32", (-1,)),))], "shape"),
        ([CHAIN[0], Node("b", "x", {}, (Input("w", "a"),), (Parameter("w", "t", "F32", ()),))],
         "an input and a parameter"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(nodes: list[Node], told: str) -> None:
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
