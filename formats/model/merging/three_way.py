"""Three-way merge of models, tensor by tensor.

Only an explicit merge asks. A tensor that one side changed is taken from it; one that both changed
is contested, unless they changed it alike. A contested tensor is settled by a named strategy, or it
is a conflict that says how far each side moved it. The model that comes of it was never run: it
has the metrics of neither side, and its lineage names both.

Never tensors from both by a rebase: nobody looks, and it would make weights that nobody trained.
An explicit merge joins tensors that only one side changed; what both changed is a conflict, or is
settled by the strategy that was named ("ours", "theirs", or a method that blends).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, TypeVar

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import MERGED_FROM, ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.comparison import contents_of, measure_change
from tensorrepo.formats.model.graph.graph import encode_graph
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.layout.manifest import decode_manifest
from tensorrepo.formats.model.layout.number_values import ROUNDABLE
from tensorrepo.formats.model.merging.blend import BlendedTensor
from tensorrepo.formats.model.merging.recipe import KEY, METHODS, WITH_BASE, make_recipe
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, ObjectSink, ObjectSource

SIDES: Final = ("ours", "theirs")
MEASURED: Final = 20  # contested tensors of which a conflict says how far they moved
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contest:
    """Something that both sides changed; `details` are JSON, "line" is for people."""

    what: str
    details: Mapping[str, Any]


@dataclass(slots=True)
class MergedModel:
    """The outcome: `source` is what to store; None with `contests`, or where all of one `side` is
    chosen.
    """

    source: ModelSource | None
    side: str | None = None
    lineage: tuple[ProvenanceEdge, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    contests: list[Contest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Versions:
    """Three versions of a model at one path; no `base` when both sides made it anew."""

    base: StoredModel | None
    ours: StoredModel
    theirs: StoredModel

    @property
    def sides(self) -> dict[str, StoredModel]:
        return {"ours": self.ours, "theirs": self.theirs}


def join_models(path: str, versions: Versions, strategy: str) -> MergedModel:
    """Join both sides' changes.

    Args:
        path: path of the model in its tree.
        versions: its three versions.
        strategy: for what both changed: "fail", one of `SIDES`, or one of `METHODS`, which blends
            tensors and takes everything else from ours.
    """
    joiner = _Joiner(versions, strategy)
    tensors = joiner.tensors()
    metadata = joiner.pick("metadata", *(_metadata(one) for one in joiner.all))
    files = joiner.pick("file", *(_files(one) for one in joiner.all))
    aliases = joiner.aliases(tensors)
    if joiner.contests:
        return MergedModel(None, contests=joiner.contests)
    for side, model in versions.sides.items():
        same = files == _files(model) and metadata == _metadata(model)
        if same and aliases == model.aliases and side in joiner.whole:
            return MergedModel(None, side=side)
    source = ModelSource(
        {name: tensor for name, tensor in tensors.items() if name not in aliases},
        aliases,
        files={name: _content(name, sha256, versions) for name, sha256 in files.items()},
        metadata=metadata,
        graph=joiner.graph(),
    )
    edges = tuple(
        ProvenanceEdge(
            MERGED_FROM, path, one.entry.digest, None, {"side": side, "strategy": strategy}
        )
        for side, one in versions.sides.items()
    )
    return MergedModel(source, lineage=edges, metrics=joiner.metrics())


class _Joiner:
    def __init__(self, versions: Versions, strategy: str) -> None:
        self.all = (versions.base, versions.ours, versions.theirs)
        self.contests: list[Contest] = []
        self._versions = versions
        self._strategy = strategy
        self._measured = 0
        self._known: dict[str, tuple[Any, ...]] = {}
        self.whole = set(SIDES)  # whose tensors the joined ones are, all of them

    def tensors(self) -> dict[str, TensorReader]:
        names = sorted({name for one in self.all if one is not None for name in one.keys()})  # noqa: SIM118  # a Model is no dict
        found: dict[str, TensorReader] = {}
        for name in names:
            identities = self._identities(name)
            side = self._side(identities) or (self._strategy if self._strategy in SIDES else None)
            if side is None:
                tensor = self._contested(name)
                self.whole.clear()
            else:
                chosen = self._versions.sides[side]
                tensor = chosen.tensor(name) if name in chosen else None
                if identities[1] != identities[2]:
                    self.whole &= {side}
            if tensor is not None:
                found[name] = tensor
        return found

    def pick(
        self, what: str, base: Mapping[str, T], ours: Mapping[str, T], theirs: Mapping[str, T]
    ) -> dict[str, T]:
        """Three-way over named values."""
        found: dict[str, T] = {}
        for name in sorted({*base, *ours, *theirs}):
            side = self._side(tuple(one.get(name) for one in (base, ours, theirs)))
            if side is None and self._strategy == "fail":
                line = f"{what} {name!r} changed on both sides"
                self.contests.append(Contest(what, {what: name, "line": line}))
                continue
            chosen = theirs if "theirs" in (side, side or self._strategy) else ours
            if name in chosen:
                found[name] = chosen[name]
        return found

    def aliases(self, tensors: Mapping[str, TensorReader]) -> dict[str, str]:
        """Ties that both sides have, or that one side made and the other left alone."""
        ours, theirs = self._versions.ours.aliases, self._versions.theirs.aliases
        base = {} if self._versions.base is None else self._versions.base.aliases
        found = {}
        for name in sorted({*ours, *theirs} & tensors.keys()):
            told = base.get(name), ours.get(name), theirs.get(name)
            target = {"ours": told[1], "theirs": told[2], None: None}[self._side(told)]
            if target is None or target not in tensors:
                continue
            tied = [side for side, its in zip(SIDES, told[1:], strict=True) if its == target]
            moved = {self._side(self._identities(one)) for one in (name, target)}
            both = len(tied) == len(SIDES) and len(moved) == 1
            if both or any(self._is_of(side, name, target) for side in tied):
                found[name] = target
        return found

    def graph(self) -> bytes | None:
        """The graph that one side changed; none when both did: it is derived then."""
        side = self._side(tuple(one and one.manifest.graph for one in self.all))
        chosen = self._versions.theirs if side == "theirs" else self._versions.ours
        if side is None or chosen.manifest.graph is None:
            return None
        return encode_graph(model_graph(chosen))

    def metrics(self) -> dict[str, Any]:
        """Those of the side whose tensors all of these are; none of weights that nobody ran."""
        sides = self._versions.sides.items()
        return next((dict(one.metrics) for side, one in sides if side in self.whole), {})

    def _is_of(self, side: str, *names: str) -> bool:
        """Whether the joined tensors of these names are what that side has."""
        told = [(self._side(one), one) for one in map(self._identities, names)]
        at = {"ours": 1, "theirs": 2}
        return all(chosen and one[at[chosen]] == one[at[side]] for chosen, one in told)

    def _identities(self, name: str) -> tuple[Any, ...]:
        """Of each version what is equal where the tensor is; None where it is not there."""
        if name not in self._known:
            held = [one for one in self.all if one is not None and name in one]
            forms = [(spec.type.name, spec.shape) for spec in (one.spec(name) for one in held)]
            alike = len(set(forms)) == 1
            found = contents_of(held, name) if alike else [one.content(name) for one in held]
            told = iter([(*form, content) for form, content in zip(forms, found, strict=True)])
            self._known[name] = tuple(
                next(told) if one is not None and name in one else None for one in self.all
            )
        return self._known[name]

    def _side(self, identities: tuple[Any, ...]) -> str | None:
        """Whose version counts; None when both sides changed it, each in another way."""
        base, ours, theirs = identities
        if theirs in (ours, base):
            return "ours"
        return "theirs" if ours == base else None

    def _contested(self, name: str) -> TensorReader | None:
        reason = self._cannot_blend(name) if self._strategy in METHODS else ""
        if reason is None:
            return self._blended(name)
        if self._strategy in METHODS and not reason:
            return self._versions.ours.tensor(name)  # a counter, or a mask: the first one's
        self._refuse(name, reason)
        return None

    def _cannot_blend(self, name: str) -> str | None:
        """Why a tensor is not blended; "": it has no mean, and one side's will do."""
        base, ours, theirs = self.all
        needed = [ours, theirs, base] if self._strategy in WITH_BASE else [ours, theirs]
        if any(one is None or name not in one for one in needed):
            return f"{self._strategy} needs it on each side"
        specs = [one.spec(name) for one in needed if one is not None]
        if len({(spec.type, spec.shape) for spec in specs}) > 1:
            return "its shape or type changed"
        if specs[0].type.name not in ROUNDABLE:
            counts = specs[0].type.numpy is not None
            return "" if counts else f"{specs[0].type.name} has no mean"
        return None

    def _blended(self, name: str) -> BlendedTensor:
        sides = list(self._versions.sides.values())
        under = self._versions.base if self._strategy in WITH_BASE else None
        recipe = make_recipe(
            self._strategy,
            tuple(one.entry.digest for one in sides),
            base=under.entry.digest if under is not None else None,
        )
        readers = [one.tensor(name) for one in sides]
        return BlendedTensor(recipe, readers, under.tensor(name) if under is not None else None)

    def _refuse(self, name: str, reason: str) -> None:
        moves: dict[str, Any] = {}
        base = self._versions.base
        if base is not None and self._measured < MEASURED:
            self._measured += 1
            moves = {side: _move(base, one, name) for side, one in self._versions.sides.items()}
        told = "; ".join(f"{side} {_move_text(move)}" for side, move in moves.items())
        line = f"tensor {name!r} changed on both sides"
        line += f" ({reason})" if reason else ""
        self.contests.append(
            Contest(
                "tensor", {"tensor": name, **moves, "line": f"{line}: {told}" if told else line}
            )
        )


def _move(base: StoredModel, side: StoredModel, name: str) -> dict[str, Any]:
    """How far a side moved a tensor."""
    if name not in side:
        return {"removed": True}
    if name not in base:
        return {"added": True}
    before, after = base.spec(name), side.spec(name)
    if (before.type, before.shape) != (after.type, after.shape):
        return {"retyped": [after.type.name, list(after.shape)]}
    change = measure_change(base, side, after)
    return {"changed_fraction": change.changed_fraction, "l2": change.l2, "max_abs": change.max_abs}


def _move_text(move: Mapping[str, Any]) -> str:
    if "l2" not in move:
        return " ".join(move)
    length = "" if move["l2"] is None else f" by L2 {move['l2']:.3g}"
    return f"moved {move['changed_fraction']:.2%}{length}"


def _files(model: StoredModel | None) -> dict[str, str]:
    if model is None:
        return {}
    return {name: file.sha256.hex() for name, file in model.files.items()}


def _metadata(model: StoredModel | None) -> dict[str, Any]:
    """Metadata, but for the recipe: what it made is no more."""
    if model is None:
        return {}
    return {key: value for key, value in model.metadata.items() if key != KEY}


def _content(name: str, sha256: str, versions: Versions) -> bytes:
    model = versions.ours if _files(versions.ours).get(name) == sha256 else versions.theirs
    return model.file(name)


class ModelMergeDriver:
    """Decides for entries of kind MODEL."""

    def held_purged(
        self,
        objects: ObjectSource,
        path: str,  # noqa: ARG002  equal bytes are a tensor wherever they are
        entry: Entry,
        state: State,
    ) -> str | None:
        """What a model holds that was purged; see `purge_guard.KnowsPurged`."""
        every = {print_ for each in state.purged_columns.values() for print_ in each}
        for tensor in decode_manifest(objects.get(entry.digest).payload, entry.digest).tensors:
            prints = {piece.fingerprint.hex() for piece in tensor.pieces if piece.fingerprint}
            if prints & every:
                return f"tensor {tensor.name!r}"
        return None

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        if ours.digest == theirs.digest:
            return ours  # the same content, stored in two ways
        if base is not None and base.digest in {ours.digest, theirs.digest}:
            return theirs if base.digest == ours.digest else ours
        digests = (base.digest if base is not None else None, ours.digest, theirs.digest)
        if context.automatic:
            reason = (
                "both sides saved another model here, and weights are never combined by "
                "themselves. Merge the branches: that joins tensors which one side changed, and "
                "--strategy settles the others"
            )
            return Conflict(path, Kind.MODEL, *digests, reason)
        versions = Versions(
            None if base is None else open_model(objects, base),
            open_model(objects, ours),
            open_model(objects, theirs),
        )
        joined = join_models(path, versions, context.strategy)
        if joined.side is not None:
            return ours if joined.side == "ours" else theirs
        if joined.source is None:
            details = tuple(contest.details for contest in joined.contests)
            return Conflict(
                path, Kind.MODEL, *digests, _reason(joined.contests, base is not None), details
            )
        return write_model(
            objects,
            joined.source,
            metrics=joined.metrics,
            lineage=joined.lineage,
            known=[ours, theirs],
        )


def _reason(contests: list[Contest], has_base: bool) -> str:
    tensors = sum(1 for contest in contests if contest.what == "tensor")
    others = len(contests) - tensors
    parts = [counted(tensors, "tensor")] if tensors else []
    parts += [counted(others, "file or setting", "files or settings")] if others else []
    made = "changed on both sides" if has_base else "saved on both sides without a common version"
    return (
        f"{' and '.join(parts)} {made}. Choose with --strategy: ours, theirs, average, slerp, "
        "task-arithmetic or ties"
    )
