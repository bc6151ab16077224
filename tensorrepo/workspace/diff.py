"""Comparison of a commit with what is staged and what changed on disk."""

from __future__ import annotations

from tensorrepo.repo.history.trees import PathChange
from tensorrepo.verbs.compare import Comparison, compare_entry, is_under
from tensorrepo.workspace.session import WorkspaceSession, base_entry
from tensorrepo.workspace.status import status


def compare_working(session: WorkspaceSession, paths: tuple[str, ...] = ()) -> Comparison:
    """What is staged, and which written files changed on disk."""
    state = status(session)
    wanted = tuple(path.strip("/") for path in paths)
    changes = []
    for one in state.staged:
        if not wanted or is_under(one.path, wanted):
            change = PathChange(one.path, base_entry(session, one.path), one.staged.entry)
            changes.append(compare_entry(session.repository, change, session.outside))
    lines = [
        f"{what:8} {tracked.path}{f'/{name}' if name else ''} (on disk, not staged)"
        for tracked in state.tracked
        for name, what in tracked.files.items()
        if not wanted or is_under(tracked.entry, wanted)
    ]
    return Comparison(tuple(changes), tuple(lines))
