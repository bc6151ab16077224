"""Staging area of a workspace as a `Stage`: objects first, then a lease, then names."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.repo.writer import ObjectWriter
from tensorrepo.workspace.commit import forget_committed
from tensorrepo.workspace.session import entry_at
from tensorrepo.workspace.staging import change, stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.trees import Entry
    from tensorrepo.repo.workspace import Staged
    from tensorrepo.workspace.session import Session


@dataclass(slots=True)
class WorkspaceStage:
    """What one command adds to the staging area.

    Attributes:
        session: workspace and repository of the command.
        objects: stores what the command makes.
        since: log generation before the first of these objects was stored.
        changes: staged entries by path.
    """

    session: Session
    objects: ObjectWriter
    since: int
    changes: dict[str, Staged] = field(default_factory=dict)

    def entry(self, path: str) -> Entry | None:
        return self.changes[path].entry if path in self.changes else entry_at(self.session, path)

    def stage(self, path: str, entry: Entry, *, since: int | None = None) -> None:
        # One generation holds for all that is staged. With 0, objects that were collected and
        # stored anew before would count as condemned: what `add` stored yesterday would expire.
        if since:
            self.since = min(self.since, since)
        self.changes[path] = change(entry)

    def describe(self, path: str, *, rows: int = 0, size_bytes: int = 0, source: str = "") -> None:
        """What `status` shows beside a staged entry."""
        entry = self.changes[path].entry
        self.changes[path] = change(entry, rows=rows, size_bytes=size_bytes, source=source)

    def drop_if_unchanged(self, path: str) -> bool:
        """Forget an entry that is what was there before. True when it differs, and stays."""
        before, after = entry_at(self.session, path), self.changes[path].entry
        if before is None or after is None or before.digest != after.digest:
            return True
        del self.changes[path]
        return False


@contextmanager
def begin_stage(session: Session) -> Iterator[WorkspaceStage]:
    """The stage of one command, in effect when its ``with`` ends; nothing changes on an error."""
    forget_committed(session)  # what a command that was cut off had committed
    view = session.repository.log.refresh()
    writer = ObjectWriter(session.repository.objects, view.state.graves)
    made = WorkspaceStage(session, writer, view.generation)
    try:
        yield made
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    if made.changes:
        stage(session, made.changes, made.since)
