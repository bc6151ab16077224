"""Disks that write down what they do, and die on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from tensorrepo.repo.backends.disk import Disk, StagedFile
from tests.support.faults.backends import Crash


class RecordingDisk(Disk):
    """Notes every changing step as (verb, what) before doing it.

    Args:
        root: where the files go.
        die_before: number of the step, counted from 0, at which the process dies; None lives on.
    """

    def __init__(self, root: Path, die_before: int | None = None) -> None:
        super().__init__(root)
        self.die_before = die_before
        self.steps: list[tuple[str, str]] = []
        self._lock = Lock()

    def stage(self, parts: Sequence[memoryview]) -> StagedFile:
        at = self._note("stage", "")
        staged = super().stage(parts)
        self.steps[at] = ("stage", staged.name)
        return staged

    def sync(self, staged: StagedFile) -> None:
        self._note("sync", staged.name)
        super().sync(staged)

    def link(self, staged: StagedFile, key: str, *, exclusive: bool = True) -> bool:
        self._note("link", f"{staged.name} {key}")
        return super().link(staged, key, exclusive=exclusive)

    def replace(self, staged: StagedFile, key: str) -> None:
        self._note("replace", f"{staged.name} {key}")
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
