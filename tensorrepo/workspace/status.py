"""Status of a workspace: branch, staged changes, changed files, unfinished work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import ahead_behind, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.rewind_guard import Pending, Unresolved
from tensorrepo.workspace.session import NextCommit, WorkspaceSession, next_commit
from tensorrepo.workspace.staged_lease import LEASE_SECONDS, find_committed
from tensorrepo.workspace.state import StagedEntry, Tracked, changed_files


@dataclass(frozen=True, slots=True)
class StagedChange:
    """One staged change: `what` is "new", "modified" or "deleted"."""

    path: str
    what: str
    staged: StagedEntry

    @property
    def text(self) -> str:
        """For people."""
        told = self.staged
        parts = [counted(told.rows, "row")] if told.rows else []
        parts += [bytes_text(told.bytes)] if told.bytes else []
        parts += [told.source] if told.source and not parts else []
        amount = f"  ({', '.join(parts)})" if parts else ""
        return f"{self.what:9} {self.path}{amount}"


@dataclass(frozen=True, slots=True)
class TrackedChange:
    """A path that `checkout` wrote, and which of its files differ now: name -> what happened."""

    path: str
    entry: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """What `tensorrepo status` tells.

    Attributes:
        head: branch or detached commit.
        tip: the commit that HEAD stands at; None on a branch without commits.
        moved: commits that others made on the branch since the first `add`.
        staged: what the next commit holds.
        tracked: written paths whose files changed on disk.
        outdated: written paths whose entry differs in the tip.
        lease_age_seconds: since the lease on what is staged was renewed; None without one.
        committed: the commit that holds what is staged: a command was cut off after it landed.
        pending: appends whose outcome is unknown.
        stashes: how often changes were put aside.
        bisecting: whether a bisection is going on.
    """

    url: str
    head: Head
    tip: Digest | None
    moved: int
    staged: tuple[StagedChange, ...]
    tracked: tuple[TrackedChange, ...]
    outdated: tuple[str, ...]
    lease_age_seconds: float | None
    committed: Digest | None
    pending: tuple[Unresolved, ...]
    stashes: int
    bisecting: bool

    @property
    def clean(self) -> bool:
        """Nothing staged, and nothing changed on disk."""
        return not self.staged and not self.tracked

    @property
    def lease_expired(self) -> bool:
        return self.lease_age_seconds is not None and self.lease_age_seconds > LEASE_SECONDS


def status(session: WorkspaceSession) -> WorkspaceStatus:
    """Look at the workspace and at its branch."""
    workspace = session.here
    state, staging, tip = workspace.state(), workspace.staging(), session.tip()
    following, files = next_commit(session), workspace.files()
    moved = 0
    if staging.entries and tip is not None and tip != staging.base:
        moved = _behind(session, staging.base, tip)
    return WorkspaceStatus(
        url=session.repository.url,
        head=state.head,
        tip=tip,
        moved=moved,
        staged=tuple(_staged(following, path, one) for path, one in staging.entries.items()),
        tracked=tuple(_changed(workspace.root, files)),
        outdated=tuple(_outdated(following, files)),
        lease_age_seconds=time.time() - state.lease_seconds if state.lease else None,
        committed=find_committed(session),
        pending=Pending(workspace.folder / "pending").unresolved(),
        stashes=len(workspace.stashes()),
        bisecting=workspace.bisection() is not None,
    )


def _behind(session: WorkspaceSession, base: Digest | None, tip: Digest) -> int:
    objects = session.repository.objects
    if base is None:
        return sum(1 for _ in walk(objects, [tip]))
    return ahead_behind(objects, base, tip)[1]


def _staged(following: NextCommit, path: str, staged: StagedEntry) -> StagedChange:
    if staged.entry is None:
        return StagedChange(path, "deleted", staged)
    before = following.before(path)
    return StagedChange(path, "new" if before is None else "modified", staged)


def _changed(root: Path, files: Mapping[str, Tracked]) -> Iterator[TrackedChange]:
    for path, tracked in files.items():
        if changed := changed_files(root, path, tracked):
            yield TrackedChange(path, tracked.entry, changed)


def _outdated(following: NextCommit, files: Mapping[str, Tracked]) -> Iterator[str]:
    for path, tracked in files.items():
        entry = following.entry(tracked.entry)
        if entry is None or entry.digest != tracked.digest:
            yield path
