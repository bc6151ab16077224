"""Files that were proved when they arrived, and what shows later that they are the same still.

    <sha256>         the file
    <sha256>.xxh3    XXH3 (128 bits) of its bytes, noted when they were proved

The commit that takes a file compares what it stores with it. That it is still what was proved is
seen by the checksum, at a sixth of what another SHA-256 would cost. Where there is none, after a
crash, that is what is computed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import xxhash

from tensorrepo.repo.ids import Buffer

_CHECKSUM_BYTES = 16


class ProofHasher:
    """Both hashes of bytes that come one after the other."""

    def __init__(self) -> None:
        self._proof, self._checksum = hashlib.sha256(), xxhash.xxh3_128()

    def update(self, data: Buffer) -> None:
        self._proof.update(data)
        self._checksum.update(data)

    @property
    def sha256(self) -> str:
        return self._proof.hexdigest()

    @property
    def checksum(self) -> bytes:
        return self._checksum.digest()


def keep(path: Path, target: Path, checksum: bytes) -> None:
    """Let a durable file that was proved have the name `target`."""
    _checksum_of(target).write_bytes(checksum)
    path.rename(target)


def checksum_of(target: Path) -> bytes | None:
    """What `keep` noted; None: it is not known."""
    try:
        found = _checksum_of(target).read_bytes()
    except OSError:
        return None
    return found if len(found) == _CHECKSUM_BYTES else None


def forget(target: Path) -> None:
    target.unlink(missing_ok=True)
    _checksum_of(target).unlink(missing_ok=True)


def _checksum_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.xxh3")
