"""Power cuts: what a disk may hold afterwards, by what was synced until then.

A `JournaledDisk` works on a real folder and writes down what it does. `remains` says what may be
left of any beginning of that: a file that was not synced may be empty or cut short, a name that was
put into a folder since that was synced last may be there or not, each by itself, and with the name
of a folder all that is below it is gone. That is less than any file system in use keeps.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from tensorrepo.repo.backends.disk import TEMPORARY, StagedFile, split
from tensorrepo.repo.ids import Digest
from tests.support.faults.disks import NamingDisk


@dataclass
class Journal:
    """What was done, in order: (verb, place, file).

    Verbs: ``sync`` makes the bytes of a file durable, ``name`` gives a key to a file, ``unname``
    takes it, ``folder`` makes a folder, ``sync folder`` makes the names in one durable. ``done``
    is no operation: what was promised until then.
    """

    steps: list[tuple[str, str, str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    promised: dict[int, tuple[int, Digest]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def note(self, verb: str, place: str, file: str = "") -> None:
        with self.lock:
            self.steps.append((verb, place, file))

    def promise(self, generation: int, digest: Digest) -> None:
        """From here on the log has this record, whatever happens."""
        with self.lock:
            self.promised[len(self.steps)] = generation, digest

    def last_promise(self, at: int) -> tuple[int, Digest] | None:
        """What was promised by those who did the first `at` steps."""
        found = [what for step, what in sorted(self.promised.items()) if step <= at]
        return found[-1] if found else None


class JournaledDisk(NamingDisk):
    """A disk that writes its journal; what is in `omits` it does not do, and says that it did."""

    def __init__(self, root: Path, journal: Journal, omits: Sequence[str] = ()) -> None:
        super().__init__(root)
        self.journal = journal
        self.omits = omits

    def sync(self, staged: StagedFile) -> None:
        super().sync(staged)
        self._keep(staged)
        if "sync" not in self.omits:
            self.journal.note("sync", "", self.name_of(staged))

    def link(self, staged: StagedFile, key: str, *, exclusive: bool = True) -> bool:
        self._keep(staged)
        missing = self._missing_folders(key)
        linked = super().link(staged, key, exclusive=exclusive)
        self._note_folders(missing)
        if linked:
            self.journal.note("name", key, self.name_of(staged))
        return linked

    def replace(self, staged: StagedFile, key: str) -> None:
        self._keep(staged)
        missing = self._missing_folders(key)
        super().replace(staged, key)
        self._note_folders(missing)
        self.journal.note("name", key, self.name_of(staged))

    def remove(self, key: str) -> None:
        super().remove(key)
        self.journal.note("unname", key)

    def sync_folder(self, folder: str) -> None:
        super().sync_folder(folder)
        if "sync folder" not in self.omits:
            self.journal.note("sync folder", folder)

    def store_together(
        self, files: Mapping[str, Sequence[memoryview]], folders: Sequence[str]
    ) -> dict[str, bool] | None:
        if not self._stores_together:
            return None
        steps = self.noting_room(files, 1 << 20)
        stored = self._store_together(files, folders, steps)
        for verb, place, name in self.noted(files, folders, steps) if stored else ():
            if verb == "link":
                if stored[place]:
                    self.journal.note("name", place, name)
            elif verb != "stage" and verb not in self.omits:
                self.journal.note(verb, "" if verb == "sync" else place, name)
            if verb == "stage":
                self.journal.files[name] = b"".join(files[place])
        self.one_calls += stored is not None
        return stored

    def _keep(self, staged: StagedFile) -> None:
        """Remember the bytes, as long as the file has no key that they could be read by."""
        size_bytes = os.fstat(staged.fd).st_size
        # Opened anew, since it is open for writing alone.
        path = Path("/dev/fd", str(staged.fd))
        if staged.name is not None:
            path = self.root / TEMPORARY / staged.name
        with path.open("rb") as file:
            self.journal.files[self.name_of(staged)] = file.read(size_bytes)

    def _missing_folders(self, key: str) -> list[str]:
        folder, missing = split(key)[0], []
        while folder and not (self.root / folder).is_dir():
            missing.append(folder)
            folder = split(folder)[0]
        return missing[::-1]

    def _note_folders(self, folders: Sequence[str]) -> None:
        for folder in folders:
            self.journal.note("folder", folder)


def remains(
    before: Mapping[str, bytes], journal: Journal, at: int, chance: random.Random, share: float
) -> dict[str, bytes]:
    """What may be there when the power fails after the first `at` steps.

    Args:
        before: keys and values that were durable at the beginning.
        journal: what was done since.
        at: how much of it.
        chance: of what survives.
        share: share of what is not durable that survives.
    """
    steps = journal.steps[:at]
    synced = {file for verb, _, file in steps if verb == "sync"}
    last_sync: dict[str, int] = {}
    for number, (verb, place, _) in enumerate(steps):
        if verb == "sync folder":
            last_sync[place] = number
    folders = {folder for key in before for folder in _above(key)} | {""}
    found = dict(before)
    for number, (verb, place, file) in enumerate(steps):
        inner = split(place)[0]
        kept = last_sync.get(inner, -1) > number or chance.random() < share
        if verb == "folder" and kept:
            folders.add(place)
        elif verb == "unname" and kept:
            found.pop(place, None)
        elif verb == "name" and kept:
            data = journal.files[file]
            whole = file in synced or chance.random() < share / 2
            found[place] = data if whole else data[: chance.choice([0, 0, len(data) // 2])]
    return {key: data for key, data in found.items() if folders.issuperset(_above(key))}


def _above(key: str) -> list[str]:
    """The folders that a key lies in."""
    parts = key.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
