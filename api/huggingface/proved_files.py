"""Files on their way that were hashed when they came: what proved them is noted beside them.

    <sha256>         a file of that SHA-256
    <sha256>.xxh3    XXH3 (128 bits) of its bytes, and the start of the machine that saw it proved

The commit that takes a file compares what it stores with it. That it is still what was proved is
seen by the checksum, at a sixth of what another SHA-256 would cost.

A file is not synced to the disk: it is needed until a commit has stored it, and most are gone
before the kernel has written them. What a power cut left of it is told by the start of the machine:
a file of an earlier one is proved again when it is asked for, and forgotten where it is another.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

import xxhash

from tensorrepo.formats.model.write.model_source import content_of
from tensorrepo.formats.runs.process import boot_id
from tensorrepo.repo.ids import Buffer

_CHECKSUM_BYTES: Final = 16
_READ_BYTES: Final = 1 << 20


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
    """Let a file that was proved have the name `target`, its SHA-256."""
    if not _start():
        with path.open("rb") as file:  # nothing would tell that the power failed
            os.fsync(file.fileno())
    _checksum_of(target).write_bytes(checksum + _start())
    path.rename(target)


def find_proved(target: Path) -> Path | None:
    """The file of that name, if it is what its name says; None: it is not, or not any more.

    One that an earlier start of the machine proved is read for that.
    """
    if not target.is_file():
        return None
    noted = _noted(target)
    if noted[_CHECKSUM_BYTES:] == _start() and len(noted) >= _CHECKSUM_BYTES:
        return target
    hasher = ProofHasher()
    with target.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            hasher.update(piece)
    if hasher.sha256 != target.name:
        forget(target)
        return None
    _checksum_of(target).write_bytes(hasher.checksum + _start())
    return target


def checksum_of(target: Path) -> bytes | None:
    """What `keep` noted; None: it is not known."""
    checksum = _noted(target)[:_CHECKSUM_BYTES]
    return checksum if len(checksum) == _CHECKSUM_BYTES else None


def is_unchanged(target: Path) -> bool:
    """Whether a file still has the checksum that was noted."""
    noted = checksum_of(target)
    return noted is None or noted == xxhash.xxh3_128_digest(content_of(target))


def forget(target: Path) -> None:
    target.unlink(missing_ok=True)
    _checksum_of(target).unlink(missing_ok=True)


def _noted(target: Path) -> bytes:
    try:
        return _checksum_of(target).read_bytes()
    except OSError:
        return b""


def _checksum_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.xxh3")


@cache
def _start() -> bytes:
    """What the kernel calls this start of the machine; nothing where it does not say."""
    try:
        return boot_id().encode()
    except OSError:
        return b""
