"""How does what is staged become a commit, once, even when a command was cut off?

A commit closes the lease of its staging area in the same record of the log. So a staging area
whose lease was closed beside a commit is in the history already: a command ended (killed, or
without an answer of the store) after its record landed and before it could tidy up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.append import resolve
from tensorrepo.repo.errors import CommitOutcomeUnknown, ConflictError, InvalidInputError
from tensorrepo.repo.transaction import begin
from tensorrepo.repo.workspace import Staging
from tensorrepo.workspace.staging import carry_staging, forget_lease, keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.repo.attempt import Committed
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.records import Record
    from tensorrepo.workspace.session import Session


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `commit_staged` did: `made` is new; `earlier` was made by a command that was cut off.

    Both None: nothing is staged, or what is staged changes nothing.
    """

    made: Committed | None = None
    earlier: Digest | None = None


def commit_staged(session: Session, message: str) -> Outcome:
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
        return Outcome(earlier=earlier)
    if head.branch is None:
        raise ConflictError(
            f"HEAD is detached at {head.commit:.12}. Run `tensorrepo switch -c NAME --keep` "
            "to make a branch here, then commit."
        )
    if not message.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit -m MESSAGE`")
    made = _commit(session, carry_staging(session, session.tip()), head.branch, message)
    if made is not None:
        workspace.write_staging(Staging())
        forget_lease(session)
    return Outcome(made=made)


def forget_committed(session: Session) -> Digest | None:
    """Empty a staging area that is committed already; gives that commit, None when it is not."""
    commit = find_committed(session)
    if commit is not None:
        session.here.write_staging(Staging())
        forget_lease(session)
    return commit


def find_committed(session: Session) -> Digest | None:
    """The commit that holds what is staged; None when there is none yet."""
    staging, lease = session.here.staging(), session.here.state().lease
    log = session.repository.log
    view = log.refresh()
    if not staging.entries or lease is None or lease in view.state.leases:
        return None
    return _closing(log.records(staging.generation + 1, view.generation + 1), lease)


def _closing(records: Iterable[Record], lease: str) -> Digest | None:
    """The newest commit whose record closes `lease`."""
    found = None
    for record in records:
        for closed in record.entries:
            if closed.kind == "lease-close" and closed.data.get("id") == lease:
                made = [e for e in record.entries if e.kind == "commit" and e.txn == closed.txn]
                found = made[0].updates[0].new if made else None
    return found


def settle_pending(session: Session) -> None:
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


def _commit(session: Session, staging: Staging, branch: str, message: str) -> Committed | None:
    lease = session.here.state().lease
    if lease is None or lease not in session.repository.log.refresh().state.leases:
        keep_alive(session, [staged.entry for staged in staging.entries.values()])
        lease = session.here.state().lease
    pin = session.repository.log.view_at(staging.generation)
    with begin(session.repository, branch, pin=pin, base=staging.base) as transaction:
        transaction.base = staging.base  # None, too: an undo may have left the branch without one
        for path, change in staging.entries.items():
            if change.entry is None:
                transaction.remove(path)
            else:
                transaction.stage(path, change.entry, since=staging.generation)
        return transaction.commit(message, author=session.author(), closes_lease=lease)
