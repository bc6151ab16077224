"""Inventory of tensors in a set of models: each once, and how it is stored now.

What is known of a tensor is a few hundred bytes; few models are open at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.delta.base_choice import open_base
from tensorrepo.formats.model.maintenance.similar_models import piece_readers
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSource

if TYPE_CHECKING:
    from numpy.typing import NDArray


OPEN_MODELS: Final = 4  # each may keep decoded frames of bases


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
        bases: fingerprints of the tensors that it is encoded against now, as the codec takes them.
    """

    fingerprint: bytes
    model: int
    kind: tuple[str, str, tuple[int, ...]]
    size_bytes: int
    stored_bytes: int
    signature: NDArray[Any] | None
    codec: str
    params: bytes
    bases: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.kind[0]


@dataclass(slots=True)
class Inventory:
    """Models, each by one placement, and their tensors by number."""

    objects: ObjectSource
    entries: list[Entry] = field(default_factory=list)
    tensors: list[InventoryTensor] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    models: list[tuple[int, ...]] = field(default_factory=list)  # numbers of each one's tensors
    _open: OrderedDict[int, dict[str, TensorReader]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def add(self, entry: Entry) -> None:
        """Take stock of one model.

        Raises:
            CorruptError: it is not whole: what cannot be read is not stored anew.
        """
        base = open_base(self.objects, entry, "repack", cache_bytes=0)
        if base is None:
            raise CorruptError(
                f"model {entry.digest:.12} cannot be read. Run `tensorrepo doctor`; restore it "
                "from a copy of the repository."
            )
        model, found = len(self.entries), []
        self.entries.append(entry)
        types = base.manifest.type_table()
        owners = {
            member.place: print_ for print_, members in base.stored.items() for member in members
        }
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
                        tuple(owners.get(place, b"") for place in first.bases),
                    )
                )
            found.append(self.numbers[print_])
        self.models.append(tuple(found))

    def reader(self, number: int) -> TensorReader:
        """Reads a tensor, verified."""
        holding = self.tensors[number]
        with self._lock:
            readers = self._open.get(holding.model)
            if readers is None:
                model = open_model(self.objects, self.entries[holding.model])
                readers = self._open[holding.model] = dict(piece_readers(model))
            self._open.move_to_end(holding.model)
            while len(self._open) > OPEN_MODELS:
                self._open.popitem(last=False)
        return readers[holding.name]


def take_stock(objects: ObjectSource, entries: Iterable[Entry]) -> Inventory:
    """The tensors of models. Those that share a placement count once."""
    stock = Inventory(objects)
    seen: set[Digest | None] = set()
    for entry in entries:
        if entry.storage not in seen:
            seen.add(entry.storage)
            stock.add(entry)
    return stock
