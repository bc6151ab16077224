"""Layers of drawn lineages: origins before what came of them, nothing on top of another."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.query.drawing.layered import layered

NODES = [f"n{at}" for at in range(9)]
GRAPHS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=30)


@given(GRAPHS)
def test_any_graph_is_laid_out_circles_too(edges: list[tuple[str, str]]) -> None:
    found = layered(NODES, edges)
    assert set(found.nodes) == set(NODES)
    assert set(found.edges) == {pair for pair in edges if pair[0] != pair[1]}
    assert all(points[0] == found.nodes[a] for (a, _), points in found.edges.items())
    assert all(points[-1] == found.nodes[b] for (_, b), points in found.edges.items())
    assert all(0 <= row <= found.rows - 1 + 1e-9 for _, row in found.nodes.values())


@given(GRAPHS)
def test_no_two_things_of_a_layer_lie_on_each_other(edges: list[tuple[str, str]]) -> None:
    rows = defaultdict(list)
    for layer, row in layered(NODES, edges).nodes.values():
        rows[layer].append(row)
    gaps = [high - low for each in rows.values() for low, high in pairwise(sorted(each))]
    assert all(gap >= 1 - 1e-9 for gap in gaps)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_without_circles_every_edge_leads_to_a_later_layer(pairs: list[tuple[int, int]]) -> None:
    edges = [(NODES[min(pair)], NODES[max(pair)]) for pair in pairs if pair[0] != pair[1]]
    found = layered(NODES, edges)
    assert all(found.nodes[start][0] < found.nodes[stop][0] for start, stop in edges)
    assert all(
        [layer for layer, _ in points] == list(range(points[0][0], points[-1][0] + 1))
        for points in found.edges.values()
    )


def test_a_crossing_that_can_be_avoided_is() -> None:
    found = layered(["a", "b", "x", "y"], [("a", "y"), ("b", "x")])
    (_, a), (_, b), (_, x), (_, y) = (found.nodes[name] for name in "abxy")
    assert (a < b) == (y < x)


def test_a_long_way_is_laid_out_without_recursion() -> None:
    names = [str(at) for at in range(5000)]
    found = layered(names, pairwise(names))
    assert found.layers == 5000
