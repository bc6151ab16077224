"""How does a transaction make models of models? The verbs behind `Transaction`'s methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.arguments import wrong
from tensorrepo.formats.jsonvalues import as_plain
from tensorrepo.formats.lineage import ADAPTER_OF
from tensorrepo.formats.model.combine.adapter import adapter_of
from tensorrepo.formats.model.combine.adapternames import declare
from tensorrepo.formats.model.combine.construct import construct_model
from tensorrepo.formats.model.combine.make import Placed, merge_models, slice_model
from tensorrepo.formats.model.combine.recipe import ADAPTER, make_recipe
from tensorrepo.formats.model.graph.graph import Graph, encode_graph
from tensorrepo.formats.model.source import ModelSource, source_of
from tensorrepo.given import listed, mapping
from tensorrepo.model import Model
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorrepo.formats.lineage import Edge
    from tensorrepo.repo.objects import ObjectSink
    from tensorrepo.repo.trees import Entry


def to_store(
    tensors: Mapping[str, Any] | ModelSource,
    graph: Graph | None,
    files: Mapping[str, Any] | None = None,
) -> ModelSource:
    """What to store: tensors, and the graph of their architecture if there is one.

    Raises:
        InvalidInputError: neither tensors nor files, as a state dict taken too early has.
    """
    source = tensors if isinstance(tensors, ModelSource) else source_of(tensors)
    if not (source.tensors or source.files or files):
        raise InvalidInputError(
            "the model holds no tensors. Give a state dict of a module that has parameters; where "
            "only files are meant, give them as files="
        )
    return source if graph is None else replace(source, graph=encode_graph(graph))


def checked_metrics(metrics: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Metrics of a model, by which people rank it.

    Raises:
        InvalidInputError: one is NaN or infinite. Nothing is better or worse than NaN, and no JSON
            holds it: an answer, or a choice of the best, would depend on chance. What a training
            went through is told by its run and its checkpoints, which keep such numbers.
    """
    if metrics is None:
        return None
    found = {name: as_plain(value) for name, value in mapping("metrics", metrics).items()}
    for name, value in found.items():
        if not _is_finite(value):
            raise InvalidInputError(
                f"metric {name!r:.80} is {value!r:.80}: expected finite numbers. Leave it out, or "
                f"say what happened as text, such as {{{name!r:.80}: 'diverged'}}"
            )
    return found


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def merged(
    objects: ObjectSink,
    models: Sequence[Model],
    method: str,
    *,
    base: Model | None,
    weights: Sequence[float] | None,
    density: float,
    scale: float,
    strict: bool,
    metrics: Mapping[str, Any] | None,
) -> Entry:
    """Blend models; see `Transaction.merge_models`."""
    parents = [placed(model) for model in listed("models", models)]
    if base is None and method == ADAPTER and models:
        base = base_of(models[0])
    under = None if base is None else placed(base)
    recipe = make_recipe(
        method,
        tuple(one.digest for one in parents),
        base=None if under is None else under.digest,
        weights=None if weights is None else tuple(weights),
        density=density,
        scale=scale,
        strict=strict,
    )
    return merge_models(objects, recipe, parents, under, metrics=checked_metrics(metrics)).entry


def base_of(adapter: Model) -> Model:
    """The model that an adapter was declared to be of.

    Raises:
        InvalidInputError: it is no adapter.
        NotFoundError: its base is gone.
    """
    found = adapter_of(adapter.stored.lineage)
    if found is None:
        raise InvalidInputError(
            f"{adapter.path} is no adapter, or was saved without adapter_of=: say what its base is"
        )
    edge, _ = found
    if edge.commit is None:
        raise NotFoundError(
            f"the base of {adapter.path}, {edge.path}: no commit is known; give base="
        )
    return adapter.repository.model(edge.path, edge.commit)


def adapter_edge(
    base: Model,
    tensors: Any,
    files: Mapping[str, Any] | None,
    metadata: Mapping[str, Any] | None,
) -> Edge:
    """The edge from an adapter that is to be stored to its base."""
    given = tensors if isinstance(tensors, ModelSource) else source_of(tensors)
    source = replace(
        given,
        files={**given.files, **(files or {})},
        metadata={**given.metadata, **(metadata or {})},
    )
    return placed(base).edge(ADAPTER_OF, **declare(base.stored, source).to_json())


def sliced(objects: ObjectSink, source: Model, first: str, last: str) -> Entry:
    """Cut a sub-network out; see `Transaction.slice_model`."""
    return slice_model(objects, placed(source), first, last).entry


def constructed(
    objects: ObjectSink,
    target: Any,
    donors: Iterable[Model],
    tensors: Mapping[str, Any] | None,
    rule: str | None,
    seed: int,
) -> Entry:
    """Build an architecture out of donors; see `Transaction.construct_model`."""
    found = [placed(donor) for donor in listed("donors", donors)]
    wanted = target.stored if isinstance(target, Model) else target
    if not isinstance(target, Graph | Model | Mapping):
        raise wrong("target", "a graph, a model or a state dict", target)
    return construct_model(objects, wanted, found, tensors=tensors, rule=rule, seed=seed).entry


def placed(model: Model) -> Placed:
    """A model of the SDK, for those who store.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(model, Model):
        raise InvalidInputError(
            f"expected a model of a repository, as `repo.model(...)` gives it, "
            f"got {type(model).__name__}"
        )
    return Placed(model.stored, model.path, model.commit)
