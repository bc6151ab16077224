"""Similar models: by signatures, and by the bases that tensors were encoded against.

Signatures stand in the directories of packs. No tensor is read but some of models whose tensors are
all too small to have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.model.delta.similarity import ALIKE_BITS
from tensorrepo.formats.model.layout.fingerprints import architecture_fingerprint
from tensorrepo.formats.model.layout.manifest import piece_name
from tensorrepo.formats.model.layout.placement import ChosenBase
from tensorrepo.formats.model.maintenance.usage import Reached
from tensorrepo.formats.model.read.frames import PiecedTensor, StoredFrames
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import BaseModel, open_base, rank
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.tables import Cell, RecordTable, Shown


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like one model is.

    Attributes:
        model: the other one.
        bits: how many of 16 differ per element between the largest tensors of both, by estimate.
        same_architecture: whether all names, types and shapes are equal.
        base: why tensors were encoded against it ("declared", "similar", "repack"); None: none is.
    """

    model: Reached
    bits: float
    same_architecture: bool
    base: str | None

    @property
    def is_alike(self) -> bool:
        """Whether a delta against it is worth a trial."""
        return self.bits <= ALIKE_BITS

    def to_json(self) -> dict[str, Any]:
        return {
            "digest": self.model.digest,
            "names": [f"{ref}:{path}" for ref, path in self.model.names],
            "bits": self.bits,
            "alike": self.is_alike,
            "same_architecture": self.same_architecture,
            "base": self.base,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Similarity(Shown):
    """The models that are like one, the nearest first, and the bases it was encoded against.

    `bases` may be gone since, and are then in no ranking. Models that share less than half of the
    bytes' names, types and shapes, or have no tensor that can be compared, are `unlike`.
    """

    bases: tuple[ChosenBase, ...]
    ranking: tuple[Likeness, ...]
    unlike: int

    def to_table(self) -> RecordTable:
        """The ranking, below the bases."""
        bases = [f"base {one.digest:.12}: {one.why}" for one in self.bases]
        columns: dict[str, Cell] = {
            "model": lambda one: ", ".join(path for _, path in one.model.names[:3]),
            "digest": lambda one: one.model.digest[:12],
            ">bits": lambda one: f"{one.bits:.1f} of 16",
            "architecture": lambda one: "the same" if one.same_architecture else "",
        }
        title = f"{counted(len(self.ranking), 'model')} to compare with, {self.unlike:,} unlike"
        return RecordTable.of(self.ranking, columns, title, *bases)

    def to_json(self) -> dict[str, Any]:
        return {
            "bases": [
                {
                    "digest": base.digest,
                    "why": base.why,
                    "tensors": base.tensors,
                    "bits": base.bits,
                }
                for base in self.bases
            ],
            "ranking": [one.to_json() for one in self.ranking],
            "unlike": self.unlike,
        }


def similar_models(
    objects: ObjectSource,
    entry: Entry,
    models: Sequence[Reached],
) -> Similarity:
    """The models that are like the one at `entry`, of those given.

    One is looked at at a time.

    Raises:
        CorruptError, NotFoundError, UnsupportedError: the model itself cannot be read. Others that
            cannot be are not alike.
    """
    model = open_model(objects, entry)
    own = open_base(objects, entry, "similar", cache_bytes=0)
    signatures = {} if own is None else _signatures(own)
    tensors = dict(piece_readers(model))
    bases = () if own is None else own.placement.chosen
    found, others = [], [one for one in models if one.digest != entry.digest]
    for other in others:
        candidate = open_base(objects, other.entries[0], "similar", cache_bytes=0)
        ranked = [] if candidate is None else rank([candidate], tensors, signatures)
        found += [_likeness(model, other, bits, bases) for bits, _ in ranked]
    found.sort(key=lambda one: (one.bits, one.model.digest))
    return Similarity(bases, tuple(found), len(others) - len(found))


def _likeness(
    model: StoredModel, other: Reached, bits: float, bases: Sequence[ChosenBase]
) -> Likeness:
    theirs = open_model(model.objects, other.entries[0])
    one, two = (architecture_fingerprint(map(each.spec, each)) for each in (model, theirs))
    why = {base.digest: base.why for base in bases}
    return Likeness(other, bits, one == two, why.get(other.digest))


def piece_readers(model: StoredModel) -> Iterator[tuple[str, StoredFrames]]:
    """Readers of tensors, of several pieces those of each, by the names that bases have."""
    for entry in model.manifest.tensors:
        reader = model.tensor(entry.name)
        if not isinstance(reader, PiecedTensor):
            yield entry.name, reader
            continue
        for offset, part in reader.parts:
            yield piece_name(entry.name, entry.shape, offset, part.shape), part


def _signatures(model: BaseModel) -> dict[str, object]:
    """The signatures of a model's own tensors; None for those without."""
    found: dict[str, object] = {}
    for name, (_, _, print_) in model.tensors().items():
        members = model.stored.get(print_ or b"", ())
        known = model.members.directory(members[0].pack).signatures if members else {}
        found[name] = known.get(members[0].member) if members else None
    return found
