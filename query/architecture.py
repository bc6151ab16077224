"""Architecture search: models by graph patterns and paths, common prefixes and shared tensors.

Architectures are rows of nodes and edges, shared by all models of one graph. Each node has a hash
of all that leads to it, so a common prefix is found by equal hashes and never by comparing graphs.

Nodes and edges come out of the database as one text a graph, as a row for each takes ten times as
long to hand over. Graphs often differ only in what no pattern asks about: those of the same text
are searched once.

Patterns are regular expressions of RE2, matched by Arrow: without backtracking, so that no pattern
takes longer than the text is long. One fits a node when it fits its whole name, or its operation.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from sqlalchemy import Column, Connection, Row, Select, Text, and_, cast, func, select
from xxhash import xxh3_128_digest

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.model.graph.graph import Graph, prefix_hashes
from tensorrepo.query.catalog.tables import (
    POSTGRESQL,
    commit,
    edge,
    entry_change,
    metric,
    model_tensor,
    model_version,
    node,
    tensor_piece,
)
from tensorrepo.query.catalog.tables import graph as graphs
from tensorrepo.query.chunks import chunks
from tensorrepo.query.sync.loader import present
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

NODES_AT_ONCE: Final = 50_000
REMEMBERED: Final = 100_000  # graphs
_NODES: Final = msgspec.json.Decoder(list[tuple[int, str, str]])  # place, name, operation
_EDGES: Final = msgspec.json.Decoder(list[tuple[int, int]])  # places of source and target

GraphPath: TypeAlias = tuple[str, ...]  # names of nodes, both ends


def ways(
    connection: Connection, first: str, last: str | None, steps: int | None
) -> Iterator[dict[str, GraphPath]]:
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
    # So many graphs at once that their nodes fit in memory.
    for some in chunks(rows.all(), NODES_AT_ONCE, lambda row: row.nodes):
        yield search.among(connection, [row.digest for row in some])


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
    _ways: dict[bytes, GraphPath] = field(default_factory=dict)

    def among(self, connection: Connection, some: list[str]) -> dict[str, GraphPath]:
        """The ways in these graphs."""
        if max(len(self._may_lead), len(self._ways)) > REMEMBERED:
            self._may_lead, self._ways = {}, {}
        nodes = dict(
            graph_texts(connection, node.c.graph, (node.c.place, node.c.name, node.c.op), some)
        )
        marks = {graph: xxh3_128_digest(text.encode()) for graph, text in nodes.items()}
        news = {mark: nodes[graph] for graph, mark in marks.items() if mark not in self._may_lead}
        known = dict(zip(news, self._ends(news.values()), strict=True))
        for mark, ends in known.items():
            self._may_lead[mark] = bool(ends.starts and ends.ends)
        able = [graph for graph in some if graph in marks and self._may_lead[marks[graph]]]
        edges: dict[str, str] = {}
        if self.last is not None:
            edges = dict(
                graph_texts(connection, edge.c.graph, (edge.c.source, edge.c.target), able)
            )
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
        start = fitting(words, self.first)
        end = start if self.last is None else fitting(words, self.last)
        return [
            _Ends(
                {place for place, name, op in nodes if name in start or op in start},
                {place for place, name, op in nodes if name in end or op in end},
                {place: name for place, name, _ in nodes},
            )
            for nodes in graphs
        ]

    def _way(self, ends: _Ends, edges: str) -> GraphPath:
        if self.last is None:
            return (ends.names[min(ends.starts)],)
        targets: dict[int, list[int]] = {}
        for source, target in sorted(_EDGES.decode(edges)):
            targets.setdefault(source, []).append(target)
        places = _shortest(targets, ends.starts, ends.ends, self.steps)
        return tuple(ends.names[place] for place in places)


def graph_texts(
    connection: Connection, graph: Column[Any], columns: Iterable[Column[Any]], some: list[str]
) -> Iterator[tuple[str, str]]:
    """Of each graph those columns of its rows, as a JSON list of lists in any order."""
    if connection.dialect.name == POSTGRESQL:
        text: Any = cast(func.json_agg(func.json_build_array(*columns)), Text)
    else:
        text = func.json_group_array(func.json_array(*columns))
    for part in chunks(some):
        yield from connection.execute(select(graph, text).where(graph.in_(part)).group_by(graph))


def fitting(words: Iterable[str], pattern: str) -> set[str]:
    """Those of `words` that fit a pattern as a whole.

    Raises:
        InvalidInputError: a pattern that is none.
    """
    words = list(words)
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


LEAST_SHARE: Final = 0.5  # of the nodes, that a donor ordered by a metric has in common
_PREFIXES_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Version:
    """Where a model stands: the commit that put it there, the newest first of several."""

    path: str
    commit: str


@dataclass(frozen=True, slots=True)
class PathFound:
    """A model in which a way leads from one node to another; `nodes` are their names, both ends."""

    model: str
    nodes: tuple[str, ...]
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Donor:
    """A model that begins like the one asked about.

    Attributes:
        model: digest of its manifest.
        shared: nodes in the longest common prefix.
        nodes: how many the one asked about has.
        value: value of the metric asked for; None where it has none.
        versions: where it stands.
    """

    model: str
    shared: int
    nodes: int
    value: float | None
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Which donors come first.

    Attributes:
        metric: metric of models that decides between equal prefixes.
        by_metric: it counts first, among those that share at least half of the nodes.
        smallest: small values of the metric are good ones.
        limit: how many donors at most.
    """

    metric: str | None = None
    by_metric: bool = False
    smallest: bool = False
    limit: int = 10

    def __post_init__(self) -> None:
        if self.by_metric and self.metric is None:
            raise InvalidInputError("to order donors by a metric, say by which")
        if self.limit < 1:
            raise InvalidInputError(f"limit {self.limit}: expected 1 or more donors")


@dataclass(frozen=True, slots=True)
class Owner:
    """A model that holds a tensor, bit for bit, and what it calls it."""

    model: str
    tensor: str
    versions: tuple[Version, ...]


def models_with_path(
    connection: Connection, first: str, last: str | None = None, *, steps: int | None = None
) -> Iterator[PathFound]:
    """Models with a node that fits `first` from which a way leads to one that fits `last`.

    Args:
        connection: to a catalog.
        first: a pattern.
        last: a pattern; None: one node that fits `first` is enough.
        steps: edges of the way at most: 1 asks for neighbours; None: any number.

    Raises:
        InvalidInputError: a pattern that is none.
    """
    for paths in ways(connection, first, last, steps):
        models = _models_of(connection, paths)
        places = versions_of(connection, (model for _, model in models))
        for graph, model in models:
            yield PathFound(model, paths[graph], places.get(model, ()))


def donors(
    connection: Connection,
    graph: Graph,
    ranking: Ranking = Ranking(),
    *,
    without: Iterable[str] = (),
) -> list[Donor]:
    """Models whose architecture begins like `graph`, the longest common prefix first.

    Args:
        connection: to a catalog.
        graph: what is to be trained next.
        ranking: which come first.
        without: digests of models that are left out.
    """
    asked, gone = _Asked.of(graph), set(without)
    query = _with_metric(ranking)
    choose = _by_metric if ranking.by_metric else _by_prefix
    chosen = choose(connection, asked, query, ranking.limit + len(gone))
    kept = [row for row in chosen if row.digest not in gone]
    shared = _shared(connection, asked, {row.graph for row in kept})
    places = versions_of(connection, [row.digest for row in kept])
    found = [
        Donor(row.digest, shared[row.graph], asked.nodes, row.value, places.get(row.digest, ()))
        for row in kept
    ]
    if not ranking.by_metric:
        found.sort(key=lambda one: -one.shared)  # those of one length keep their order
    return found[: ranking.limit]


def owners(connection: Connection, model: str, tensor: str) -> list[Owner]:
    """The models that hold a tensor of `model`, itself among them; in pieces or whole.

    A tensor so small that its value stands in the models themselves is each one's own.
    """
    marks = _fingerprints(connection, model, tensor)
    if not marks:
        return [Owner(model, tensor, versions_of(connection, [model]).get(model, ()))]
    found: dict[tuple[str, str], None] = {}
    whole = select(model_tensor.c.model, model_tensor.c.name).where(
        model_tensor.c.fingerprint.in_(marks)
    )
    parts = (
        select(model_tensor.c.model, model_tensor.c.name)
        .join(
            tensor_piece,
            and_(
                tensor_piece.c.model == model_tensor.c.model,
                tensor_piece.c.place == model_tensor.c.place,
            ),
        )
        .where(tensor_piece.c.fingerprint.in_(marks))
    )
    for query in (whole, parts):
        found.update(dict.fromkeys((row.model, row.name) for row in connection.execute(query)))
    places = versions_of(connection, {one for one, _ in found})
    return [Owner(one, name, places.get(one, ())) for one, name in sorted(found)]


def versions_of(connection: Connection, digests: Iterable[str]) -> dict[str, tuple[Version, ...]]:
    """Where things stand, by their digests: paths, and the commits that put them there."""
    found: dict[str, list[Version]] = {}
    for some in chunks(sorted(set(digests))):
        query = (
            select(entry_change.c.new, entry_change.c.path, entry_change.c.commit)
            .join(commit, commit.c.digest == entry_change.c.commit)
            .where(entry_change.c.new.in_(some))
            .order_by(commit.c.generation.desc(), entry_change.c.path, entry_change.c.commit)
        )
        for row in connection.execute(query):
            found.setdefault(row.new, []).append(Version(row.path, row.commit))
    return {digest: tuple(versions) for digest, versions in found.items()}


def _models_of(connection: Connection, graphs_of: Iterable[str]) -> list[tuple[str, str]]:
    """Graph and model, in order, of the models of those graphs."""
    found: list[tuple[str, str]] = []
    for some in chunks(graphs_of):
        query = select(model_version.c.graph, model_version.c.digest)
        rows = connection.execute(query.where(model_version.c.graph.in_(some)))
        found += [(row.graph, row.digest) for row in rows]
    return sorted(found)


# ------------------------------------------------------------------------------ common prefixes


@dataclass(frozen=True, slots=True)
class _Asked:
    """The graph that donors are looked for.

    `hashes` are those of its nodes, each as often as it occurs; `sizes` how many nodes the prefix
    has that ends in one. `inputs` are the hashes of what each takes from.
    """

    hashes: Counter[str]
    sizes: dict[str, int]
    inputs: dict[str, list[str]]
    nodes: int

    @classmethod
    def of(cls, graph: Graph) -> _Asked:
        hashes = {name: digest.hex() for name, digest in prefix_hashes(graph).items()}
        places = {one.name: place for place, one in enumerate(graph.nodes)}
        ancestors: list[int] = []  # sets of places, as bits
        sizes: dict[str, int] = {}
        inputs: dict[str, list[str]] = {}
        for place, one in enumerate(graph.nodes):
            reached = 1 << place
            for source in one.inputs:
                reached |= ancestors[places[source.node]]
            ancestors.append(reached)
            sizes[hashes[one.name]] = reached.bit_count()
            inputs[hashes[one.name]] = [hashes[source.node] for source in one.inputs]
        return cls(Counter(hashes.values()), sizes, inputs, len(graph.nodes))

    def longest_first(self) -> list[str]:
        return sorted(self.sizes, key=lambda one: (-self.sizes[one], one))

    def at_least(self, nodes: float) -> list[str]:
        """Prefixes of so many nodes one of which every graph has that has any of so many.

        Whoever has a prefix has all that lead to it: the first that are long enough will do.
        """
        return [
            one
            for one, size in self.sizes.items()
            if size >= nodes and all(self.sizes[source] < nodes for source in self.inputs[one])
        ]


def _with_metric(ranking: Ranking) -> Select[Any]:
    """Models with the value of a metric, the best first."""
    value = metric.c.value
    query = (
        select(model_version.c.digest, model_version.c.graph, value)
        .select_from(model_version)
        .outerjoin(
            metric,
            and_(metric.c.owner == model_version.c.digest, metric.c.name == (ranking.metric or "")),
        )
    )
    best = value.asc() if ranking.smallest else value.desc()
    return query.order_by(best.nulls_last(), model_version.c.digest)


def _by_prefix(
    connection: Connection, asked: _Asked, query: Select[Any], limit: int
) -> list[Row[Any]]:
    """The models that share the longest prefixes which end in one node: enough of them."""
    found: dict[str, Row[Any]] = {}
    for prefix in _known(connection, asked.longest_first()):
        if len(found) >= limit:
            break
        there = select(node.c.graph).where(node.c.prefix == prefix)
        more = query.where(model_version.c.graph.in_(there)).limit(limit + len(found))
        for row in connection.execute(more):
            found.setdefault(row.digest, row)
    return list(found.values())


def _known(connection: Connection, prefixes: Iterable[str]) -> Iterator[str]:
    """Those that some graph has, in order: most of the longest ones are nobody's."""
    for some in chunks(prefixes, _PREFIXES_AT_ONCE):
        there = present(connection, node.c.prefix, some)
        yield from (prefix for prefix in some if prefix in there)


def _by_metric(
    connection: Connection, asked: _Asked, query: Select[Any], limit: int
) -> list[Row[Any]]:
    """The models of the best values, of those that share enough."""
    long = asked.at_least(asked.nodes * LEAST_SHARE)
    there = select(node.c.graph).where(node.c.prefix.in_(long))
    sharing = model_version.c.graph.in_(there)
    chosen = query.where(sharing, metric.c.value.is_not(None)).limit(limit)
    return list(connection.execute(chosen).all())


def _shared(connection: Connection, asked: _Asked, wanted: set[str]) -> dict[str, int]:
    """How many nodes each graph has in common with the one asked about."""
    held: dict[str, Counter[str]] = {graph: Counter() for graph in wanted}
    for some in chunks(sorted(wanted)):
        query = select(node.c.graph, node.c.prefix).where(node.c.graph.in_(some))
        for row in connection.execute(query):
            held[row.graph][row.prefix] += 1
    return {graph: (asked.hashes & counts).total() for graph, counts in held.items()}


def _fingerprints(connection: Connection, model: str, tensor: str) -> list[str]:
    which = (model_tensor.c.model == model, model_tensor.c.name == tensor)
    row = connection.execute(select(model_tensor).where(*which)).one_or_none()
    if row is None:
        raise InvalidInputError(f"model {model:.12} has no tensor {tensor!r:.200}")
    if row.fingerprint is not None:
        return [row.fingerprint]
    pieces = select(tensor_piece.c.fingerprint).where(
        tensor_piece.c.model == model, tensor_piece.c.place == row.place
    )
    return [one for one in connection.execute(pieces).scalars() if one is not None]
