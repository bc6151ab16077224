"""Commits of what is staged, and commits that take the place of the one at HEAD."""

from __future__ import annotations

from tensorrepo.repo.changes.transaction import CommitTransaction, LandedCommit, amend, begin
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.commits import clean_message, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import resolve
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staged_lease import empty_staging, forget_committed, keep_alive, own_lease
from tensorrepo.workspace.staging import carry_staging, rebased
from tensorrepo.workspace.state import StagingArea


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What `commit_staged` did: `made` is new; `earlier` was made by a command that was cut off.

    Both None: nothing is staged, or what is staged changes nothing.
    """

    made: LandedCommit | None = None
    earlier: Digest | None = None


def commit_staged(session: WorkspaceSession, message: str) -> CommitResult:
    """Commit what is staged to the workspace's branch, merging when the branch moved.

    Raises:
        ConflictError: others changed the same, or HEAD is detached. Staging is kept.
        CommitOutcomeUnknown: of this commit, or of an earlier one that cannot be settled.
    """
    workspace = session.here
    settle_pending(session)
    earlier = forget_committed(session)
    staging, head = workspace.staging(), workspace.state().head
    if not staging.entries:
        return CommitResult(earlier=earlier)
    if head.branch is None:
        raise ConflictError(
            f"HEAD is detached at {head.commit:.12}. Run `tensorrepo switch -c NAME --keep` "
            "to make a branch here, then commit."
        )
    if not message.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit -m MESSAGE`")
    made = _commit(session, carry_staging(session, session.tip()), head.branch, message)
    if made is not None:
        empty_staging(session)
    return CommitResult(made=made)


def amend_staged(session: WorkspaceSession, message: str | None) -> CommitResult:
    """Put a commit with what is staged in the place of the one at HEAD, which must be one's own.

    `message` None keeps the one it has.

    Raises:
        ConflictError: that commit is somebody else's, or the branch moved. Staging is kept.
        NotFoundError: there is no commit yet.
    """
    workspace, objects = session.here, session.repository.objects
    settle_pending(session)
    earlier = forget_committed(session)
    if earlier is not None:
        return CommitResult(earlier=earlier)
    branch, head = session.branch(), amendable(session)
    old = read_commit(objects, head)
    staging = workspace.staging()
    told = old.message if message is None else clean_message(message)
    if not told.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit --amend -m MESSAGE`")
    signs = session.repository.policy.signer is not None and old.signature is None
    if not staging.entries and told == old.message and not signs:
        return CommitResult()
    if staging.entries:
        staging = rebased(objects, staging, head)
    pin = session.repository.log.view_at(staging.generation) if staging.entries else None
    with begin(session.repository, branch, pin=pin, base=head) as transaction:
        _fill(transaction, staging)
        lease = _lease_of(session, staging) if staging.entries else None
        author = session.author()
        made = amend(transaction, told, author=author, closes_lease=lease)
    empty_staging(session)
    return CommitResult(made=made)


def amendable(session: WorkspaceSession) -> Digest:
    """The commit at HEAD, if it is one's own: others may have built on those of others.

    Raises:
        ConflictError: it is somebody else's.
        NotFoundError: there is none.
    """
    branch, head = session.branch(), session.tip()
    if head is None:
        raise NotFoundError(f"branch {branch!r} has no commit to amend: `tensorrepo commit`")
    commit = read_commit(session.repository.objects, head)
    if commit.author != session.author():
        raise ConflictError(
            f"commit {head:.12}, the head of branch {branch!r}, is not yours but "
            f"{commit.author}'s. Make one of your own with `tensorrepo commit`, or take that one "
            f"back with `tensorrepo revert {head:.12}`. Nothing changed."
        )
    return head


def settle_pending(session: WorkspaceSession) -> None:
    """Make sure what became of every earlier append of this workspace, before another one."""
    log = session.repository.log
    for one in log.pending.unresolved() if log.pending else ():
        if resolve(log, one.txn, one.generation, settle=True) == "unknown":
            raise CommitOutcomeUnknown(
                f"whether an earlier commit is in log record {one.generation} is still not known. "
                f"Nothing new was tried: run `tensorrepo resolve {one.txn} --settle` first.",
                txn=one.txn,
                generation=one.generation,
            )


def _commit(
    session: WorkspaceSession, staging: StagingArea, branch: str, message: str
) -> LandedCommit | None:
    lease = _lease_of(session, staging)
    pin = session.repository.log.view_at(staging.generation)
    with begin(session.repository, branch, pin=pin, base=staging.base) as transaction:
        transaction.base = staging.base  # None, too: an undo may have left the branch without one
        _fill(transaction, staging)
        return transaction.commit(message, author=session.author(), closes_lease=lease)


def _lease_of(session: WorkspaceSession, staging: StagingArea) -> str | None:
    """The lease on what is staged, which the commit closes; opened anew where it is gone."""
    lease = own_lease(session)
    if lease is None or lease not in session.repository.log.refresh().state.leases:
        entries = [staged.entry for staged in staging.entries.values()]
        keep_alive(session, entries, staging.generation)
        lease = session.here.state().lease
    return lease


def _fill(transaction: CommitTransaction, staging: StagingArea) -> None:
    for path, change in staging.entries.items():
        if change.entry is None:
            transaction.remove(path)
        else:
            transaction.stage(path, change.entry, since=staging.generation)
