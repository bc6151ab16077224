"""Which graphs have a node that fits one pattern, from which a way leads to one that fits another?

Nodes and edges come out of the database as one text a graph, as a row for each takes ten times as
long to hand over. Graphs often differ only in what no pattern asks about: those of the same text
are searched once.

Patterns are regular expressions of RE2, matched by Arrow: without backtracking, so that no pattern
takes longer than the text is long. One fits a node when it fits its whole name, or its operation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Text, cast, func, select
from xxhash import xxh3_128_digest

from tensorrepo.query.dialects import POSTGRESQL
from tensorrepo.query.sync.loader import chunks
from tensorrepo.query.tables import edge, node
from tensorrepo.query.tables import graph as graphs
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Column, Connection

NODES_AT_ONCE: Final = 50_000
REMEMBERED: Final = 100_000  # graphs
_NODES: Final = msgspec.json.Decoder(list[tuple[int, str, str]])  # place, name, operation
_EDGES: Final = msgspec.json.Decoder(list[tuple[int, int]])  # places of source and target

Way: TypeAlias = tuple[str, ...]  # names of nodes, both ends


def ways(
    connection: Connection, first: str, last: str | None, steps: int | None
) -> Iterator[dict[str, Way]]:
    """Of each graph that has one its shortest way, by the graph's digest; some graphs at a time.

    Args:
        connection: to a catalog.
        first: a pattern of where it begins.
        last: a pattern of where it ends; None: one node that fits `first` is the way.
        steps: edges of the way at most; None: any number.

    Raises:
        InvalidInputError: a pattern that is none.
    """
    search = _Search(first, last, steps)
    rows = connection.execute(select(graphs.c.digest, graphs.c.nodes).order_by(graphs.c.digest))
    for some in _in_portions(rows.all()):
        yield search.among(connection, some)


def _in_portions(rows: Sequence[Any]) -> Iterator[list[str]]:
    """Graphs, so many at once that their nodes fit in memory."""
    some: list[str] = []
    nodes = 0
    for row in rows:
        if some and nodes + row.nodes > NODES_AT_ONCE:
            yield some
            some, nodes = [], 0
        some.append(row.digest)
        nodes += row.nodes
    if some:
        yield some


@dataclass(frozen=True, slots=True)
class _Ends:
    """Places in one graph from which a way may lead, and to which; and the names of all nodes."""

    starts: set[int]
    ends: set[int]
    names: dict[int, str]


@dataclass(slots=True)
class _Search:
    """One search, and what it found in texts that it met, by hashes of them."""

    first: str
    last: str | None
    steps: int | None
    _may_lead: dict[bytes, bool] = field(default_factory=dict)  # has a start, and an end
    _ways: dict[bytes, Way] = field(default_factory=dict)

    def among(self, connection: Connection, some: list[str]) -> dict[str, Way]:
        """The ways in these graphs."""
        if max(len(self._may_lead), len(self._ways)) > REMEMBERED:
            self._may_lead, self._ways = {}, {}
        nodes = dict(_texts(connection, node.c.graph, (node.c.place, node.c.name, node.c.op), some))
        marks = {graph: xxh3_128_digest(text.encode()) for graph, text in nodes.items()}
        news = {mark: nodes[graph] for graph, mark in marks.items() if mark not in self._may_lead}
        known = dict(zip(news, self._ends(news.values()), strict=True))
        for mark, ends in known.items():
            self._may_lead[mark] = bool(ends.starts and ends.ends)
        able = [graph for graph in some if graph in marks and self._may_lead[marks[graph]]]
        edges: dict[str, str] = {}
        if self.last is not None:
            edges = dict(_texts(connection, edge.c.graph, (edge.c.source, edge.c.target), able))
        found = {}
        for graph in able:
            mark = marks[graph] + xxh3_128_digest(edges.get(graph, "").encode())
            if mark not in self._ways:
                ends = known.get(marks[graph]) or self._ends([nodes[graph]])[0]
                self._ways[mark] = self._way(ends, edges.get(graph, "[]"))
            found[graph] = self._ways[mark]
        return {graph: way for graph, way in found.items() if way}

    def _ends(self, texts: Iterable[str]) -> list[_Ends]:
        """Of graphs of those nodes. Each word is looked at once, however many nodes have it."""
        graphs = [_NODES.decode(text) for text in texts]
        words = sorted({word for nodes in graphs for _, *both in nodes for word in both})
        start = _fitting(words, self.first)
        end = start if self.last is None else _fitting(words, self.last)
        return [
            _Ends(
                {place for place, name, op in nodes if name in start or op in start},
                {place for place, name, op in nodes if name in end or op in end},
                {place: name for place, name, _ in nodes},
            )
            for nodes in graphs
        ]

    def _way(self, ends: _Ends, edges: str) -> Way:
        if self.last is None:
            return (ends.names[min(ends.starts)],)
        targets: dict[int, list[int]] = {}
        for source, target in sorted(_EDGES.decode(edges)):
            targets.setdefault(source, []).append(target)
        places = _shortest(targets, ends.starts, ends.ends, self.steps)
        return tuple(ends.names[place] for place in places)


def _texts(
    connection: Connection, graph: Column[Any], columns: Iterable[Column[Any]], some: list[str]
) -> Iterator[tuple[str, str]]:
    """Of each graph those columns of its rows, as a JSON list of lists in any order."""
    if connection.dialect.name == POSTGRESQL:
        text: Any = cast(func.json_agg(func.json_build_array(*columns)), Text)
    else:
        text = func.json_group_array(func.json_array(*columns))
    for part in chunks(some):
        yield from connection.execute(select(graph, text).where(graph.in_(part)).group_by(graph))


def _fitting(words: list[str], pattern: str) -> set[str]:
    """Those that fit."""
    try:
        fits = pc.match_substring_regex(pa.array(words, pa.string()), f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"pattern {pattern!r:.200}: {error}") from error
    return {word for word, fit in zip(words, fits.to_pylist(), strict=True) if fit}


def _shortest(
    targets: Mapping[int, list[int]], starts: set[int], ends: set[int], steps: int | None
) -> list[int]:
    """The shortest way of at least one edge from a start to an end; none: empty."""
    before: dict[int, int] = {}
    queue = deque((start, 0) for start in sorted(starts))
    while queue:
        place, length = queue.popleft()
        if steps is not None and length == steps:
            continue
        for target in targets.get(place, ()):
            if target in before:
                continue
            before[target] = place
            if target in ends:
                return _back(before, target, length + 1)
            if target not in starts:
                queue.append((target, length + 1))
    return []


def _back(before: Mapping[int, int], end: int, steps: int) -> list[int]:
    way = [end]
    for _ in range(steps):
        way.append(before[way[-1]])
    return way[::-1]
