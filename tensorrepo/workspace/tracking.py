"""Tracked paths: what `checkout` wrote, and what it held then or when it was added."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def tracked_at(session: WorkspaceSession, request: AddRequest) -> tuple[str, Tracked] | None:
    """The tracked path that is added, and what it held when it was written or staged."""
    here = session.here
    return _written_for(here.root, request, _by_entry(here.files()))


def _by_entry(tracked: Mapping[str, Tracked]) -> dict[str, list[tuple[str, Tracked]]]:
    """Where each entry was written out: mostly to one path."""
    written: dict[str, list[tuple[str, Tracked]]] = {}
    for path, each in tracked.items():
        written.setdefault(each.entry, []).append((path, each))
    return written


def _written_for(
    root: Path, request: AddRequest, written: Mapping[str, Sequence[tuple[str, Tracked]]]
) -> tuple[str, Tracked] | None:
    place = request.source.resolve()
    there = written.get(request.path, ())
    return next((each for each in there if (root / each[0]).resolve() == place), None)


def track(session: WorkspaceSession, added: Iterable[tuple[AddRequest, Digest]]) -> None:
    """What tracked paths that were added hold now: the next `add` compares them with that."""
    here = session.here
    if not (files := here.files()):
        return
    written = _by_entry(files)
    staging, tracked = here.staging(), here.tracked()
    staged, committed = dict(staging.entries), dict(tracked)
    for request, source in added:
        found = _written_for(here.root, request, written)
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
