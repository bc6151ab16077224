"""How does a change get into the staging area, and out of it?

Objects are stored first, then a lease in the log keeps them from collection, and only then does
the staging area name them: a crash in between leaves garbage, never a name without its bytes. A
collection between the first object and the lease may have condemned some: the staging area keeps
where the log stood before them, and the fence of the commit looks at all that came since.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from tensorrepo.repo.append import append
from tensorrepo.repo.attempt import entry_digests, tree_of
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history import is_ancestor
from tensorrepo.repo.names import check_path
from tensorrepo.repo.records import LogEntry
from tensorrepo.repo.revisions import split_path
from tensorrepo.repo.trees import lookup
from tensorrepo.repo.workspace import Staged, Staging
from tensorrepo.workspace.session import SPACES, base_entry, entry_at, full_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.records import Json
    from tensorrepo.repo.trees import Entry
    from tensorrepo.workspace.session import Session

LEASE_SECONDS = 14 * 24 * 3600
RENEW_SECONDS = 24 * 3600  # a lease younger than this is not renewed


def change(entry: Entry | None, *, rows: int = 0, size_bytes: int = 0, source: str = "") -> Staged:
    """A staged change to `entry` (None removes), with what `status` shows beside it."""
    if entry is None:
        return Staged(source=source)
    return Staged(entry.kind.name, entry.digest, entry.storage, rows, size_bytes, source)


def stage(session: Session, changes: Mapping[str, Staged], since: int) -> None:
    """Put changes into the staging area.

    Args:
        session: of the command.
        changes: by path; their objects must be durable.
        since: where the log stood before their objects were put, or found reachable.
    """
    for path in changes:
        check_path(path)
    staging = _begin_staging(session, since)
    entries = {**staging.entries, **changes}
    keep_alive(session, [staged.entry for staged in entries.values()])
    session.here.write_staging(
        msgspec.structs.replace(staging, entries=dict(sorted(entries.items())))
    )


def _begin_staging(session: Session, since: int) -> Staging:
    """The staging area, pinned to where HEAD stands when it is empty, and the log by then."""
    staging = session.here.staging()
    if not staging.entries:
        return Staging(session.tip(), since)
    return msgspec.structs.replace(staging, generation=min(staging.generation, since))


def generation(session: Session) -> int:
    """Where the log stands."""
    return session.repository.log.refresh().generation


def carry_staging(session: Session, base: Digest | None) -> Staging:
    """What is staged, for a commit on `base`: changes go along, history that it lacks does not.

    An undo, a reset or a switch may have left the commit that staging was begun on.

    Raises:
        ConflictError: an entry that is staged is another one there. Nothing changed.
    """
    staging, objects = session.here.staging(), session.repository.objects
    if not staging.entries or staging.base is None:
        return staging
    if base is not None and is_ancestor(objects, staging.base, base):
        return staging
    old, new = tree_of(objects, staging.base), tree_of(objects, base)
    for path in staging.entries:
        if lookup(objects, old, path) != lookup(objects, new, path):
            raise ConflictError(
                f"{path} is staged as a change of commit {staging.base:.12}, and is another one in "
                f"{base or 'a branch without commits':.24}. Unstage it with `tensorrepo restore "
                f"--staged {path}` and add it again there. Nothing changed."
            )
    moved = Staging(base, staging.generation, staging.entries)
    session.here.write_staging(moved)
    return moved


def unstage(session: Session, name: str | None) -> list[str]:
    """Forget what is staged at `name`, or all of it; gives the paths."""
    staging = session.here.staging()
    if name is None:
        gone = list(staging.entries)
        if not gone:
            raise NotFoundError("nothing is staged")
    else:
        wanted = (name, *(f"{space}/{name}" for space in SPACES))
        gone = [path for path in wanted if path in staging.entries]
        if not gone:
            raise NotFoundError(f"nothing is staged at {name!r}. `tensorrepo status` lists it.")
    left = {path: staged for path, staged in staging.entries.items() if path not in gone}
    clear_staging(session, Staging(staging.base, staging.generation, left))
    return gone


def clear_staging(session: Session, left: Staging) -> None:
    """Replace the staging area, and give its lease back when nothing is left."""
    if not left.entries:
        release(session)
    session.here.write_staging(left if left.entries else Staging())


def remove(session: Session, names: Iterable[str]) -> list[str]:
    """Stage the removal of entries; gives their paths. All of them, or none."""
    since = generation(session)
    paths = [_present(session, name) for name in names]
    stage(session, dict.fromkeys(paths, change(None)), since)
    return paths


def move(session: Session, old: str, new: str) -> tuple[str, str]:
    """Stage another path for an entry. Nothing is copied: a digest moves."""
    since = generation(session)
    source = _present(session, old)
    target = new if "/" in new else f"{source.partition('/')[0]}/{new}"
    check_path(target)
    if entry_at(session, target) is not None:
        raise ConflictError(f"{target} exists already. Remove it first, or choose another name.")
    entry = entry_at(session, source)
    moved = change(entry, source=f"was {source}")
    stage(session, {target: moved, source: change(None, source=f"now {target}")}, since)
    return source, target


def restore(session: Session, name: str, source: str | None) -> tuple[str, str, bool]:
    """Make an entry in the next commit what it is in another one.

    Args:
        session: of the command.
        name: ``PATH``, or ``REF:PATH`` without `source`.
        source: which commit.

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
    if entry_at(session, full) == entry:
        return full, given, False
    if base_entry(session, full) == entry:
        unstage(session, full)
    else:
        stage(session, {full: change(entry, source=f"as of {revision.digest:.12}")}, since)
    return full, given, True


def keep_alive(session: Session, entries: list[Entry | None], root: Digest | None = None) -> None:
    """Hold one lease on all that is staged: collection keeps it until the commit, or a release.

    What a long `add` had stored stays in it as well; `root` is that of the one at work.
    """
    workspace, state = session.here, session.here.state()
    digests = sorted(
        {digest for entry in entries for digest in entry_digests(entry)}
        | ({each.root for each in workspace.unfinished().values()} & held(session))
        | ({root} if root is not None else set())
    )
    lease = state.lease or f"stage-{secrets.token_hex(8)}"
    now_ns = time.time_ns()
    renews = now_ns / 10**9 - state.lease_seconds > RENEW_SECONDS
    txn, actor = secrets.token_hex(16), _holder(session)

    def decide(view: View) -> tuple[LogEntry, ...]:
        known = view.state.leases.get(lease)
        if known is not None and sorted(known.keep) == digests and not renews:
            return ()
        data: dict[str, Json] = {
            "id": lease,
            "keep": tuple(digests),
            "expires": now_ns + LEASE_SECONDS * 10**9,
        }
        opened = LogEntry(txn, "lease-open", actor, now_ns, "staged", data=data)
        if known is None:
            return (opened,)
        return (LogEntry(txn, "lease-close", actor, now_ns, data={"id": lease}), opened)

    if append(session.repository.log, decide).record is not None:
        seconds = now_ns / 10**9
        workspace.write_state(msgspec.structs.replace(state, lease=lease, lease_seconds=seconds))


def held(session: Session) -> set[Digest]:
    """What the lease of the staging area keeps now."""
    state = session.repository.log.refresh().state
    lease = state.leases.get(session.here.state().lease or "")
    return set(lease.keep) if lease is not None else set()


def release(session: Session) -> None:
    """Give the lease back; a lease that is gone already is fine."""
    state = session.here.state()
    lease, txn, actor = state.lease, secrets.token_hex(16), _holder(session)
    if lease is None:
        return

    def decide(view: View) -> tuple[LogEntry, ...]:
        if lease not in view.state.leases:
            return ()
        return (LogEntry(txn, "lease-close", actor, time.time_ns(), data={"id": lease}),)

    append(session.repository.log, decide)
    forget_lease(session)


def forget_lease(session: Session) -> None:
    """The lease went with a commit."""
    state = session.here.state()
    session.here.write_state(msgspec.structs.replace(state, lease=None, lease_seconds=0.0))


def _holder(session: Session) -> str:
    try:
        return session.author()
    except InvalidInputError:
        return "somebody"  # staging needs no name; the commit will


def _present(session: Session, name: str) -> str:
    staging = session.here.staging()
    for path in (name, *(f"{space}/{name}" for space in SPACES)):
        if path in staging.entries and staging.entries[path].kind is not None:
            return path
    objects = session.repository.objects
    return full_path(session.repository, tree_of(objects, session.base()), name)
