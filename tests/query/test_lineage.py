"""Ancestors and descendants are what a search of the edges by hand finds, on both databases."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.lineage import trained_on, walk
from tensorrepo.query.sync.contents import edge_row
from tensorrepo.query.sync.loader import insert
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from sqlalchemy import Connection


URL = "https://example.org/a.csv"
ancestors = partial(walk, up=True)
descendants = partial(walk, up=False)
Edges = list[tuple[int, int, str]]
EDGES: st.SearchStrategy[Edges] = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["used", "made-by"])),
    max_size=25,
)


def key(number: int) -> str:
    return f"{number:064x}"


def edge(place: int, told: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of edges that its own object states."""
    return edge_row(key(place), 0, told)[1]


def fill(connection: Connection, edges: Edges) -> None:
    connection.execute(tables.lineage_edge.delete())
    rows = [
        edge(place, ("model", key(subject), word, "model", "models/m", key(origin), None, "{}"))
        for place, (subject, origin, word) in enumerate(edges)
    ]
    if rows:
        insert(connection, tables.lineage_edge, rows)


def by_hand(
    edges: Edges, start: int, depth: int | None, words: set[str], *, up: bool
) -> set[tuple[int, str, str, str]]:
    """(depth, subject, relation, origin) of every edge on a way from `start`."""
    allowed = [edge for edge in edges if not words or edge[2] in words]
    near = {start: 0}
    waiting, found = deque([start]), set()
    while waiting:
        here = waiting.popleft()
        for subject, origin, word in allowed:
            mine, other = (subject, origin) if up else (origin, subject)
            if mine != here or (depth is not None and near[here] >= depth):
                continue
            found.add((near[here] + 1, key(subject), word, key(origin)))
            if other not in near:
                near[other] = near[here] + 1
                waiting.append(other)
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edges=EDGES,
    depth=st.none() | st.integers(1, 4),
    words=st.sets(st.sampled_from(["used", "made-by"])),
    up=st.booleans(),
)
def test_what_is_found_is_what_a_search_by_hand_finds(
    catalog: CatalogDatabase, edges: Edges, depth: int | None, words: set[str], up: bool
) -> None:
    ask = ancestors if up else descendants
    with catalog.writing() as connection:
        fill(connection, edges)
        steps = ask(connection, [key(0)], depth=depth, relations=words)
    found = [(step.depth, step.subject.key, step.relation, step.origin.key) for step in steps]
    assert set(found) == by_hand(edges, 0, depth, words, up=up)
    assert len(found) == len(set(found))
    assert [depth for depth, *_ in found] == sorted(depth for depth, *_ in found)


def row(place: int, subject: str, relation: str, origin_path: str, origin: str | None) -> Any:
    kind = "url" if "://" in origin_path else "dataset"
    subject_kind = "model" if relation == "trained-on" else "dataset"
    told = (subject_kind, subject, relation, kind, origin_path, origin, None, '{"seed":7}')
    return edge(place, told)


def test_what_was_made_of_a_url_is_found_and_what_came_of_that(catalog: CatalogDatabase) -> None:
    rows = [
        row(1, key(1), "imported-from", URL, None),
        row(2, key(2), "trained-on", "datasets/a", key(1)),
    ]
    with catalog.writing() as connection:
        insert(connection, tables.lineage_edge, rows)
        whole = descendants(connection, [URL])
        near = descendants(connection, [URL], depth=1)
        up = ancestors(connection, [key(2)])
        (trained,) = trained_on(connection, "datasets/a")
    assert [(step.depth, step.subject.key) for step in whole] == [(1, key(1)), (2, key(2))]
    assert [step.subject.key for step in near] == [key(1)]
    assert [(step.origin.kind, step.origin.path) for step in up] == [
        ("dataset", "datasets/a"), ("url", URL),
    ]  # fmt: skip
    assert (trained.subject.key, trained.details) == (key(2), {"seed": 7})


def test_earlier_words_of_relations_are_understood(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        insert(
            connection,
            tables.lineage_edge,
            [row(2, key(2), "trained-on", "datasets/a", key(1))],
        )
        assert len(ancestors(connection, [key(2)], relations=["trained_on"])) == 1


def test_a_depth_of_nothing_is_refused(catalog: CatalogDatabase) -> None:
    with catalog.reading() as connection, pytest.raises(InvalidInputError, match="1 or more"):
        ancestors(connection, [key(1)], depth=0)


def test_names_that_look_like_sql_are_names(catalog: CatalogDatabase) -> None:
    evil = "x'); DROP TABLE lineage_edge; --"
    with catalog.writing() as connection:
        assert ancestors(connection, [evil], relations=[evil]) == []
        assert descendants(connection, [f"https://{evil}"]) == []
        assert trained_on(connection, evil) == []


def test_what_shares_a_hash_is_another_thing(catalog: CatalogDatabase) -> None:
    """Edges of another thing come with those asked for: their names tell them apart."""
    asked = row(1, key(1), "derived-from", "datasets/a", key(2))
    other = row(2, key(8), "derived-from", "datasets/b", key(9))
    end = list(tables.lineage_edge.c.keys()).index("subject_hash")
    same = (*other[:end], asked[end], other[end + 1])
    with catalog.writing() as connection:
        insert(connection, tables.lineage_edge, [asked, same])
        found = ancestors(connection, [key(1)])
        near = ancestors(connection, [key(1)], depth=1)
    assert [step.origin.key for step in found] == [key(2)]
    assert near == found
