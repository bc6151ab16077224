"""Which stored models have this in their architecture, begin like this one, or hold this tensor?

Architectures are rows of nodes and edges, shared by all models of one graph. Each node has a hash
of all that leads to it, so a common prefix is found by equal hashes and never by comparing graphs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, select

from tensorrepo.formats.model.graph.hashes import prefix_hashes
from tensorrepo.query.sync.loader import chunks, present
from tensorrepo.query.tables import (
    commit,
    entry_change,
    metric,
    model_tensor,
    model_version,
    node,
    tensor_piece,
)
from tensorrepo.query.ways import ways
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection, Row, Select

    from tensorrepo.formats.model.graph.graph import Graph

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
