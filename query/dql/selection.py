"""Models that a condition of DQL holds for, by what the catalog knows of them.

Conditions are decided in Python over rows of the catalog, so that both databases answer alike.
Nodes are looked at once for each graph, which many models share.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import Connection, select

from tensorrepo.query.architecture import NODES_AT_ONCE, fitting, graph_texts
from tensorrepo.query.catalog.tables import commit, edge, entry_change, metric, model_version, node
from tensorrepo.query.catalog.tables import graph as graphs
from tensorrepo.query.chunks import chunks
from tensorrepo.query.dql.patterns import (
    glob_regex,
    like_regex,
    name_glob,
    normal_operation,
    operation_regex,
    settings_fit,
)
from tensorrepo.query.dql.statements import (
    MOMENTS,
    Among,
    And,
    Attribute,
    Compare,
    Condition,
    Has,
    MetricOf,
    ModelOrder,
    ModelScope,
    Not,
    Or,
    Plain,
    Value,
    predicates,
)
from tensorrepo.repo.changes.moments import parse_moment
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind

_NODES: Final = msgspec.json.Decoder(list[tuple[int, str, str, str]])
_EDGES: Final = msgspec.json.Decoder(list[tuple[int, int]])
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
Neighbours: TypeAlias = Mapping[str, Mapping[int, list[int]]]


@dataclass(frozen=True, slots=True)
class SelectedModel:
    """A version of a model.

    Attributes:
        path: where it stands.
        digest: digest of its manifest.
        commit: the commit that put it there first; author, time_ns and message are that commit's.
        parameters: elements of all tensors.
        bytes: bytes of all tensors.
        tensors: how many there are.
        graph: digest of its architecture graph.
        metrics: values of the metrics that the statement asked about.
    """

    path: str
    digest: str
    commit: str
    author: str
    time_ns: int
    message: str
    parameters: int
    bytes: int
    tensors: int
    graph: str | None
    metrics: Mapping[str, float]

    @property
    def name(self) -> str:
        return self.path.removeprefix("models/")

    @property
    def creation_time(self) -> int:
        return self.time_ns


def select_models(
    connection: Connection,
    source: ModelScope,
    among: Mapping[str, str] | None,
    *,
    now_ns: int,
    order: ModelOrder | None = None,
    limit: int | None = None,
) -> list[SelectedModel]:
    """Models that a source means, by path and then from the newest; or in an order.

    Args:
        connection: to a catalog.
        source: variable and condition; where it is read is told by `among`.
        among: digests of models by path, of one commit; None: those of all commits.
        now_ns: now, from which moments such as "3 days ago" count.
        order: what comes first.
        limit: how many at most.

    Raises:
        InvalidInputError: a pattern that is none.
    """
    asked = [value for value in _values(source.where, order) if isinstance(value, MetricOf)]
    models = _models(connection, among, {value.name for value in asked})
    holds = _Decided(connection, source.where, models, now_ns)
    chosen = [model for model in models if source.where is None or holds(source.where, model)]
    chosen.sort(key=lambda model: (model.path, -model.time_ns, model.digest))
    if order is not None:
        chosen = _ordered(chosen, order)
    return chosen[:limit]


def keeps(condition: Condition, metrics: Mapping[str, float]) -> bool:
    """Whether a condition on metrics alone holds; a metric that is not there is like no number."""
    match condition:
        case Not(inner):
            return not keeps(inner, metrics)
        case And(parts):
            return all(keeps(part, metrics) for part in parts)
        case Or(parts):
            return any(keeps(part, metrics) for part in parts)
        case Compare(MetricOf(_, name), compare, literal):
            return name in metrics and _COMPARE[compare](metrics[name], literal)
        case Among(MetricOf(_, name), literals):
            return name in metrics and metrics[name] in literals
    raise InvalidInputError(f"{condition}: expected a condition on metrics")


def _values(condition: Condition | None, order: ModelOrder | None) -> Iterator[Value]:
    if order is not None:
        yield order.value
    yield from (each.value for each in predicates(condition) if not isinstance(each, Has))


def _models(
    connection: Connection, among: Mapping[str, str] | None, metrics: set[str]
) -> list[SelectedModel]:
    query = (
        select(entry_change.c.path, entry_change.c.new, commit, model_version)
        .join(commit, commit.c.digest == entry_change.c.commit)
        .join(model_version, model_version.c.digest == entry_change.c.new)
        .where(entry_change.c.kind == Kind.MODEL.label)
        .order_by(commit.c.generation, commit.c.time_ns, commit.c.digest)
    )
    found: dict[tuple[str, str], Any] = {}
    digests = None if among is None else sorted(set(among.values()))
    for some in [None] if digests is None else chunks(digests):
        asked = query if some is None else query.where(entry_change.c.new.in_(some))
        for row in connection.execute(asked):
            if among is None or among.get(row.path) == row.new:
                found.setdefault((row.path, row.new), row)
    values = _metrics(connection, {digest for _, digest in found}, metrics)
    return [
        SelectedModel(
            row.path, row.new, row.digest, row.author, row.time_ns, row.message, row.elements,
            row.bytes, row.tensor_count, row.graph, values.get(row.new, {}),
        )
        for row in found.values()
    ]  # fmt: skip


def _metrics(
    connection: Connection, digests: set[str], names: set[str]
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    if not names:
        return found
    for some in chunks(sorted(digests)):
        query = select(metric.c.owner, metric.c.name, metric.c.value).where(
            metric.c.owner.in_(some), metric.c.name.in_(sorted(names)), metric.c.value.is_not(None)
        )
        for row in connection.execute(query):
            found.setdefault(row.owner, {})[row.name] = row.value
    return found


def _ordered(models: list[SelectedModel], order: ModelOrder) -> list[SelectedModel]:
    def value(model: SelectedModel) -> Any:
        return _value(order.value, model)

    known = [model for model in models if value(model) is not None]
    known.sort(key=value, reverse=order.descending)
    return known + [model for model in models if value(model) is None]


def _value(value: Value, model: SelectedModel) -> Any:
    if isinstance(value, MetricOf):
        return model.metrics.get(value.name)
    return getattr(model, value.name)


class _Decided:
    """What predicates say that are decided for all models at once: texts by patterns, and nodes."""

    def __init__(
        self,
        connection: Connection,
        condition: Condition | None,
        models: Iterable[SelectedModel],
        now_ns: int,
    ) -> None:
        every, self._now_ns = list(models), now_ns
        self._fits: dict[Compare, set[str]] = {}
        nodes: list[Has] = []
        for each in dict.fromkeys(predicates(condition)):
            if isinstance(each, Has):
                nodes.append(each)
            elif isinstance(each, Compare) and each.operator == "like":
                words = {_value(each.value, model) for model in every}
                self._fits[each] = fitting(sorted(words), like_regex(str(each.literal)))
        wanted = {model.graph for model in every if model.graph is not None}
        self._graphs = _graphs_that_have(connection, nodes, wanted)

    def __call__(self, condition: Condition, model: SelectedModel) -> bool:
        match condition:
            case Not(inner):
                return not self(inner, model)
            case And(parts):
                return all(self(part, model) for part in parts)
            case Or(parts):
                return any(self(part, model) for part in parts)
            case Has():
                return model.graph in self._graphs[condition]
            case Among(value, literals):
                return _value(value, model) in [self._literal(value, each) for each in literals]
            case Compare(value, "like"):
                return _value(value, model) in self._fits[condition]
            case Compare(value, compare, literal):
                known = _value(value, model)
                return known is not None and _COMPARE[compare](known, self._literal(value, literal))

    def _literal(self, value: Value, literal: Plain) -> Any:
        if isinstance(value, Attribute) and value.name in MOMENTS:
            return parse_moment(str(literal), now_ns=self._now_ns)
        return literal


# ------------------------------------------------------------------------------ nodes


def _graphs_that_have(
    connection: Connection, asked: list[Has], wanted: set[str]
) -> dict[Has, set[str]]:
    found: dict[Has, set[str]] = {each: set() for each in asked}
    if not asked:
        return found
    sizes = {
        row.digest: row.nodes
        for some in chunks(sorted(wanted))
        for row in connection.execute(select(graphs).where(graphs.c.digest.in_(some)))
    }
    columns = (node.c.place, node.c.name, node.c.op, node.c.attributes)
    ends = (edge.c.source, edge.c.target)
    # So many graphs at once that their nodes fit in memory.
    for some in chunks(sorted(sizes), NODES_AT_ONCE, sizes.__getitem__):
        edges = dict(graph_texts(connection, edge.c.graph, ends, some))
        for digest, text in graph_texts(connection, node.c.graph, columns, some):
            one = _GraphNodes(text, edges.get(digest, "[]"))
            for each in asked:
                if one.has(each):
                    found[each].add(digest)
    return found


class _GraphNodes:
    """Nodes and edges of one graph."""

    def __init__(self, nodes: str, edges: str) -> None:
        self._nodes = {place: rest for place, *rest in _NODES.decode(nodes)}
        next_ones: dict[int, list[int]] = {}
        before: dict[int, list[int]] = {}
        for source, target in _EDGES.decode(edges):
            next_ones.setdefault(source, []).append(target)
            before.setdefault(target, []).append(source)
        self._neighbours: Neighbours = {"next": next_ones, "prev": before}

    def has(self, asked: Has) -> bool:
        """Whether one of the nodes that are asked about does what is asked for."""
        places = self._fitting(glob_regex(asked.nodes.pattern))
        for step in asked.nodes.steps:
            near = self._neighbours[step]
            places = {other for place in places for other in near.get(place, ())}
        return any(self._does(place, asked) for place in sorted(self._able(asked, places)))

    def _fitting(self, regex: str) -> set[int]:
        words = {word for name, op, _ in self._nodes.values() for word in (name, op)}
        fits = fitting(sorted(words), regex)
        return {place for place, (name, op, _) in self._nodes.items() if {name, op} & fits}

    def _able(self, asked: Has, places: set[int]) -> set[int]:
        """Those whose operation, and whose name, is what is asked for."""
        words = {place: normal_operation(self._nodes[place][1]) for place in places}
        fits = fitting(sorted(set(words.values())), operation_regex(asked.operation))
        able = {place for place in places if words[place] in fits}
        if (glob := name_glob(asked.operation)) is not None:
            names = fitting(sorted({self._nodes[place][0] for place in able}), glob_regex(glob))
            able = {place for place in able if self._nodes[place][0] in names}
        return able

    def _does(self, place: int, asked: Has) -> bool:
        if not asked.operation.settings:
            return True
        return settings_fit(asked.operation, msgspec.json.decode(self._nodes[place][2]))
