"""Worn packs: packs of which the models that are left use less than half.

A pack stays as a whole while anything in it is needed. When models that shared it go, the rest of
it is dead weight that no garbage collection takes; a repack of the models that still use it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.model.maintenance.repack import (
    RepackOptions,
    RepackReport,
    models_of_history,
    repack_models,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Digest

WORN_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class WornPack:
    """A pack, and how much of it is used.

    Attributes:
        digest: digest of the pack.
        bytes: size of the pack.
        used_bytes: bytes of its members that models of any commit use, each once.
    """

    digest: Digest
    bytes: int
    used_bytes: int

    @property
    def dead_bytes(self) -> int:
        """Bytes that nobody uses."""
        return self.bytes - self.used_bytes


def worn_packs(repository: RepositoryCore) -> tuple[WornPack, ...]:
    """Packs that the models of all commits use less than half of, by digest."""
    objects = repository.objects
    used: dict[Digest, dict[int, int]] = {}
    sizes: dict[Digest, int] = {}
    storages = {
        entry.storage
        for model in models_of_history(repository, repository.log.refresh())
        for entry in model.entries
        if entry.storage is not None
    }
    for storage in sorted(storages):
        envelope = objects.get(storage)
        sizes |= {link.digest: link.bytes for link in envelope.links}
        placement = decode_placement(envelope.payload, storage)
        packs = [pack.digest for pack in placement.packs]
        held = (member for tensor in placement.tensors for member in tensor.members)
        for member in (*held, *placement.bases):
            used.setdefault(packs[member.pack], {})[member.member] = member.stored_bytes
    found = (WornPack(pack, sizes[pack], sum(used[pack].values())) for pack in sorted(used))
    return tuple(pack for pack in found if pack.used_bytes < WORN_SHARE * pack.bytes)


def repack_worn(
    repository: RepositoryCore, options: RepackOptions, clock: Callable[[], float]
) -> RepackReport | None:
    """Store the models that use worn packs anew, without the rest; None when no pack is worn.

    Arguments and errors are those of `repack_models`.
    """
    worn = worn_packs(repository)
    if not worn:
        return None
    of_worn = replace(options, packs=frozenset(pack.digest for pack in worn))
    return repack_models(repository, of_worn, clock)
