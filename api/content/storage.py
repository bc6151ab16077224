"""Storage of a repository: what refs, datasets and models take, kept up to date by what commits."""

from __future__ import annotations

import threading

from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.formats.common.summaries import decoded_bytes
from tensorrepo.repo.changes.kept_owners import KeptOwners
from tensorrepo.repo.changes.owner_usage import Owners, OwnersUsage


class OwnerBytes(BaseModel):
    """Bytes of one ref, dataset or model, with its history."""

    model_config = ConfigDict(frozen=True)

    owner: str = Field(description="Full name of the ref, or path.")
    logical_bytes: int = Field(description="Content when decoded, as if nothing were shared.")
    stored_bytes: int = Field(description="All objects that it leads to, each once.")
    shared_bytes: int = Field(description="Those that others lead to as well.")
    unique_bytes: int = Field(description="Those that no other leads to.")
    reclaimable_bytes: int = Field(description="Those that would go with it.")


class StorageInfo(BaseModel):
    """Storage by ref, dataset or model."""

    model_config = ConfigDict(frozen=True)

    by: str
    owners: list[OwnerBytes]
    stored_bytes: int = Field(description="Objects that any of them leads to, each once.")
    total_bytes: int = Field(description="All objects in the store.")


class StorageMemory:
    """The last counts of a repository. One request counts, others wait for what it finds.

    What counts by refs keep in memory, or by paths, is some 20 bytes an object, and bitmaps of what
    owners share.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Owners, tuple[int, OwnersUsage]] = {}
        self._kept = {by: KeptOwners(by) for by in Owners}

    def measure(self, access: RepositoryAccess, by: Owners) -> OwnersUsage:
        generation = access.view.generation
        with self._lock:
            known = self._known.get(by)
            if known is None or known[0] < generation:
                known = (generation, self._kept[by].measure(access.core, decoded_bytes))
                self._known[by] = known
        return known[1]


def storage_info(access: RepositoryAccess, by: Owners) -> StorageInfo:
    """What each owner takes. Raises PermissionDenied for who may not read every ref."""
    access.require(Action.READ)
    found = access.served.kept(_memory).measure(access, by)
    return StorageInfo.model_validate(found.to_json())


def _memory(_: ServedRepository) -> StorageMemory:
    return StorageMemory()
