"""How is a model made of stored ones: blended, made again, cut out?

Each gives the entry to stage. Tensors that a parent holds are not stored again, and what a model
was made of is in its lineage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.lineage import MERGED_FROM, MERGED_ONTO, SLICED_FROM, Edge
from tensorrepo.formats.model.combine.adapted import adapt
from tensorrepo.formats.model.combine.blend import Blend, blend
from tensorrepo.formats.model.combine.recipe import ADAPTER, Recipe, with_recipe
from tensorrepo.formats.model.contents import content_of
from tensorrepo.formats.model.graph.cut import between
from tensorrepo.formats.model.graph.graph import Graph, encode_graph
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.source import ModelSource
from tensorrepo.formats.model.write import write_model
from tensorrepo.formats.wording import counted
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tensorrepo.formats.model.read import Model
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSink
    from tensorrepo.repo.trees import Entry

    Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A stored model, and where it was found, for the lineage of what is made of it."""

    model: Model
    path: str
    commit: Digest | None = None

    @property
    def digest(self) -> Digest:
        return self.model.entry.digest

    def edge(self, relation: str, **details: Any) -> Edge:
        return Edge(relation, self.path, self.digest, self.commit, details)


@dataclass(frozen=True, slots=True)
class Made:
    """An entry to stage; `notes` are for people."""

    entry: Entry
    notes: tuple[str, ...] = ()


def merge_models(
    objects: ObjectSink,
    recipe: Recipe,
    parents: Sequence[Placed],
    base: Placed | None = None,
    *,
    metrics: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Made:
    """Blend models by a recipe, or put adapters into their base.

    Files and metadata are the first parent's, of adapters the base's; metrics are nobody's.

    Args:
        objects: where to store.
        recipe: names them by digest.
        parents: those models, in its order.
        base: likewise.
        metrics: measured of the blend.
        progress: told the tensors and bytes done so far.

    Raises:
        InvalidInputError: models whose tensors do not fit together.
    """
    _check_named(recipe, parents, base)
    like = parents[0].model if recipe.method != ADAPTER or base is None else base.model
    made = _made(recipe, parents, base)
    edges = [
        one.edge(MERGED_FROM, weight=weight)
        for one, weight in zip(parents, recipe.weights, strict=True)
    ]
    if base is not None:
        edges.append(base.edge(MERGED_ONTO))
    everyone = [*parents, base] if base is not None else list(parents)
    entry = write_model(
        objects,
        ModelSource(
            made.tensors,
            made.aliases,
            files=_files(like),
            metadata=with_recipe(like.metadata, recipe.to_json()),
            graph=_stored_graph(like),
        ),
        metrics=metrics,
        lineage=edges,
        known=[one.model.entry for one in everyone],
        progress=progress,
    )
    return Made(entry, tuple(_notes(made)))


def remake(
    model: Model, recipe: Recipe, parents: Sequence[Placed], base: Placed | None = None
) -> tuple[str, ...]:
    """Blend again what a recipe says, and compare with what is stored, tensor by tensor.

    Nothing is stored, and memory is bounded.

    Returns:
        Names of tensors that come out otherwise than they are stored; none: all are equal.
    """
    _check_named(recipe, parents, base)
    made = _made(recipe, parents, base)
    odd = set(made.tensors) ^ set(model.tensors) | set(made.aliases) ^ set(model.aliases)
    odd |= {
        name
        for name, tensor in made.tensors.items()
        if name in model.tensors and content_of(tensor) != model.content(name)
    }
    return tuple(sorted(odd))


def _made(recipe: Recipe, parents: Sequence[Placed], base: Placed | None) -> Blend:
    models, under = [one.model for one in parents], base.model if base is not None else None
    if recipe.method == ADAPTER and under is not None:
        return adapt(recipe, models, under)
    return blend(recipe, models, under)


def slice_model(objects: ObjectSink, source: Placed, first: str, last: str) -> Made:
    """The sub-network between two nodes of a model's graph, as a model of its own.

    Args:
        objects: where to store; the tensors are there already, and are not stored again.
        source: the model.
        first: a node, or a module, where it begins.
        last: where it ends, both included.

    Raises:
        NotFoundError: no such node.
        InvalidInputError: no way leads from the one to the other, or no tensor lies on it.
    """
    graph = model_graph(source.model)
    cut = between(graph, first, last)
    wanted = [name for name in cut.tensors() if name in source.model]
    if not wanted:
        raise InvalidInputError(f"no tensor lies between {first!r:.80} and {last!r:.80}")
    entry = write_model(
        objects,
        sliced_source(source.model, wanted, cut),
        lineage=[source.edge(SLICED_FROM, first=first, last=last, graph=graph.source)],
        known=[source.model.entry],
    )
    notes = () if graph.source != "names" else (
        "the graph is derived from names: it is one chain, and shows no branches",
    )  # fmt: skip
    return Made(entry, notes)


def sliced_source(model: Model, names: Iterable[str], graph: Graph) -> ModelSource:
    """Some tensors of a model, tied ones still tied, without its files."""
    wanted = sorted(names)
    groups: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for name in wanted:
        keeper = groups.setdefault(model.aliases.get(name, name), name)
        if keeper != name:
            aliases[name] = keeper
    tensors = {name: model.tensor(name) for name in wanted if name not in aliases}
    return ModelSource(tensors, aliases, metadata=model.metadata, graph=encode_graph(graph))


def _check_named(recipe: Recipe, parents: Sequence[Placed], base: Placed | None) -> None:
    found = tuple(one.digest for one in parents)
    under = base.digest if base is not None else None
    if found != recipe.parents or under != recipe.base:
        raise InvalidInputError("the recipe names other models than those given")


def _files(model: Model) -> dict[str, bytes]:
    return {name: b"".join(bytes(part) for part in model.file_chunks(name)) for name in model.files}


def _stored_graph(model: Model) -> bytes | None:
    if model.manifest.graph is None:
        return None
    return encode_graph(model_graph(model))


def _notes(made: Blend) -> Iterable[str]:
    if made.taken:
        names = ", ".join(made.taken[:5]) + (", ..." if len(made.taken) > 5 else "")
        count = counted(len(made.taken), "tensor")
        yield f"{count} without a mean taken from the first model: {names}"
