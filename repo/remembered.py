"""Is this the repository that I knew?

Whoever can write to a store can also put back an older copy of it. A client therefore remembers
how far it read each repository, and refuses one whose past is shorter or different.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.ids import Digest, record_digest
from tensorrepo.repo.pending import remove_file

if TYPE_CHECKING:
    from pathlib import Path

LINE_BYTES = 128  # number, digest, sum of both; filled up with spaces; a line feed
_LINE = re.compile(rb"(([0-9]{20}) ([0-9a-f]{64})) ([0-9a-f]{32}) *\n")


@dataclass(frozen=True, slots=True, order=True)
class Remembered:
    """The newest record that was seen, and the digest of its bytes."""

    generation: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Memory:
    """One file for each repository under `directory`, named by the digest of repo.json.

    It has two lines, and the older one is overwritten in place: no new file for the journal of
    the disk to carry along with every commit, and whatever a crash or another process does to
    one line, the other still stands. What is damaged is not remembered; that is never an error.
    """

    directory: Path

    def load(self, identity: bytes) -> Remembered | None:
        try:
            return max(_parse(self.path(identity).read_bytes()).values(), default=None)
        except OSError:
            return None

    def save(self, identity: bytes, seen: Remembered) -> None:
        """Remember `seen`, unless another process of this client got further meanwhile."""
        path = self.path(identity)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _overwrite_older(handle, seen)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error

    def forget(self, identity: bytes) -> None:
        """Accept whatever the repository is now, after a rewind that was meant."""
        remove_file(self.path(identity))

    def path(self, identity: bytes) -> Path:
        """The file for one repository; deleting it is `forget`."""
        return self.directory / record_digest(identity)


def _overwrite_older(handle: int, seen: Remembered) -> None:
    lines = _parse(os.pread(handle, 2 * LINE_BYTES, 0))
    if any(line.generation >= seen.generation for line in lines.values()):
        return
    place = min((0, 1), key=lambda at: (at in lines, lines.get(at)))
    os.pwrite(handle, _line(seen), place * LINE_BYTES)


def _line(seen: Remembered) -> bytes:
    text = f"{seen.generation:020d} {seen.digest}"
    line = f"{text} {record_digest(text.encode())[:32]}"
    return line.ljust(LINE_BYTES - 1).encode() + b"\n"


def _parse(data: bytes) -> dict[int, Remembered]:
    """The lines that are whole, by their place."""
    found = {}
    for place in (0, 1):
        line = _LINE.fullmatch(data[place * LINE_BYTES : (place + 1) * LINE_BYTES])
        if line is not None and record_digest(line[1])[:32].encode() == line[4]:
            found[place] = Remembered(int(line[2]), Digest(line[3].decode()))
    return found
