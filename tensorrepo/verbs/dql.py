"""DQL carried out: models selected by the catalog, cut and constructed on a stage, and evaluated.

    statement -> models of a commit that it means -> for each a new model, made where it is staged

A statement that makes models is planned before anything is stored: what is meant, what each will
be called, and which nodes change are known, or refused, first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from tensorrepo.catalog.catalog import catalog_of
from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import counted, path_in
from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Parameter
from tensorrepo.formats.model.graph.mutation import GraphChange, mutated
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.merging.new_model import (
    NewModel,
    construct_model,
    slice_model,
)
from tensorrepo.models.model import Model, model_at
from tensorrepo.query.dql.grammar import parse_statement
from tensorrepo.query.dql.patterns import filled, groups_of
from tensorrepo.query.dql.selection import SelectedModel, select_models
from tensorrepo.query.dql.statements import (
    EVERY,
    Change,
    Construct,
    Evaluate,
    ModelOrder,
    ModelScope,
    Select,
    Slice,
    Statement,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tensorrepo.repo.tables import Cell, RecordList, RecordTable, moment_text
from tensorrepo.transaction import begin_transaction
from tensorrepo.verbs.evaluate import Evaluation, EvaluationRequest
from tensorrepo.verbs.models import placed, stage_new
from tensorrepo.verbs.progressive import evaluate

_PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")  # settings that are tensors
_RULE: Final = "default"


class SelectedModels(RecordList[SelectedModel]):
    """Models that a statement selected."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": "path",
        "digest": lambda one: one.digest[:12],
        "created": lambda one: moment_text(one.time_ns),
        ">parameters": lambda one: f"{one.parameters:,}",
    }

    def to_table(self) -> RecordTable:
        """A row for each, with the metrics that were asked about."""
        names = sorted({name for one in self for name in one.metrics})
        metrics: dict[str, Cell] = {f">{name}": partial(_metric_text, name) for name in names}
        return RecordTable.of(self, {**self.columns, **metrics})


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that a statement is going to make: its name, of what, and how."""

    name: str
    source: Model
    make: Callable[[ObjectSink], NewModel]
    what: str


@dataclass(frozen=True, slots=True)
class MadeModel:
    """A model that a statement made of another one."""

    path: str
    digest: str
    source: str
    notes: tuple[str, ...] = ()


class MadeModels(RecordList[MadeModel]):
    """Models that a statement made."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": "path",
        "digest": lambda one: one.digest[:12],
        "of": "source",
    }


def dql(
    context: Context,
    text: str,
    *,
    ref: str = "main",
    branch: str = "main",
    message: str | None = None,
    replace: bool = False,
    request: EvaluationRequest | None = None,
) -> SelectedModels | MadeModels | Evaluation:
    """See `Repository.dql`."""
    statement = parse_statement(text)
    if isinstance(statement, Select):
        return selected(context, statement, ref)
    if isinstance(statement, Evaluate):
        return evaluated(context, statement, ref, request)
    plans = planned(context, statement, ref)
    made = MadeModels()
    with begin_transaction(context, branch, message or str(statement)) as transaction:
        for plan in plans:
            path = path_in("models", plan.name)
            if not replace and transaction.core.entry(path) is not None:
                raise ConflictError(
                    f"{path} exists: say another name by as, or give replace=True. Nothing was made"
                )
            new = stage_new(transaction.core, path, plan.make(transaction.core.objects))
            made.append(MadeModel(path, new.entry.digest, plan.source.path, new.notes))
    return made


def selected(context: Context, statement: Select, ref: str) -> SelectedModels:
    """The models that a statement selects."""
    found = _models(context, statement.source, ref, statement.order, statement.limit)
    return SelectedModels(found)


def planned(context: Context, statement: Slice | Construct, ref: str) -> list[PlannedModel]:
    """What a statement is going to make; nothing is stored.

    Raises:
        NotFoundError: it means no model, or a node that a model lacks.
        InvalidInputError: two new models of one name, or a graph that cannot be changed so.
    """
    sources = list(_opened(context, statement.source, ref))
    if not sources:
        raise NotFoundError(
            f"no model is meant by: {statement.source}. Nothing was made; try the condition in "
            f"select {statement.source}"
        )
    plan = _plan_slice if isinstance(statement, Slice) else _plan_construct
    plans = [plan(statement, source) for source in sources]
    counts = Counter(one.name for one in plans)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidInputError(
            f"{counts[twice[0]]} new models would be called {twice[0]!r:.80}: say as "
            f'"{statement.new}/$name" with at "REF", so that each path has one version'
        )
    return plans


def evaluated(
    context: Context, statement: Evaluate, ref: str, request: EvaluationRequest | None
) -> Evaluation:
    """Candidates of a statement, evaluated as the request says that comes with it."""
    if request is None:
        raise InvalidInputError(
            "evaluate needs what a text cannot hold: repo.dql(text, data=..., metric=function), "
            "and train=function where it varies settings"
        )
    models = list(_opened(context, statement.source, ref))
    if not models:
        raise NotFoundError(f"no model is meant by: {statement.source}. Nothing was evaluated")
    grid = {".".join(each.path): list(each.values) for each in statement.vary}
    return evaluate(context, request.of_statement(models, grid, statement.keep))


def _opened(context: Context, source: ModelScope, ref: str) -> Iterator[Model]:
    at = None if source.at == EVERY else context.resolve(source.at or ref).digest
    for one in _models(context, source, ref):
        yield model_at(context, one.path, at or one.commit)


def _models(
    context: Context,
    source: ModelScope,
    ref: str,
    order: ModelOrder | None = None,
    limit: int | None = None,
) -> list[SelectedModel]:
    among = None
    if source.at != EVERY:
        tree = context.resolve(source.at or ref).commit.tree
        among = {
            path: str(entry.digest)
            for path, entry in context.core.entries(tree, "models/")
            if entry.kind is Kind.MODEL
        }
    with catalog_of(context).reading() as connection:
        return select_models(
            connection, source, among, now_ns=time.time_ns(), order=order, limit=limit
        )


def _metric_text(name: str, model: SelectedModel) -> str:
    return f"{model.metrics[name]:.6g}" if name in model.metrics else "-"


def _new_name(statement: Slice | Construct, source: Model) -> str:
    template = f"{statement.new}/$name" if statement.name is None else statement.name
    return template.replace("$name", source.name)


# ------------------------------------------------------------------------------ slices


def _plan_slice(statement: Statement, source: Model) -> PlannedModel:
    assert isinstance(statement, Slice)
    graph = model_graph(source.stored)
    first = _one_node(graph, statement.first, source)
    last = _one_node(graph, statement.last, source)
    made = partial(slice_model, source=placed(source), first=first, last=last)
    return PlannedModel(_new_name(statement, source), source, made, f"slice of {source.path}")


def _one_node(graph: Graph, pattern: str, source: Model) -> str:
    """The node, or the module, that a pattern of a cut means."""
    names = {node.name for node in graph.nodes}
    # A module stands for its nodes, as for `model slice`.
    modules = {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
    for known in (names, modules):
        found = sorted(groups_of(known, pattern))
        if len(found) > 1:
            listed = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
            raise InvalidInputError(
                f"{source.path} has {counted(len(found), 'node')} {pattern!r:.80}, and a cut needs "
                f"one: {listed}"
            )
        if found:
            return found[0]
    return pattern  # of no node: who cuts says which are near


# ------------------------------------------------------------------------------ changed graphs


def _plan_construct(statement: Statement, source: Model) -> PlannedModel:
    assert isinstance(statement, Construct)
    graph = model_graph(source.stored)
    changes = [each for change in statement.changes for each in _changes(graph, change, source)]
    target = mutated(graph, changes)
    made = partial(
        construct_model, target=target, donors=[placed(source)], rule=statement.init or _RULE
    )
    return PlannedModel(_new_name(statement, source), source, made, f"built of {source.path}")


def _changes(graph: Graph, change: Change, source: Model) -> Iterator[GraphChange]:
    words: dict[str, dict[str, str]] = groups_of(
        {word for node in graph.nodes for word in (node.name, node.op)}, change.pattern
    )
    fits = [node for node in graph.nodes if node.name in words or node.op in words]
    if not fits:
        raise NotFoundError(
            f"{source.path} has no node {change.pattern!r:.80}: nothing was made. "
            f"`tensorrepo model desc {source.name} --nodes` lists its nodes"
        )
    for node in fits:
        groups = words[node.name] if node.name in words else words[node.op]
        yield GraphChange(change.verb, node.name, _new_node(graph, node, change, groups))


def _new_node(
    graph: Graph, near: GraphNode, change: Change, groups: Mapping[str, str]
) -> GraphNode | None:
    operation = change.operation
    if operation is None:
        return None
    name = filled(operation.argument or "", groups, change.pattern)
    kind = _element_type(graph, near)
    parameters = [
        Parameter(key, f"{name}.{key}", kind, value)
        for key, value in operation.settings
        if key in _PARAMETERS and isinstance(value, tuple)
    ]
    config: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in operation.settings
        if key not in _PARAMETERS or not isinstance(value, tuple)
    }
    return GraphNode(name, operation.name.lower(), config, (), tuple(sorted(parameters)))


def _element_type(graph: Graph, near: GraphNode) -> str:
    """That of the node's own tensors, else the commonest of the graph."""
    own: Sequence[Parameter] = near.parameters or tuple(graph.tensors().values())
    counts = Counter(one.type for one in own)
    return counts.most_common(1)[0][0] if counts else "F32"
