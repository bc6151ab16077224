"""Inventory of a repack: each tensor of a set of models once, and how it is stored now.

A few hundred bytes for each tensor. Of models as many stay open, and of verified frames as many are
kept, as their limits allow: a plan looks at each tensor several times, as what is to be stored and
as a base of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import cached_property
from typing import Any, Final

import msgspec
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.similarity import SIGNATURE_ITEMS, look
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.maintenance.similar_models import piece_readers
from tensorrepo.formats.model.read.frames import StoredFrames
from tensorrepo.formats.model.read.members import MemberCache
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import BaseModel
from tensorrepo.formats.model.write.encoding import LEAST_BYTES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ObjectSource, mending

LOOKED_BYTES: Final = 1 << 20  # of a tensor without a signature that is read for one
OPEN_MODELS: Final = 4  # that stay open at least
OPEN_FRAMES: Final = 1 << 14  # of all models that stay open: each takes about 1 KiB
FRAME_BYTES: Final = 512 << 10  # of a frame of BF16
KEPT_BYTES: Final = 64 << 20  # of verified frames; of bases that they are decoded from, as many


GlobalPlace = tuple[bytes, int]  # a pack's digest, and the number of a member in it


@dataclass(frozen=True, slots=True, eq=False)
class InventoryTensor:
    """A tensor, and one place where it is read.

    Attributes:
        fingerprint: fingerprint of its content.
        model: number of the first model that has it.
        kind: (name there, type, shape): tensors of one kind may be bases of one another.
        size_bytes: as it is in memory.
        stored_bytes: what its members take now.
        signature: see `signature`; None for a small one.
        codec: codec of its first member now.
        params: parameters of that codec.
        bases: where the members lie that it is encoded against now, as the codec takes them.
    """

    fingerprint: bytes
    model: int
    kind: tuple[str, str, tuple[int, ...]]
    size_bytes: int
    stored_bytes: int
    signature: NDArray[Any] | None
    codec: str
    params: bytes
    bases: tuple[GlobalPlace, ...]

    @property
    def name(self) -> str:
        return self.kind[0]


class OpenModel:
    """A model whose tensors are read."""

    def __init__(self, model: StoredModel) -> None:
        self._model = model

    @cached_property
    def readers(self) -> dict[str, StoredFrames]:
        return dict(piece_readers(self._model))


def _opened(model: StoredModel) -> tuple[OpenModel, int]:
    """A model that stays open, and how many frames it counts as; a few always have room."""
    frames = len(model.tensors) + model.size_bytes // FRAME_BYTES
    return OpenModel(model), min(frames, OPEN_FRAMES // OPEN_MODELS)


class KeptTensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor whose frames are kept for a while once they were verified: a `TensorReader`."""

    number: int
    stored: StoredFrames
    kept: LimitedCache[memoryview]

    @property
    def type(self) -> TensorType:
        return self.stored.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        index, skip = divmod(start_byte, frame_bytes(self.type))
        is_whole = not skip and buffer.nbytes == self.stored.frames[index].frame.size_bytes
        if not is_whole or not buffer.nbytes:
            self.stored.read_into(start_byte, buffer)
            return
        key = self.number, index
        frame = self.kept.get(key)
        if frame is None:
            self.stored.frame_into(index, buffer)
            self.kept.put(key, memoryview(bytes(buffer)), buffer.nbytes)
        else:
            buffer[:] = frame


@dataclass(slots=True)
class Inventory:
    """Models, each by one placement, and their tensors by number."""

    objects: ObjectSource
    entries: list[Entry] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes of each one's tensors
    tensors: list[InventoryTensor] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    models: list[tuple[int, ...]] = field(default_factory=list)  # numbers of each one's tensors
    _owners: dict[GlobalPlace, bytes] = field(default_factory=dict)  # of members: fingerprints
    _open: LimitedCache[OpenModel] = field(default_factory=lambda: LimitedCache(OPEN_FRAMES))
    _cache: MemberCache = field(default_factory=lambda: MemberCache(KEPT_BYTES))
    _frames: LimitedCache[memoryview] = field(default_factory=lambda: LimitedCache(KEPT_BYTES))

    def add(self, entry: Entry) -> None:
        """Take stock of one model. Raises CorruptError: what cannot be read is not stored anew."""
        try:
            stored = open_model(self.objects, entry, self._cache)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            raise CorruptError(
                f"model {entry.digest:.12} cannot be read. {mending(self.objects, entry.digest)}."
            ) from error
        reads = stored.packs
        base = BaseModel(entry, stored.manifest, reads.placement, reads.members, "repack")
        model, found = len(self.entries), []
        self.entries.append(entry)
        self.sizes.append(stored.size_bytes)
        self._open.put(model, *_opened(stored))
        types = base.manifest.type_table()
        packs = [pack.pack for pack in base.placement.packs]
        for owner, members in base.stored.items():
            for member in members:
                self._owners[packs[member.pack], member.member] = owner
        for name, (element, shape, print_) in base.tensors().items():
            if print_ is None:
                continue
            if print_ not in self.numbers:
                self.numbers[print_] = len(self.tensors)
                members = base.stored[print_]
                first = members[0]
                self.tensors.append(
                    InventoryTensor(
                        print_,
                        model,
                        (name, element, shape),
                        types[element].bytes_of(shape),
                        sum(member.stored_bytes for member in members),
                        base.members.directory(first.pack).signatures.get(first.member),
                        first.codec,
                        base.members.member(first.place).params,
                        tuple((packs[pack], member) for pack, member in first.bases),
                    )
                )
            found.append(self.numbers[print_])
        self.models.append(tuple(found))

    def bases(self, number: int) -> tuple[int, ...] | None:
        """The tensors that one is encoded against now; None: one of them is of no model here."""
        owners = [self._owners.get(place) for place in self.tensors[number].bases]
        found = [None if print_ is None else self.numbers.get(print_) for print_ in owners]
        known = tuple(one for one in found if one is not None)
        return known if len(known) == len(found) else None

    def reader(self, number: int) -> KeptTensor:
        """Reads a tensor, verified."""
        holding = self.tensors[number]
        entry = self.entries[holding.model]
        model = self._open.get_or_load(
            holding.model, lambda: _opened(open_model(self.objects, entry, self._cache))
        )
        return KeptTensor(number, model.readers[holding.name], self._frames)

    def signature(self, number: int) -> NDArray[Any] | None:
        """Signature of a tensor, of a small one by reading it; None where it is not worth that."""
        holding = self.tensors[number]
        is_looked_at = LEAST_BYTES <= holding.size_bytes <= LOOKED_BYTES
        if holding.signature is not None or not is_looked_at:
            return holding.signature
        found = look(self.reader(number))
        return None if found is None else found[:SIGNATURE_ITEMS]


def take_stock(objects: ObjectSource, entries: Iterable[Entry]) -> Inventory:
    """The tensors of models. Those that share a placement count once."""
    stock = Inventory(objects)
    seen: set[Digest | None] = set()
    for entry in entries:
        if entry.storage not in seen:
            seen.add(entry.storage)
            stock.add(entry)
    return stock
