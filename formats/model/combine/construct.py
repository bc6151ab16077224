"""How does a new architecture get its tensors from models that there are?

Tensor by tensor: what the caller gives; else that of a donor with the same name, shape and type;
else that of the node that a donor shares with the architecture's graph (the longest common prefix:
names may differ); else values by a stated rule. Where each came from is kept in the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.lineage import CONSTRUCTED_FROM
from tensorrepo.formats.model.combine.fill import filled
from tensorrepo.formats.model.combine.make import Made, Placed
from tensorrepo.formats.model.combine.recipe import with_recipe
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import Graph, Parameter, encode_graph
from tensorrepo.formats.model.graph.hashes import common_prefix
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.read import Model
from tensorrepo.formats.model.source import ModelSource, source_of
from tensorrepo.formats.model.write import write_model
from tensorrepo.formats.tensors import TYPES, tensor_of
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorrepo.formats.tensors import TensorReader, TensorType
    from tensorrepo.repo.objects import ObjectSink

SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Wanted:
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
    target: Graph | Model | Mapping[str, Any],
    donors: Sequence[Placed],
    *,
    tensors: Mapping[str, Any] | None = None,
    rule: str | None = None,
    seed: int = 0,
) -> Made:
    """Store a model of a new architecture.

    Args:
        objects: where to.
        target: a graph, a model whose architecture is meant, or what each tensor is like: values
            with `dtype` and `shape`, also without data (torch's device "meta"), or (type, shape).
        donors: models to take tensors from; the first that has one gives it.
        tensors: values that are known: they are taken before any donor's.
        rule: for what nobody has: "zeros", "ones", "normal", "uniform" or "default"; None: refuse.
        seed: of the rules that draw numbers.

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
    return Made(entry, tuple(_notes(origins, donors)))


def graph_wanted(target: Graph | Mapping[str, Any]) -> Graph:
    """The graph of what `construct_model` takes: its own, else what names and shapes suggest."""
    if isinstance(target, Graph):
        return target
    return derived_graph(_like(name, value) for name, value in target.items())


def wanted_of(rows: Mapping[str, Any]) -> dict[str, Wanted]:
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
        found[name] = Wanted(name, element, shape)
    return found


def _wanted(target: Graph | Model | Mapping[str, Any]) -> tuple[dict[str, Wanted], Graph | None]:
    if isinstance(target, Graph):
        return {name: _parameter(one) for name, one in target.tensors().items()}, target
    if isinstance(target, Model):
        graph = model_graph(target) if target.manifest.graph is not None else None
        specs = [target.spec(name) for name in target.keys()]  # noqa: SIM118  # a Model is no dict
        return {spec.name: Wanted(spec.name, spec.type, spec.shape) for spec in specs}, graph
    return {name: _like(name, value) for name, value in target.items()}, None


def _parameter(one: Parameter) -> Wanted:
    if one.type not in TYPES:
        raise InvalidInputError(f"tensor {one.tensor!r:.80}: unknown type {one.type!r:.40}")
    return Wanted(one.tensor, TYPES[one.type], one.shape)


def _like(name: str, value: Any) -> Wanted:
    if isinstance(value, Wanted):
        return value
    if isinstance(value, (tuple, list)):
        return wanted_of({name: {"type": value[0], "shape": value[1]}})[name]
    if str(getattr(value, "device", "")) == "meta":
        described = tensor_of(name, value.new_empty(0, device="cpu"))
        return Wanted(name, described.type, tuple(int(dim) for dim in value.shape))
    described = tensor_of(name, value)
    return Wanted(name, described.type, tuple(described.shape))


def _given(one: Wanted, given: Mapping[str, TensorReader]) -> _Origin | None:
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
    one: Wanted, donors: Sequence[Placed], mapped: Sequence[Mapping[str, str]]
) -> _Origin | None:
    for at, donor in enumerate(donors):
        if _fits(one, donor.model, one.name):
            return _Origin(donor.model.tensor(one.name), at, one.name)
    for at, donor in enumerate(donors):
        name = mapped[at].get(one.name)
        if name is not None and _fits(one, donor.model, name):
            return _Origin(donor.model.tensor(name), at, name)
    return None


def _fits(one: Wanted, model: Model, name: str) -> bool:
    if name not in model:
        return False
    spec = model.spec(name)
    return spec.type == one.type and spec.shape == one.shape


def _by_prefix(graph: Graph | None, donor: Model) -> dict[str, str]:
    """Tensors of the architecture, and the donor's at the same place of the common prefix."""
    if graph is None:
        return {}
    return {
        mine.tensor: theirs.tensor
        for one, other in common_prefix(graph, model_graph(donor))
        for mine, theirs in zip(one.parameters, other.parameters, strict=True)
    }


def _refuse(missing: list[str], unknown: list[str]) -> None:
    for names, told in ((missing, "nobody has"), (unknown, "the architecture has not")):
        if names:
            listed = ", ".join(repr(name) for name in names[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            hint = ". Give them, or a rule to fill them by" if names is missing else ""
            raise InvalidInputError(f"tensors that {told}: {listed}{more}{hint}")


def _recipe(
    origins: Mapping[str, _Origin], donors: Sequence[Placed], rule: str | None, seed: int
) -> dict[str, Any]:
    """Where each tensor came from: [donor, name there], "given", or the rule."""
    told: dict[str, Any] = {
        name: origin.name if origin.donor is None else [origin.donor, origin.name]
        for name, origin in origins.items()
    }
    digests = [donor.digest for donor in donors]
    return {"verb": "construct", "donors": digests, "tensors": told, "rule": rule, "seed": seed}


def _count(origins: Mapping[str, _Origin], donor: int) -> int:
    return sum(origin.donor == donor for origin in origins.values())


def _notes(origins: Mapping[str, _Origin], donors: Sequence[Placed]) -> list[str]:
    own = Counter(origin.name for origin in origins.values() if origin.donor is None)
    notes = [
        f"{_count(origins, at)} of {len(origins)} tensors are those of {donor.path}"
        for at, donor in enumerate(donors)
    ]
    return notes + [f"{count} tensors are {what}" for what, count in sorted(own.items())]
