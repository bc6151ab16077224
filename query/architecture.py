"""Which stored models have this in their architecture, begin like this one, or hold this tensor?

Architectures are rows of nodes and edges, shared by all models of one graph. Each node has a hash
of all that leads to it, so a common prefix is found by equal hashes and never by comparing graphs.

Patterns are regular expressions of RE2, matched by Arrow: without backtracking, so that no pattern
takes longer than the text is long. One fits a node when it fits its whole name, or its operation.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import and_, select

from tensorrepo.formats.model.graph.hashes import prefix_hashes
from tensorrepo.query.sync.loader import chunks, present
from tensorrepo.query.tables import (
    commit,
    edge,
    entry_change,
    metric,
    model_tensor,
    model_version,
    node,
    tensor_piece,
)
from tensorrepo.query.tables import graph as graphs
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Row, Select

    from tensorrepo.formats.model.graph.graph import Graph

LEAST_SHARE: Final = 0.5  # of the nodes, that a donor ordered by a metric has in common
_NODES_AT_ONCE: Final = 50_000
_PREFIXES_AT_ONCE: Final = 32
_NAME, _OP = 2, 3  # in rows of nodes


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
        value: of the metric asked for; None where it has none.
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
        metric: of models; decides between equal prefixes.
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
    for some in _in_portions(connection.execute(select(graphs.c.digest, graphs.c.nodes)).all()):
        paths = dict(_paths_in(connection, some, first, last, steps))
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


# ------------------------------------------------------------------------------ ways through graphs


def _in_portions(rows: Sequence[Any]) -> Iterator[list[str]]:
    """Graphs, so many at once that their nodes fit in memory."""
    some: list[str] = []
    nodes = 0
    for row in rows:
        if some and nodes + row.nodes > _NODES_AT_ONCE:
            yield some
            some, nodes = [], 0
        some.append(row.digest)
        nodes += row.nodes
    if some:
        yield some


def _models_of(connection: Connection, graphs_of: Iterable[str]) -> list[tuple[str, str]]:
    """Graph and model, in order, of the models of those graphs."""
    found: list[tuple[str, str]] = []
    for some in chunks(graphs_of):
        query = select(model_version.c.graph, model_version.c.digest)
        rows = connection.execute(query.where(model_version.c.graph.in_(some)))
        found += [(row.graph, row.digest) for row in rows]
    return sorted(found)


def _paths_in(
    connection: Connection, some: list[str], first: str, last: str | None, steps: int | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    columns = select(node.c.graph, node.c.place, node.c.name, node.c.op)
    rows = [
        row
        for part in chunks(some)
        for row in connection.execute(columns.where(node.c.graph.in_(part)))
    ]
    words = sorted({row[_NAME] for row in rows} | {row[_OP] for row in rows})
    starts = _places(rows, _fitting(words, first))
    ends = starts if last is None else _places(rows, _fitting(words, last))
    names = {(graph, place): name for graph, place, name, _ in rows}
    both = sorted(starts.keys() & ends.keys())
    if last is None:
        yield from ((graph, (names[graph, min(starts[graph])],)) for graph in both)
        return
    targets = _targets(connection, both)
    for graph in both:
        way = _way(targets.get(graph, {}), starts[graph], ends[graph], steps)
        if way:
            yield graph, tuple(names[graph, place] for place in way)


def _fitting(words: list[str], pattern: str) -> set[str]:
    """Those that fit; each is looked at once, however many nodes have it."""
    try:
        fits = pc.match_substring_regex(pa.array(words, pa.string()), f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"pattern {pattern!r:.200}: {error}") from error
    return {word for word, fit in zip(words, fits.to_pylist(), strict=True) if fit}


def _places(rows: Iterable[Any], fitting: set[str]) -> dict[str, set[int]]:
    """Graph to the places of its nodes whose name or operation is one of `fitting`."""
    found: dict[str, set[int]] = {}
    for graph, place, name, op in rows:
        if name in fitting or op in fitting:
            found.setdefault(graph, set()).add(place)
    return found


def _targets(connection: Connection, some: Iterable[str]) -> dict[str, dict[int, list[int]]]:
    """Of each graph, the place of a node to those that take from it."""
    found: dict[str, dict[int, list[int]]] = {}
    for part in chunks(some):
        query = select(edge.c.graph, edge.c.source, edge.c.target).where(edge.c.graph.in_(part))
        ordered = query.order_by(edge.c.graph, edge.c.source, edge.c.target)
        for graph, source, target in connection.execute(ordered):
            found.setdefault(graph, {}).setdefault(source, []).append(target)
    return found


def _way(
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
    connection: Connection,
    asked: _Asked,
    query: Select[Any],
    limit: int,
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
    connection: Connection,
    asked: _Asked,
    query: Select[Any],
    limit: int,
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
