"""Tracked paths: what `checkout` wrote, and what it held then or when it was added."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.add_request import AddRequest
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import Tracked, Workspace, describe_files

NOTED_SECONDS = 1.0  # between two notes of what is written out


@dataclass(slots=True)
class Tracking:
    """Notes what is written out. `noted`: when it was laid down last, by this machine's clock."""

    workspace: Workspace
    tracked: dict[str, Tracked]
    noted: float

    def __call__(self, path: str, entry: Entry, target: Path, format_name: str) -> None:
        key = target.relative_to(self.workspace.root).as_posix()
        self.tracked[key] = Tracked(path, entry.digest, format_name, describe_files(target))
        if time.monotonic() - self.noted > NOTED_SECONDS:
            self.workspace.write_tracked(self.tracked)
            self.noted = time.monotonic()


@contextmanager
def tracking(workspace: Workspace) -> Iterator[Tracking]:
    """What is written out meanwhile is tracked then, after an error too.

    It is laid down now and then, as it grows with every path: of who is killed the paths of the
    last second are not tracked.
    """
    made = Tracking(workspace, workspace.tracked(), time.monotonic())
    try:
        yield made
    finally:
        if made.tracked != workspace.tracked():
            workspace.write_tracked(made.tracked)


class TrackedPaths:
    """Tracked paths by their entries, read once for as many requests as are added together."""

    def __init__(self, session: WorkspaceSession) -> None:
        self._root = session.here.root
        self._written: dict[str, list[tuple[str, Tracked]]] = {}
        for path, each in session.here.files().items():
            self._written.setdefault(each.entry, []).append((path, each))

    def at(self, request: AddRequest) -> tuple[str, Tracked] | None:
        """The tracked path that is added, and what it held when it was written or staged."""
        place = request.source.resolve()
        there = self._written.get(request.path, ())
        return next((each for each in there if (self._root / each[0]).resolve() == place), None)


def track(session: WorkspaceSession, added: Iterable[tuple[AddRequest, Digest]]) -> None:
    """What tracked paths that were added hold now: the next `add` compares them with that."""
    here, paths = session.here, TrackedPaths(session)
    staging, tracked = here.staging(), here.tracked()
    staged, committed = dict(staging.entries), dict(tracked)
    for request, source in added:
        found = paths.at(request)
        if found is None:
            continue
        path, before = found
        now = Tracked(before.entry, source, before.format, describe_files(here.root / path))
        if (entry := staged.get(request.path)) is not None:
            staged[request.path] = replace(entry, tracked={**entry.tracked, path: now})
        else:  # a commit holds what the path holds
            committed[path] = now
    if committed != tracked:
        here.write_tracked(committed)
    if staged != staging.entries:
        here.write_staging(replace(staging, entries=staged))
