"""The ways found in stored graphs are the shortest that a search by hand finds."""

from __future__ import annotations

import itertools
import re
from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorrepo.query import architecture as module
from tensorrepo.query.architecture import ways
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.sync.loader import insert
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from sqlalchemy import Connection


# Operation of each node, and edges by places: several graphs of few words, so that many are alike.
Stored = tuple[list[str], set[tuple[int, int]]]
SIZE = 6
GRAPH = st.tuples(
    st.lists(st.sampled_from(["conv", "pool", 'add"\\']), min_size=1, max_size=SIZE),
    st.sets(st.tuples(st.integers(0, SIZE - 2), st.integers(1, SIZE - 1)), max_size=8),
)
STEPS = st.none() | st.integers(1, 4)
PATTERNS = st.sampled_from(["conv", "pool", "n[12]", ".*", "none"])


def name(place: int) -> str:
    return f"n{place} ünï'\"{place}"


def inside(graph: Stored) -> list[tuple[int, int]]:
    ops, edges = graph
    return [(source, target) for source, target in sorted(edges) if source < target < len(ops)]


def fill(connection: Connection, graphs: list[Stored]) -> None:
    for table in (tables.graph, tables.node, tables.edge):
        connection.execute(table.delete())
    for at, (ops, _) in enumerate(graphs):
        key = f"{at:064x}"
        insert(connection, tables.graph, [(key, "given", len(ops), key)])
        nodes = [(key, n, name(n), op, "{}", 0, f"{n:064x}") for n, op in enumerate(ops)]
        insert(connection, tables.node, nodes)
        edges = [(key, source, target, "0", 0) for source, target in inside(graphs[at])]
        if edges:
            insert(connection, tables.edge, edges)


def fits(graph: Stored, place: int, pattern: str) -> bool:
    return any(re.fullmatch(pattern, word) for word in (name(place), graph[0][place]))


def by_hand(graph: Stored, first: str, last: str, steps: int | None) -> int | None:
    """Edges of the shortest way; None: there is none."""
    places = range(len(graph[0]))
    waiting = deque((place, 0) for place in places if fits(graph, place, first))
    seen = set()
    while waiting:
        place, length = waiting.popleft()
        if length and fits(graph, place, last):
            return length if steps is None or length <= steps else None
        for source, target in inside(graph):
            if source == place and target not in seen:
                seen.add(target)
                waiting.append((target, length + 1))
    return None


def found(
    connection: Connection, first: str, last: str | None, steps: int | None = None
) -> dict[int, tuple[str, ...]]:
    portions = ways(connection, first, last, steps)
    return {int(graph, 16): way for some in portions for graph, way in some.items()}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs=st.lists(GRAPH, max_size=8), first=PATTERNS, last=PATTERNS, steps=STEPS)
def test_the_shortest_way_in_each_graph_is_found(
    catalog: CatalogDatabase, graphs: list[Stored], first: str, last: str, steps: int | None
) -> None:
    with catalog.writing() as connection:
        fill(connection, graphs)
        told = found(connection, first, last, steps)
    wanted = {at: by_hand(graph, first, last, steps) for at, graph in enumerate(graphs)}
    assert {at: len(way) - 1 for at, way in told.items()} == {
        at: length for at, length in wanted.items() if length is not None
    }
    places = {name(place): place for place in range(SIZE)}
    for at, way in told.items():
        walked = [places[each] for each in way]
        assert set(itertools.pairwise(walked)) <= set(inside(graphs[at]))
        assert fits(graphs[at], walked[0], first)
        assert fits(graphs[at], walked[-1], last)


def test_one_node_that_fits_is_enough_without_an_end(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        fill(connection, [(["conv", "pool"], set()), (["conv"], set())])
        assert found(connection, "pool", None) == {0: (name(1),)}


@pytest.mark.parametrize("remembered", [0, 1, 100])
def test_portions_and_what_is_remembered_change_nothing(
    catalog: CatalogDatabase, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    chain = (["conv", "add", "pool"], {(0, 1), (1, 2)})
    short = (["conv", "add", "pool"], {(0, 2)})
    none: Stored = (["conv", "conv"], {(0, 1)})
    graphs: list[Stored] = [chain, short, none, chain, short, chain]
    with catalog.writing() as connection:
        fill(connection, graphs)
        whole = found(connection, "conv", "pool")
        monkeypatch.setattr(module, "NODES_AT_ONCE", 1)
        monkeypatch.setattr(module, "REMEMBERED", remembered)
        assert found(connection, "conv", "pool") == whole
    long, direct = (name(0), name(1), name(2)), (name(0), name(2))
    assert whole == {0: long, 1: direct, 3: long, 4: direct, 5: long}


def test_a_pattern_that_is_none_is_refused(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        fill(connection, [(["conv"], set())])
        with pytest.raises(InvalidInputError, match="pattern"):
            found(connection, "(", None)
