"""Staging area of a workspace: what is staged, unstaged and carried along, and a command's stage.

Objects are stored first, then a lease in the log keeps them from collection, and only then does
the staging area name them: a crash in between leaves garbage, never a name without its bytes. A
collection between the first object and the lease may have condemned some: the staging area keeps
where the log stood before them, and the fence of the commit looks at all that came since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

import msgspec

from tensorrepo.formats.search_index.paths import index_folder, indexes_of, moved_index
from tensorrepo.repo.changes.leases import close_leases
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import is_ancestor
from tensorrepo.repo.history.trees import Entry, clashes, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.workspace.session import (
    SPACES,
    NextCommit,
    WorkspaceSession,
    full_path,
    next_commit,
)
from tensorrepo.workspace.staged_lease import forget_committed, keep_alive, lease_holder, release
from tensorrepo.workspace.state import StagedEntry, StagingArea


def change(
    entry: Entry | None, *, rows: int = 0, size_bytes: int = 0, source: str = ""
) -> StagedEntry:
    """A staged change to `entry` (None removes), with what `status` shows beside it."""
    if entry is None:
        return StagedEntry(source=source)
    named = (entry.kind.name, entry.digest, entry.storage, entry.summary.hex())
    return StagedEntry(*named, rows, size_bytes, source)


def stage(session: WorkspaceSession, changes: Mapping[str, StagedEntry], since: int) -> None:
    """Put changes, whose objects must be durable, into the staging area, by path.

    `since` is where the log stood before their objects were put, or found reachable.

    Raises:
        InvalidInputError: a path is none, or no tree can hold it beside what the next commit has.
    """
    for path in changes:
        check_path(path)
    staging = session.here.staging()
    if staging.entries:
        earliest = min(staging.generation, since)
        staging = msgspec.structs.replace(staging, generation=earliest)
    else:  # it is pinned to where HEAD stands now
        staging = StagingArea(session.tip(), since)
    entries = {**staging.entries, **changes}
    objects = session.repository.objects
    wanted = {path: staged.entry for path, staged in entries.items()}
    for _, _, reason in clashes(objects, tree_of(objects, staging.base), wanted):
        raise InvalidInputError(f"{reason}; rename or remove one of them. Nothing was staged.")
    keep_alive(session, [staged.entry for staged in entries.values()], staging.generation)
    session.here.write_staging(
        msgspec.structs.replace(staging, entries=dict(sorted(entries.items())))
    )


def generation(session: WorkspaceSession) -> int:
    """Where the log stands."""
    return session.repository.log.refresh().generation


def carry_staging(session: WorkspaceSession, base: Digest | None) -> StagingArea:
    """What is staged, for a commit on `base`: changes go along, history that it lacks does not.

    An undo, a reset or a switch may have left the commit that staging was begun on.

    Raises:
        ConflictError: an entry that is staged is another one there. Nothing changed.
    """
    staging = session.here.staging()
    moved = carried(session, staging, base)
    if moved != staging:
        session.here.write_staging(moved)
    return moved


def carried(session: WorkspaceSession, staging: StagingArea, base: Digest | None) -> StagingArea:
    """What `carry_staging` makes of what is staged; it changes nothing."""
    objects = session.repository.objects
    if not staging.entries or staging.base is None:
        return staging
    if base is not None and is_ancestor(objects, staging.base, base):
        return staging
    return rebased(objects, staging, base)


def rebased(objects: ObjectSource, staging: StagingArea, base: Digest | None) -> StagingArea:
    """The same changes of another commit, which has the same entries where they change some."""
    old, new = tree_of(objects, staging.base), tree_of(objects, base)
    for path in staging.entries:
        if lookup(objects, old, path) != lookup(objects, new, path):
            raise ConflictError(
                f"{path} is staged as a change of commit {staging.base or 'none':.12}, and is "
                f"another one in {base or 'a branch without commits':.24}. Unstage it with "
                f"`tensorrepo restore --staged {path}` and add it again there. Nothing changed."
            )
    return StagingArea(base, staging.generation, staging.entries)


def unstage(session: WorkspaceSession, name: str | None) -> list[str]:
    """Forget what is staged at `name`, below it, or all of it (None, or ``.``); gives the paths."""
    staging = session.here.staging()
    if name is None or name.rstrip("/") == ".":
        gone = [*staging.entries]
        if not gone:
            raise NotFoundError("nothing is staged")
    else:
        wanted = (name, *(f"{space}/{name}" for space in SPACES))
        gone = [path for path in wanted if path in staging.entries]
        below = name.rstrip("/") + "/"
        gone = gone or [path for path in staging.entries if path.startswith(below)]
        if not gone:
            raise NotFoundError(f"nothing is staged at {name!r}. `tensorrepo status` lists it.")
    left = {path: staging.entries[path] for path in staging.entries.keys() - gone}
    if not left:
        release(session)
    kept = msgspec.structs.replace(staging, entries=dict(sorted(left.items())))
    session.here.write_staging(kept if left else StagingArea())
    return gone


def remove(session: WorkspaceSession, names: Iterable[str]) -> list[str]:
    """Stage the removal of entries, of datasets with their indexes; gives their paths.

    All of them are, or none.
    """
    since, following = generation(session), next_commit(session)
    paths = dict.fromkeys(_present(following, name) for name in names)
    for path in [*paths]:
        paths |= dict.fromkeys(_indexes_of(following, path))
    stage(session, dict.fromkeys(paths, change(None)), since)
    return [*paths]


def move(session: WorkspaceSession, old: str, new: str) -> tuple[str, str]:
    """Stage another path for an entry, and for indexes of a dataset. Nothing is copied."""
    since, following = generation(session), next_commit(session)
    source = _present(following, old)
    target = new if "/" in new else f"{source.partition('/')[0]}/{new}"
    check_path(target)
    if following.entry(target) is not None:
        raise ConflictError(f"{target} exists already. Remove it first, or choose another name.")
    pairs = {source: target}
    if target.startswith("datasets/"):
        pairs |= {each: moved_index(each, target) for each in _indexes_of(following, source)}
    staged = {}
    for old_path, new_path in pairs.items():
        staged[new_path] = change(following.entry(old_path), source=f"was {old_path}")
        staged[old_path] = change(None, source=f"now {new_path}")
    stage(session, staged, since)
    return source, target


def _indexes_of(following: NextCommit, path: str) -> list[str]:
    """Paths of the search indexes of a dataset, as they are staged."""
    before = following.repository.entries(following.tree, index_folder(path))
    known = {each for each, _ in before} | following.staged.keys()
    return [each for each in indexes_of(known, path) if following.entry(each) is not None]


def restore(session: WorkspaceSession, name: str, source: str | None) -> tuple[str, str, bool]:
    """Make an entry in the next commit what it is in another one.

    `name` is ``PATH``, with `source` as the other commit, or ``REF:PATH``.

    Returns:
        The entry's path, the revision as it was given, and whether something is staged now that
        was not: False when the next commit would have had it so.

    Raises:
        NotFoundError: no such commit, or no entry of that name in it.
    """
    ref, path = split_path(name)
    if (source is None) == (path is None):
        raise InvalidInputError(
            f"say once which commit is meant: `restore {path or name} --source {source or 'REF'}`"
        )
    given, since = source or ref, generation(session)
    revision, full, entry = session.find(f"{given}:{path or name}")
    following = next_commit(session)
    if following.entry(full) == entry:
        return full, given, False
    if following.before(full) == entry:
        unstage(session, full)
    else:
        stage(session, {full: change(entry, source=f"as of {revision.digest:.12}")}, since)
    return full, given, True


def _present(following: NextCommit, name: str) -> str:
    for path in (name, *(f"{space}/{name}" for space in SPACES)):
        if path in following.staged and following.staged[path].kind is not None:
            return path
    return full_path(following.repository, following.tree, name)


@dataclass(slots=True)
class WorkspaceStage:
    """What one command adds to the staging area.

    Attributes:
        session: workspace and repository of the command.
        before: what is staged already, and on which commit.
        objects: stores what the command makes.
        since: log generation before the first of these objects was stored.
        changes: staged entries by path.
        leases: leases on what this command stages, closed after it.
    """

    session: WorkspaceSession
    before: NextCommit
    objects: ObjectWriter
    since: int
    changes: dict[str, StagedEntry] = field(default_factory=dict)
    leases: list[str] = field(default_factory=list)

    def entry(self, path: str) -> Entry | None:
        return self.changes[path].entry if path in self.changes else self.before.entry(path)

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
        before, after = self.before.entry(path), self.changes[path].entry
        if before is None or after is None or before.digest != after.digest:
            return True
        del self.changes[path]
        return False


@contextmanager
def begin_stage(session: WorkspaceSession) -> Iterator[WorkspaceStage]:
    """The stage of one command, in effect when its ``with`` ends; nothing changes on an error."""
    forget_committed(session)  # what a command that was cut off had committed
    view = session.repository.log.refresh()
    writer = ObjectWriter(session.repository.objects, view.state.graves)
    made = WorkspaceStage(session, next_commit(session), writer, view.generation)
    try:
        yield made
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    if made.changes:
        stage(session, made.changes, made.since)
    if made.leases:
        close_leases(session.repository, made.leases, holder=lease_holder(session))
