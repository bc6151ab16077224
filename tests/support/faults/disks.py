"""Disks that write down what they do, and die on the way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from threading import Lock

from tensorrepo.repo.backends.disk import Disk, StagedFile
from tests.support.faults.backends import Crash


class NamingDisk(Disk):
    """Knows each file by a name of its own, also those that have none on the disk."""

    def __init__(self, root: Path, *, unnamed: bool = True) -> None:
        super().__init__(root, unnamed=unnamed)
        self._names: dict[int, str] = {}  # by descriptors of open files
        self._staged = count()

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
    """

    def __init__(self, root: Path, die_before: int | None = None, *, unnamed: bool = True) -> None:
        super().__init__(root, unnamed=unnamed)
        self.die_before = die_before
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

    def _note(self, verb: str, what: str) -> int:
        """The number of the step: large files are synced and linked by threads meanwhile."""
        with self._lock:
            if self.die_before is not None and len(self.steps) >= self.die_before:
                raise Crash(f"died before {verb} {what}")
            self.steps.append((verb, what))
            return len(self.steps) - 1
