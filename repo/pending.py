"""Which transactions of this workspace may have landed without anybody knowing?

Before a record is created, its transactions are written down here; once their outcome is known
they are removed. What is left after a crash, or after CommitOutcomeUnknown, is for
`append.resolve`. Nothing is synced to disk: losing a note loses no data, only the question.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.records import canonical_json, is_txn, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUFFIX = ".json"


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
        replace_file(self._path(txn), {"txn": txn, "gen": generation})

    def remove(self, txn: str) -> None:
        """The outcome is known. Nothing noted is fine."""
        remove_file(self._path(txn))

    def unresolved(self) -> tuple[Unresolved, ...]:
        """What is noted, by transaction. Files that are no notes are passed over."""
        if not self.directory.is_dir():
            return ()
        notes = (_read_note(path) for path in sorted(self.directory.glob(f"*{_SUFFIX}")))
        return tuple(note for note in notes if note is not None)

    def _path(self, txn: str) -> Path:
        assert is_txn(txn), f"{txn!r} was checked by encode_record and is no file name"
        return self.directory / f"{txn}{_SUFFIX}"


def replace_file(path: Path, content: Mapping[str, str | int]) -> None:
    """Write a small file so that readers see the old or the new one. Not synced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(canonical_json(content))
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def remove_file(path: Path) -> None:
    """Remove a file that may be absent."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from error


def read_small_json(path: Path) -> dict[str, object]:
    """What `replace_file` wrote; nothing for a missing or damaged file."""
    try:
        raw = parse_json(path.read_bytes(), str(path))
    except (OSError, CorruptError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _read_note(path: Path) -> Unresolved | None:
    raw = read_small_json(path)
    txn, generation = raw.get("txn"), raw.get("gen")
    if not isinstance(txn, str) or not isinstance(generation, int):
        return None
    return Unresolved(txn, generation) if is_txn(txn) and generation > 0 else None
