"""Is this the repository that I knew?

Whoever can write to a store can also put back an older copy of it. A client therefore remembers
how far it read each repository, and refuses one whose past is shorter or different.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.ids import Digest, record_digest
from tensorrepo.repo.pending import read_small_json, remove_file, replace_file
from tensorrepo.repo.records import is_digest

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Remembered:
    """The newest record that was seen, and the digest of its bytes."""

    generation: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Memory:
    """One small file for each repository under `directory`, named by the digest of repo.json.

    A missing or damaged file means that nothing is remembered; it is never an error.
    """

    directory: Path

    def load(self, identity: bytes) -> Remembered | None:
        raw = read_small_json(self._path(identity))
        generation, digest = raw.get("gen"), raw.get("digest")
        if not isinstance(generation, int) or not isinstance(digest, str):
            return None
        good = generation > 0 and is_digest(digest)
        return Remembered(generation, Digest(digest)) if good else None

    def save(self, identity: bytes, seen: Remembered) -> None:
        """Remember `seen`, unless another process of this client got further meanwhile."""
        known = self.load(identity)
        if known is None or known.generation < seen.generation:
            replace_file(self._path(identity), {"gen": seen.generation, "digest": seen.digest})

    def forget(self, identity: bytes) -> None:
        """Accept whatever the repository is now, after a rewind that was meant."""
        remove_file(self._path(identity))

    def _path(self, identity: bytes) -> Path:
        return self.directory / f"{record_digest(identity)}.json"
