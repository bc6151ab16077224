"""Which transactions of this workspace may have landed without anybody knowing?

Before a record is created, its transactions are noted here; once their outcome is known the notes
are removed. What is left after a crash, or after CommitOutcomeUnknown, is for `append.resolve`.

A note is an empty file whose name says everything, so it cannot be torn, and costs one call to
make. Nothing is synced: losing a note loses no data, only the question.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.records import is_txn

if TYPE_CHECKING:
    from pathlib import Path

_NOTE = re.compile(r"(.+)\.([1-9][0-9]{0,18})")


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
        earlier = [note for note in self.unresolved() if note.txn == txn]
        make_file(self._path(Unresolved(txn, generation)))
        for note in earlier:
            if note.generation != generation:
                remove_file(self._path(note))

    def remove(self, txn: str) -> None:
        """The outcome is known. Nothing noted is fine."""
        for note in self.unresolved():
            if note.txn == txn:
                remove_file(self._path(note))

    def unresolved(self) -> tuple[Unresolved, ...]:
        """What is noted, by transaction. Files that are no notes are passed over."""
        notes = (_parse(name) for name in file_names(self.directory))
        return tuple(sorted(note for note in notes if note is not None))

    def _path(self, note: Unresolved) -> Path:
        assert is_txn(note.txn), f"{note.txn!r} was checked by encode_record and is no file name"
        return self.directory / f"{note.txn}.{note.generation}"


def file_names(directory: Path) -> list[str]:
    """Names in a folder; none where there is no folder."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"cannot read {directory}: {error.strerror}") from error


def make_file(path: Path) -> None:
    """An empty file, and the folders above it."""
    try:
        try:
            path.touch()
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def remove_file(path: Path) -> None:
    """Remove a file that may be absent."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from error


def _parse(name: str) -> Unresolved | None:
    found = _NOTE.fullmatch(name)
    if found is None or not is_txn(found[1]):
        return None
    return Unresolved(found[1], int(found[2]))
