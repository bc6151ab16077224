"""Client-side notes: how far a repository was read (rewind guard), and appends of unknown outcome.

Whoever can write to a store can also put back an older copy of it. A client therefore remembers
how far it read each repository, and refuses one whose past is shorter or different.

Before a record is created, its transactions are noted here; once their outcome is known the notes
are removed. What is left after a crash, or after CommitOutcomeUnknown, is for `append.resolve`.

A note is a name of an empty file that says everything, so it cannot be torn, and costs one call to
make. Nothing is synced: losing a note loses no data, only the question.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.hashing.digests import record_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import is_txn

_NOTE = re.compile(r"(.+)\.([1-9][0-9]{0,18})")
_BLANK = "blank"  # no name of a note
_EMPTY = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, order=True)
class Unresolved:
    """Transaction `txn` may be, or may come to be, in slot `generation`."""

    txn: str
    generation: int


@dataclass(frozen=True, slots=True)
class Pending:
    """Notes in `directory`, one file for each transaction. It is made when first written to."""

    directory: Path

    def write(self, txn: str, generation: int) -> None:
        """Note the slot that is about to be created, in place of an earlier note of `txn`."""
        begins = f"{txn}."
        earlier = [name for name in file_names(self.directory) if name.startswith(begins)]
        _make_note(self._path(txn, generation), self._in(_BLANK))
        for note in map(_parse_note, earlier):
            if note is not None and note != Unresolved(txn, generation):
                remove_file(self._path(note.txn, note.generation))

    def remove(self, txn: str, generation: int | None = None) -> None:
        """The outcome is known. Nothing noted is fine.

        Args:
            txn: whose outcome.
            generation: the one that `write` noted last; None looks for it.
        """
        if generation is not None:
            remove_file(self._path(txn, generation))
            return
        for note in self.unresolved():
            if note.txn == txn:
                remove_file(self._path(txn, note.generation))

    def unresolved(self) -> tuple[Unresolved, ...]:
        """What is noted, by transaction. Files that are no notes are passed over."""
        notes = (_parse_note(name) for name in file_names(self.directory))
        return tuple(sorted(note for note in notes if note is not None))

    # Texts: each commit asks for some of them, and a `Path` takes as long as the call it is for.
    def _path(self, txn: str, generation: int) -> str:
        assert is_txn(txn), f"{txn!r} was checked by record_as_read and is no file name"
        return self._in(f"{txn}.{generation}")

    def _in(self, name: str) -> str:
        return f"{self.directory}{os.sep}{name}"


def file_names(directory: Path) -> list[str]:
    """Names in a folder; none where there is no folder."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"cannot read {directory}: {error.strerror}") from error


def make_file(path: str | Path) -> None:
    """An empty file, and the folders above it."""
    try:
        try:
            os.close(os.open(path, _EMPTY, 0o666))
        except FileNotFoundError:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, _EMPTY, 0o666))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _make_note(path: str, blank: str) -> None:
    """As `make_file`, by one more name for a file that stays.

    A new file for each commit, deleted right after, made ext4 look for inodes for as long as all
    else that a note takes, and made it slow to create objects: it gives none away again for 5 s.
    """
    for _ in range(2):
        with suppress(OSError):
            os.link(blank, path)
            return
        if not os.path.exists(blank):
            make_file(blank)
    make_file(path)  # no hard links here, or the note is there


def remove_file(path: str | Path) -> None:
    """Remove a file that may be absent."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from error


def _parse_note(name: str) -> Unresolved | None:
    found = _NOTE.fullmatch(name)
    if found is None or not is_txn(found[1]):
        return None
    return Unresolved(found[1], int(found[2]))


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
            data = self.path(identity).read_bytes()
        except OSError:
            return None
        lines = [line for line in map(_parse, _places(data)) if line is not None]
        return max(lines, default=None)

    def save(self, identity: bytes, seen: Remembered) -> None:
        """Remember `seen`, unless another process of this client got further meanwhile."""
        path = _memory_file(str(self.directory), identity)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                handle = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self.directory.mkdir(parents=True, exist_ok=True)
                handle = os.open(path, flags, 0o600)
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
        return Path(_memory_file(str(self.directory), identity))


@lru_cache(maxsize=64)
def _memory_file(directory: str, identity: bytes) -> str:
    return f"{directory}{os.sep}{record_digest(identity)}"


def _overwrite_older(handle: int, seen: Remembered) -> None:
    lines = _places(os.pread(handle, 2 * LINE_BYTES, 0))
    # Each begins with its number, so the newer one can be told before it is checked.
    newer = 0 if lines[0] >= lines[1] else 1
    line = _parse(lines[newer])
    place = 1 - newer
    if line is None:  # it is damaged, or absent
        line, place = _parse(lines[1 - newer]), newer
    if line is None or line.generation < seen.generation:
        os.pwrite(handle, _line(seen), place * LINE_BYTES)


def _line(seen: Remembered) -> bytes:
    text = f"{seen.generation:020d} {seen.digest}"
    line = f"{text} {record_digest(text.encode())[:32]}"
    return line.ljust(LINE_BYTES - 1).encode() + b"\n"


def _places(data: bytes) -> tuple[bytes, bytes]:
    return data[:LINE_BYTES], data[LINE_BYTES : 2 * LINE_BYTES]


def _parse(data: bytes) -> Remembered | None:
    """What a line says, if it is whole."""
    line = _LINE.fullmatch(data)
    if line is None or record_digest(line[1])[:32].encode() != line[4]:
        return None
    return Remembered(int(line[2]), Digest(line[3].decode()))
