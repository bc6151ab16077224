"""Lease on what is staged: collection keeps it until a commit closes the lease, or a release does.

A record that closes the lease and moves a branch is the commit of what was staged: so a command
that was cut off after it is told from one that was cut off before.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

import msgspec

from tensorrepo.repo.changes.leases import close_leases, secure_kept
from tensorrepo.repo.changes.transaction import entry_digests
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, root_links, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import CanonicalValue, LogEntry, LogRecord
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import StagingArea

LEASE_SECONDS = 14 * 24 * 3600
RENEW_SECONDS = 24 * 3600  # a lease younger than this is not renewed
MOST_NAMED = 400  # objects that a lease names; of more it names pages of a tree


def keep_alive(
    session: WorkspaceSession, entries: list[Entry | None], since: int, root: Digest | None = None
) -> None:
    """Hold one lease on all that is staged: collection keeps it until the commit, or a release.

    What a long `add` had stored stays in it as well; `root` is that of the one at work. What the
    staging area says now stays until the next call: who dies before it is written leaves it staged.
    `since` is where the log stood before the first of all these was put.
    """
    workspace, state = session.here, session.here.state()
    unfinished = {each.root for each in workspace.unfinished().values()}
    wanted = kept_digests(session, entries) | ({root} if root is not None else set())
    older = unfinished | _replaced(session, entries)
    known = older and older & held(session)
    if len(wanted | known) > 2 * MOST_NAMED:  # a record would not hold it
        known &= unfinished
    digests = sorted(wanted | known)
    lease, renewed = own_lease(session) or new_lease(), state.lease_seconds
    renewed_now = hold(session, lease, digests, since, renewed)
    if renewed_now != renewed:
        workspace.write_state(
            msgspec.structs.replace(state, lease=lease, lease_seconds=renewed_now)
        )


def _replaced(session: WorkspaceSession, entries: Iterable[Entry | None]) -> set[Digest]:
    """What is staged, and is not among `entries`."""
    staged = (one.entry for one in session.here.staging().entries.values())
    before = {digest for entry in staged for digest in entry_digests(entry)}
    return before - {digest for entry in entries for digest in entry_digests(entry)}


def kept_digests(session: WorkspaceSession, entries: Iterable[Entry | None]) -> set[Digest]:
    """What a lease on `entries` names: their objects, of many the pages of a tree of them.

    A record of the log has 64 KiB.
    """
    digests = {digest for entry in entries for digest in entry_digests(entry)}
    if len(digests) <= MOST_NAMED:
        return digests
    core = session.repository
    named = {f"{one.digest}.{one.storage or 0}": one for one in entries if one is not None}
    with ObjectWriter(core.objects, core.log.refresh().state.graves) as writer:
        root = update(writer, EMPTY_TREE, named)
        writer.flush()
    return set(root_links(root))


def new_lease() -> str:
    """The name of a lease to come."""
    return f"stage-{secrets.token_hex(8)}"


def own_lease(session: WorkspaceSession) -> str | None:
    """The lease on what is staged; one that went with a stash is that one's alone."""
    lease = session.here.state().lease
    return None if lease in {stash.lease for stash in session.here.stashes()} else lease


def hold(
    session: WorkspaceSession, lease: str, digests: list[Digest], since: int, renewed: float
) -> float:
    """Let a lease keep exactly `digests`, put after `since`, and renew one that is a day old.

    Returns:
        When it was renewed last, by this machine's clock: `renewed`, or now.

    Raises:
        CommitExpired: something of them was collected before they were kept.
    """
    now_ns = time.time_ns()
    renews = now_ns / 10**9 - renewed > RENEW_SECONDS
    txn, actor = secrets.token_hex(16), lease_holder(session)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        known = view.state.leases.get(lease)
        if known is not None and sorted(known.keep) == digests and not renews:
            return ()
        secure_kept(session.repository, view, digests, since, "what is staged")
        data: dict[str, CanonicalValue] = {
            "id": lease,
            "keep": tuple(digests),
            "expires": now_ns + LEASE_SECONDS * 10**9,
        }
        opened = LogEntry(txn, "lease-open", actor, now_ns, "staged", data=data)
        if known is None:
            return (opened,)
        return (LogEntry(txn, "lease-close", actor, now_ns, data={"id": lease}), opened)

    return renewed if append(session.repository.log, decide).record is None else now_ns / 10**9


def held(session: WorkspaceSession) -> set[Digest]:
    """What the lease of the staging area keeps now, as far as it is staged or unfinished."""
    state, objects = session.repository.log.refresh().state, session.repository.objects
    lease = state.leases.get(session.here.state().lease or "")
    if lease is None:
        return set()
    kept = set(lease.keep)
    if len(session.here.staging().entries) <= MOST_NAMED // 2:
        return kept
    pages = [digest for digest in kept if objects.describe(digest).kind is Kind.TREE_PAGE]
    while pages:
        links = objects.get(pages.pop()).links
        kept.update(link.digest for link in links)
        pages += [link.digest for link in links if link.kind is Kind.TREE_PAGE]
    return kept


def release(session: WorkspaceSession) -> None:
    """Give the lease back; a lease that is gone already is fine."""
    lease = own_lease(session)
    if lease is not None:
        close_lease(session, lease)
    forget_lease(session)


def close_lease(session: WorkspaceSession, lease: str) -> None:
    """Let a lease keep nothing any more."""
    close_leases(session.repository, [lease], holder=lease_holder(session))


def forget_lease(session: WorkspaceSession) -> None:
    """The lease went with a commit."""
    state = session.here.state()
    session.here.write_state(msgspec.structs.replace(state, lease=None, lease_seconds=0.0))


def lease_holder(session: WorkspaceSession) -> str:
    """Who holds leases of this workspace."""
    try:
        return session.author()
    except InvalidInputError:
        return "somebody"  # staging needs no name; the commit will


def empty_staging(session: WorkspaceSession) -> None:
    """Forget what is staged, for it is committed: files that were added are those of a commit."""
    workspace = session.here
    files = workspace.files()
    if files != workspace.tracked():
        workspace.write_tracked(files)
    workspace.write_staging(StagingArea())
    forget_lease(session)


def forget_committed(session: WorkspaceSession) -> Digest | None:
    """Empty a staging area that is committed already; gives that commit, None when it is not."""
    commit = find_committed(session)
    if commit is not None:
        empty_staging(session)
    return commit


def find_committed(session: WorkspaceSession) -> Digest | None:
    """The commit that holds what is staged; None when there is none yet."""
    staging, lease = session.here.staging(), session.here.state().lease
    log = session.repository.log
    view = log.refresh()
    if not staging.entries or lease is None or lease in view.state.leases:
        return None
    return _closing(log.records(staging.generation + 1, view.generation + 1), lease)


def _closing(records: Iterable[LogRecord], lease: str) -> Digest | None:
    """The newest commit whose record closes `lease`."""
    found = None
    for record in records:
        for closed in record.entries:
            if closed.kind == "lease-close" and closed.data.get("id") == lease:
                beside = (each for each in record.entries if each.txn == closed.txn)
                made = [each for each in beside if each.kind in ("commit", "ref-reset")]
                found = made[0].updates[0].new if made else None
    return found
