"""Models on a stage: saved, and made of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import mapping, text, wrong
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.common.provenance import ADAPTER_OF, FINE_TUNED_FROM, ProvenanceEdge
from tensorrepo.formats.model.graph.graph import Graph, encode_graph
from tensorrepo.formats.model.merging.adapters import adapter_of, declare
from tensorrepo.formats.model.merging.new_model import ModelRef, NewModel
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_source import ModelSource, source_of
from tensorrepo.formats.model.write.model_writer import Progress, WrittenModel, store_model
from tensorrepo.formats.model.write.near_models import near_models
from tensorrepo.models.model import Model, model_at
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.verbs.stage import Stage


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
    plain = {name: as_plain(value) for name, value in mapping("metrics", metrics).items()}
    for name, value in plain.items():
        if not _is_finite(value):
            raise InvalidInputError(
                f"metric {name!r:.80} is {value!r:.80}: expected finite numbers. Leave it out, or "
                f"say what happened as text, such as {{{name!r:.80}: 'diverged'}}"
            )
    return plain


def _is_finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def known_models(
    core: RepositoryCore, tree: bytes, staged: Sequence[Entry | None], path: str
) -> tuple[Entry, ...]:
    """Models that a new one may be stored against, the likeliest first, as they are stored now.

    See `near_models`.
    """
    found = near_models(core.objects, tree, staged, path)
    return tuple(core.current(entry) for entry in found)


def save(
    stage: Stage,
    path: str,
    source: ModelSource,
    *,
    base: Entry | None,
    known: Iterable[Entry],
    lineage: Iterable[ProvenanceEdge],
    files: Mapping[str, Any] | None = None,
    metadata: Any = None,
    metrics: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> WrittenModel:
    """Store a model at a path of a stage; see `Transaction.save_model`.

    Args:
        stage: next commit.
        path: whole path of the model.
        source: tensors, and the files that came with them.
        base: model to store the difference from; None: the most similar ones of `known`.
        known: models of the stage, the likeliest bases first.
        lineage: edges to what it was made of.
        files: further files by name.
        metadata: JSON.
        metrics: JSON whose numbers are finite.
        progress: receives tensor bytes in all, and those done.
    """
    written = store_model(
        stage.objects,
        source,
        files=files,
        metadata=metadata,
        metrics=checked_metrics(metrics),
        lineage=lineage,
        known=known,
        against=DeltaOptions(base),
        progress=progress,
    )
    # A base may be of a commit that no ref leads to: its packs may have been condemned before.
    stage.stage(path, written.entry, since=None if base is None else 0)
    return written


def stage_new(stage: Stage, path: str, made: NewModel) -> NewModel:
    """Name a model that was made of others in the next commit."""
    # Its tensors may be of a commit that no ref leads to.
    stage.stage(path, made.entry, since=0)
    return made


def model_of(context: Context, at: str, what: str) -> Model:
    """The model that ``REF:models/NAME`` names; `what` it is given as, for messages."""
    ref, path = split_path(text(what, at))
    if path is None:
        raise InvalidInputError(f"{what} {at!r}: expected REF:models/NAME")
    return model_at(context, path.removeprefix("models/"), ref)


def base_model(context: Context, base: Model | str) -> Model:
    """The model that a new one is stored against.

    Raises:
        InvalidInputError: it is none, or one of another repository.
    """
    model = model_of(context, base, "base") if isinstance(base, str) else base
    if not isinstance(model, Model):
        raise wrong("base", "a model of the repository, or REF:models/NAME", base)
    if model.context.core.id != context.core.id:
        raise InvalidInputError(
            f"base {model!r} is of another repository: pull it into this one first"
        )
    return model


def tuned_edge(base: Model) -> ProvenanceEdge:
    """The edge from a model to the one that it was tuned from."""
    return ProvenanceEdge(FINE_TUNED_FROM, base.path, base.digest, base.commit)


def base_of(adapter: Model) -> Model:
    """The model that an adapter was declared to be of.

    Raises:
        InvalidInputError: it is no adapter.
        NotFoundError: its base is gone.
    """
    declared = adapter_of(adapter.stored.lineage)
    if declared is None:
        raise InvalidInputError(
            f"{adapter.path} is no adapter, or was saved without adapter_of=: say what its base is"
        )
    edge, _ = declared
    if edge.commit is None:
        raise NotFoundError(
            f"the base of {adapter.path}, {edge.path}: no commit is known; give base="
        )
    return model_at(adapter.context, edge.path, edge.commit)


def adapter_edge(
    base: Model, tensors: Any, files: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None
) -> ProvenanceEdge:
    """The edge from an adapter that is to be stored to its base."""
    weights = tensors if isinstance(tensors, ModelSource) else source_of(tensors)
    source = replace(
        weights,
        files={**weights.files, **(files or {})},
        metadata={**weights.metadata, **(metadata or {})},
    )
    return placed(base).edge(ADAPTER_OF, **declare(base.stored, source).to_json())


def placed(model: Model) -> ModelRef:
    """A model of the SDK, for those who store.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(model, Model):
        raise InvalidInputError(
            f"expected a model of a repository, as `repo.model(...)` gives it, "
            f"got {type(model).__name__}"
        )
    return ModelRef(model.stored, model.path, model.commit)
