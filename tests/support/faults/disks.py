"""Disks that write down what they do, and die on the way."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Lock

from tensorrepo.repo.backends.disk import LINK, STAGE, SYNC, SYNC_FOLDER, Disk, StagedFile
from tests.support.faults.backends import Crash

_STEP = struct.Struct("=ii")  # as _storing.c notes them: verb, place of a file or folder
_VERBS = {STAGE: "stage", SYNC: "sync", LINK: "link", SYNC_FOLDER: "sync folder"}


class NamingDisk(Disk):
    """Knows each file by a name of its own, also those that have none on the disk."""

    def __init__(self, root: Path, *, unnamed: bool = True) -> None:
        super().__init__(root, unnamed=unnamed)
        self._names: dict[int, str] = {}  # by descriptors of open files
        self._staged = count()
        self.one_calls = 0  # of `store_together` that did all

    def noting_room(self, files: Mapping[str, Sequence[memoryview]], most: int) -> bytearray:
        """Room for the steps of one call; where it has less than there are, that one dies."""
        return bytearray(_STEP.size * min(most, 4 * len(files)))

    def noted(
        self, files: Mapping[str, Sequence[memoryview]], folders: Sequence[str], steps: bytearray
    ) -> Iterator[tuple[str, str, str]]:
        """The steps of one call: verb, key or folder, and a name of the file."""
        names = {key: f"file-{next(self._staged)}" for key in files}
        for verb, place in _STEP.iter_unpack(steps):
            if verb == SYNC_FOLDER:
                yield _VERBS[verb], folders[place], ""
            elif verb:  # else the rest of the room is empty
                key = tuple(files)[place]
                yield _VERBS[verb], key, names[key]

    def stage(self, parts: Sequence[memoryview], *, named: bool = False) -> StagedFile:
        staged = super().stage(parts, named=named)
        self._names[staged.fd] = staged.name or f"file-{next(self._staged)}"
        return staged

    def reopen(self, name: str) -> StagedFile:
        staged = super().reopen(name)
        self._names[staged.fd] = name
        return staged

    def name_of(self, staged: StagedFile) -> str:
        """What an open file is known by."""
        return self._names[staged.fd]


class RecordingDisk(NamingDisk):
    """Notes every changing step as (verb, what) before doing it.

    Args:
        root: where the files go.
        die_before: number of the step, counted from 0, at which the process dies; None lives on.
        unnamed: see `Disk`.
        in_one_call: whether small files may be stored so.
    """

    def __init__(
        self,
        root: Path,
        die_before: int | None = None,
        *,
        unnamed: bool = True,
        in_one_call: bool = False,
    ) -> None:
        super().__init__(root, unnamed=unnamed)
        self.die_before = die_before
        self._in_one_call = in_one_call
        self.steps: list[tuple[str, str]] = []
        self._lock = Lock()

    def stage(self, parts: Sequence[memoryview], *, named: bool = False) -> StagedFile:
        at = self._note("stage", "")
        staged = super().stage(parts, named=named)
        self.steps[at] = ("stage", self.name_of(staged))
        return staged

    def sync(self, staged: StagedFile) -> None:
        self._note("sync", self.name_of(staged))
        super().sync(staged)

    def link(self, staged: StagedFile, key: str, *, exclusive: bool = True) -> bool:
        self._note("link", f"{self.name_of(staged)} {key}")
        return super().link(staged, key, exclusive=exclusive)

    def replace(self, staged: StagedFile, key: str) -> None:
        self._note("replace", f"{self.name_of(staged)} {key}")
        super().replace(staged, key)

    def sync_folder(self, folder: str) -> None:
        self._note("sync folder", folder)
        super().sync_folder(folder)

    def store_together(
        self, files: Mapping[str, Sequence[memoryview]], folders: Sequence[str]
    ) -> dict[str, bool] | None:
        if not (self._in_one_call and self._stores_together):
            return None
        with self._lock:
            left = 1 << 20 if self.die_before is None else self.die_before - len(self.steps)
            steps, stored = self.noting_room(files, left), None
            try:
                stored = self._store_together(files, folders, steps)
            finally:
                for verb, what, name in self.noted(files, folders, steps):
                    told = {"link": f"{name} {what}", "sync folder": what}.get(verb, name)
                    self.steps.append((verb, told))
                if stored is None and len(self.steps) == self.die_before:
                    raise Crash("died in the middle of one call")
        self.one_calls += stored is not None
        return stored

    def _note(self, verb: str, what: str) -> int:
        """The number of the step: large files are synced and linked by threads meanwhile."""
        with self._lock:
            if self.die_before is not None and len(self.steps) >= self.die_before:
                raise Crash(f"died before {verb} {what}")
            self.steps.append((verb, what))
            return len(self.steps) - 1
