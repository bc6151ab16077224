"""Models made of stored ones: blended, made again, cut out, or assembled for a new architecture.

Each gives the entry to stage. Tensors that a parent holds are not stored again, and what a model
was made of is in its lineage.

Tensor by tensor: what the caller gives; else that of a donor with the same name, shape and type;
else that of the node that a donor shares with the architecture's graph (the longest common prefix:
names may differ); else values by a stated rule. Where each came from is kept in the model.

A rule's numbers are a function of the tensor's name, the seed and the place in it: any stretch can
be made alone, and every machine makes the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod, sqrt
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted, first_names
from tensorrepo.formats.common.provenance import (
    CONSTRUCTED_FROM,
    MERGED_FROM,
    MERGED_ONTO,
    SLICED_FROM,
    ProvenanceEdge,
)
from tensorrepo.formats.common.tensors import TYPES, TensorReader, TensorType, tensor_of
from tensorrepo.formats.model.comparison import content_of
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import (
    Graph,
    Parameter,
    between,
    common_prefix,
    encode_graph,
)
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.layout.fingerprints import FRAME_ELEMENTS, frame_bytes
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, rounded
from tensorrepo.formats.model.merging.adapters import adapt
from tensorrepo.formats.model.merging.blend import Blend, blend, has_alike
from tensorrepo.formats.model.merging.recipe import ADAPTER, Recipe, with_recipe
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import ModelSource, source_of
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSink

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A stored model, and where it was found, for the lineage of what is made of it."""

    model: StoredModel
    path: str
    commit: Digest | None = None

    @property
    def digest(self) -> Digest:
        return self.model.entry.digest

    def edge(self, relation: str, **details: Any) -> ProvenanceEdge:
        return ProvenanceEdge(relation, self.path, self.digest, self.commit, details)


@dataclass(frozen=True, slots=True)
class NewModel:
    """An entry to stage; `notes` are for people."""

    entry: Entry
    notes: tuple[str, ...] = ()


def merge_models(
    objects: ObjectSink,
    recipe: Recipe,
    parents: Sequence[ModelRef],
    base: ModelRef | None = None,
    *,
    metrics: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> NewModel:
    """Blend models by a recipe, or put adapters into their base.

    Files and metadata are the first parent's, of adapters the base's; metrics are nobody's.

    Args:
        objects: where to store.
        recipe: settings, and the models by digest.
        parents: models to blend, or adapters, in the recipe's order.
        base: model that the recipe names as its base.
        metrics: metrics that were measured of the blend.
        progress: callable that is told the tensors and bytes done so far.

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
            files={name: like.file(name) for name in like.files},
            metadata=with_recipe(like.metadata, recipe.to_json()),
            graph=None if like.manifest.graph is None else encode_graph(model_graph(like)),
        ),
        metrics=metrics,
        lineage=edges,
        known=[one.model.entry for one in everyone],
        progress=progress,
    )
    return NewModel(entry, tuple(_notes(made)))


def remake(
    model: StoredModel, recipe: Recipe, parents: Sequence[ModelRef], base: ModelRef | None = None
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


def _made(recipe: Recipe, parents: Sequence[ModelRef], base: ModelRef | None) -> Blend:
    models, under = [one.model for one in parents], base.model if base is not None else None
    if recipe.method == ADAPTER and under is not None:
        return adapt(recipe, models, under)
    return blend(recipe, models, under)


def slice_model(objects: ObjectSink, source: ModelRef, first: str, last: str) -> NewModel:
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
    return NewModel(entry, notes)


def sliced_source(model: StoredModel, names: Iterable[str], graph: Graph) -> ModelSource:
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


def _check_named(recipe: Recipe, parents: Sequence[ModelRef], base: ModelRef | None) -> None:
    found = tuple(one.digest for one in parents)
    under = base.digest if base is not None else None
    if found != recipe.parents or under != recipe.base:
        raise InvalidInputError("the recipe names other models than those given")


def _notes(made: Blend) -> Iterable[str]:
    if made.taken:
        names = ", ".join(made.taken[:5]) + (", ..." if len(made.taken) > 5 else "")
        count = counted(len(made.taken), "tensor")
        yield f"{count} without a mean taken from the first model: {names}"


RULES: Final = ("default", "normal", "ones", "uniform", "zeros")
NORMAL_DEVIATION: Final = 0.02
_SUMMANDS: Final = 12


@dataclass(frozen=True, slots=True)
class FilledTensor:
    """A `TensorReader` of a rule's numbers: `low` + (`high` - `low`) * a draw, constant if equal.

    `summands`: how many draws from [0, 1) each number is the sum of.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    low: float
    high: float
    summands: int
    seed: int

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        if self.low == self.high == 0:  # of any type: all bits are zero
            np.frombuffer(buffer, np.uint8)[:] = 0
            return
        size, at = frame_bytes(self.type), 0
        while at < buffer.nbytes:
            frame, skip = divmod(start_byte + at, size)
            part = min(size - skip, buffer.nbytes - at)
            data = rounded(self._values(frame), self.type)
            np.frombuffer(buffer, np.uint8)[at : at + part] = data[skip : skip + part]
            at += part

    def _values(self, frame: int) -> NDArray[Any]:
        count = min(FRAME_ELEMENTS, prod(self.shape) - frame * FRAME_ELEMENTS)
        if self.low == self.high:
            values = np.full(count, self.low)
        else:
            values = self.low + (self.high - self.low) * self._draws(frame, count)
        return values.astype(np.complex128) if self.type.name[0] == "C" else values

    def _draws(self, frame: int, count: int) -> NDArray[np.float64]:
        key = blake3(f"{self.seed}/{frame}/{self.name}".encode()).digest(16)
        # Raw bits of a counter-based generator: unlike its distributions, they never change.
        source = np.random.Philox(key=int.from_bytes(key, "little"))
        total = np.zeros(count)
        for _ in range(self.summands):
            bits: NDArray[np.uint64] = np.asarray(source.random_raw(count), np.uint64)
            total += (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return total / self.summands


def filled(
    name: str, element: TensorType, shape: tuple[int, ...], rule: str, seed: int
) -> FilledTensor:
    """A tensor by a rule.

    "zeros" and "ones" are that. "uniform" draws from (-1, 1) over the root of the fan-in, the
    product of all dimensions but the first. "normal" has mean 0 and deviation 0.02, as the mean of
    12 uniform draws, which is bounded at six deviations. "default" is "uniform" for two dimensions
    or more, ones for what is called "weight" else, zeros for the rest.

    Raises:
        InvalidInputError: an unknown rule, or a type that has no such numbers.
    """
    if rule not in RULES:
        raise InvalidInputError(f"no rule {rule!r:.40}: there are {', '.join(RULES)}")
    counts = element.numpy is not None and element.numpy.kind in "iub"
    if element.name not in ROUNDABLE and rule != "zeros" and not counts:
        raise InvalidInputError(f"tensor {name!r:.80}: no rule fills {element.name}; give it")
    low, high, summands = _bounds(name, shape, rule if element.name in ROUNDABLE else "zeros")
    return FilledTensor(name, element, shape, low, high, summands, seed)


def _bounds(name: str, shape: tuple[int, ...], rule: str) -> tuple[float, float, int]:
    if rule == "default":
        if len(shape) < 2:
            rule = "ones" if name.rpartition(".")[2] == "weight" else "zeros"
        else:
            rule = "uniform"
    if rule == "normal":
        # The mean of n draws from [0, 1) has the deviation 1 / sqrt(12 n).
        half = NORMAL_DEVIATION * sqrt(12 * _SUMMANDS) / 2
        return -half, half, _SUMMANDS
    if rule == "uniform":
        bound = 1 / sqrt(max(1, prod(shape[1:])))
        return -bound, bound, 1
    value = 1.0 if rule == "ones" else 0.0
    return value, value, 0


@dataclass(frozen=True, slots=True)
class WantedTensor:
    """A tensor of the new architecture."""

    name: str
    type: TensorType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a tensor comes from: a donor and its name there, else "given" or a rule."""

    reader: TensorReader
    donor: int | None
    name: str


def construct_model(
    objects: ObjectSink,
    target: Graph | StoredModel | Mapping[str, Any],
    donors: Sequence[ModelRef],
    *,
    tensors: Mapping[str, Any] | None = None,
    rule: str | None = None,
    seed: int = 0,
) -> NewModel:
    """Store a model of a new architecture.

    Args:
        objects: where to.
        target: a graph, a model whose architecture is meant, or what each tensor is like: values
            with `dtype` and `shape`, also without data (torch's device "meta"), or (type, shape).
        donors: models to take tensors from; the first that has one gives it.
        tensors: values that are known: they are taken before any donor's.
        rule: for what nobody has: "zeros", "ones", "normal", "uniform" or "default"; None: refuse.
        seed: seed of the rules that draw numbers.

    Raises:
        InvalidInputError: a tensor that nobody has and no rule; a value that does not fit.
    """
    wanted, graph = _wanted(target)
    given = source_of(dict(tensors or {})).named()
    origins: dict[str, _Origin] = {}
    mapped = [_by_prefix(graph, donor.model) for donor in donors]
    missing: list[str] = []
    for name, one in wanted.items():
        found = _given(one, given) or _donated(one, donors, mapped)
        if found is None and rule is not None:
            found = _Origin(filled(one.name, one.type, one.shape, rule, seed), None, rule)
        if found is None:
            missing.append(name)
        else:
            origins[name] = found
    _refuse(missing, sorted(set(given) - set(wanted)))
    entry = write_model(
        objects,
        ModelSource(
            {name: origin.reader for name, origin in origins.items()},
            metadata=with_recipe({}, _recipe(origins, donors, rule, seed)),
            graph=None if graph is None else encode_graph(graph),
        ),
        lineage=[
            donor.edge(CONSTRUCTED_FROM, tensors=_count(origins, at))
            for at, donor in enumerate(donors)
        ],
        known=[donor.model.entry for donor in donors],
    )
    return NewModel(entry, tuple(_construction_notes(origins, donors)))


def graph_wanted(target: Graph | Mapping[str, Any]) -> Graph:
    """The graph of what `construct_model` takes: its own, else what names and shapes suggest."""
    if isinstance(target, Graph):
        return target
    return derived_graph(_like(name, value) for name, value in target.items())


def wanted_of(rows: Mapping[str, Any]) -> dict[str, WantedTensor]:
    """The architecture in JSON: ``{name: {"type": "F32", "shape": [2, 3]}}``.

    Raises:
        InvalidInputError: something else.
    """
    found = {}
    for name, row in rows.items():
        try:
            element, shape = TYPES[row["type"]], tuple(int(dim) for dim in row["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"tensor {name!r:.80}: expected its type and shape, as "
                '{"type": "F32", "shape": [2, 3]}, got ' + f"{row!s:.80}"
            ) from error
        element.bytes_of(shape)
        found[name] = WantedTensor(name, element, shape)
    return found


def _wanted(
    target: Graph | StoredModel | Mapping[str, Any],
) -> tuple[dict[str, WantedTensor], Graph | None]:
    if isinstance(target, Graph):
        return {name: _parameter(one) for name, one in target.tensors().items()}, target
    if isinstance(target, StoredModel):
        graph = model_graph(target) if target.manifest.graph is not None else None
        specs = [target.spec(name) for name in target.keys()]  # noqa: SIM118  # a Model is no dict
        return {spec.name: WantedTensor(spec.name, spec.type, spec.shape) for spec in specs}, graph
    return {name: _like(name, value) for name, value in target.items()}, None


def _parameter(one: Parameter) -> WantedTensor:
    if one.type not in TYPES:
        raise InvalidInputError(f"tensor {one.tensor!r:.80}: unknown type {one.type!r:.40}")
    return WantedTensor(one.tensor, TYPES[one.type], one.shape)


def _like(name: str, value: Any) -> WantedTensor:
    if isinstance(value, WantedTensor):
        return value
    if isinstance(value, (tuple, list)):
        return wanted_of({name: {"type": value[0], "shape": value[1]}})[name]
    if str(getattr(value, "device", "")) == "meta":
        described = tensor_of(name, value.new_empty(0, device="cpu"))
        return WantedTensor(name, described.type, tuple(int(dim) for dim in value.shape))
    described = tensor_of(name, value)
    return WantedTensor(name, described.type, tuple(described.shape))


def _given(one: WantedTensor, given: Mapping[str, TensorReader]) -> _Origin | None:
    reader = given.get(one.name)
    if reader is None:
        return None
    if (reader.type, tuple(reader.shape)) != (one.type, one.shape):
        raise InvalidInputError(
            f"tensor {one.name!r:.80}: expected {one.type.name} {list(one.shape)}, given is "
            f"{reader.type.name} {list(reader.shape)}"
        )
    return _Origin(reader, None, "given")


def _donated(
    one: WantedTensor, donors: Sequence[ModelRef], mapped: Sequence[Mapping[str, str]]
) -> _Origin | None:
    names = [(at, one.name) for at in range(len(donors))]
    names += [(at, known[one.name]) for at, known in enumerate(mapped) if one.name in known]
    for at, name in names:
        if has_alike(donors[at].model, name, (one.type, one.shape)):
            return _Origin(donors[at].model.tensor(name), at, name)
    return None


def _by_prefix(graph: Graph | None, donor: StoredModel) -> dict[str, str]:
    """Tensors of the architecture, and the donor's at the same place of the common prefix."""
    if graph is None:
        return {}
    return {
        mine.tensor: theirs.tensor
        for one, other in common_prefix(graph, model_graph(donor))
        for mine, theirs in zip(one.parameters, other.parameters, strict=True)
    }


def _refuse(missing: list[str], unknown: list[str]) -> None:
    if missing:
        raise InvalidInputError(
            f"tensors that nobody has: {first_names(missing)}. Give them, or a rule to fill them by"
        )
    if unknown:
        raise InvalidInputError(f"tensors that the architecture has not: {first_names(unknown)}")


def _recipe(
    origins: Mapping[str, _Origin], donors: Sequence[ModelRef], rule: str | None, seed: int
) -> dict[str, Any]:
    """Where each tensor came from: [donor, name there], "given", or the rule."""
    tensors_from: dict[str, Any] = {
        name: origin.name if origin.donor is None else [origin.donor, origin.name]
        for name, origin in origins.items()
    }
    digests = [donor.digest for donor in donors]
    return {
        "verb": "construct",
        "donors": digests,
        "tensors": tensors_from,
        "rule": rule,
        "seed": seed,
    }


def _count(origins: Mapping[str, _Origin], donor: int) -> int:
    return sum(origin.donor == donor for origin in origins.values())


def _construction_notes(origins: Mapping[str, _Origin], donors: Sequence[ModelRef]) -> list[str]:
    own = Counter(origin.name for origin in origins.values() if origin.donor is None)
    notes = [
        f"{_count(origins, at)} of {counted(len(origins), 'tensor')} are those of {donor.path}"
        for at, donor in enumerate(donors)
    ]
    return notes + [f"{counted(count, 'tensor')}: {what}" for what, count in sorted(own.items())]
