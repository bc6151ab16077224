"""How does what is staged become a commit?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.transaction import begin
from tensorrepo.repo.workspace import Staging
from tensorrepo.workspace.staging import forget_lease

if TYPE_CHECKING:
    from tensorrepo.repo.attempt import Committed
    from tensorrepo.workspace.session import Session


def commit_staged(session: Session, message: str) -> Committed | None:
    """Commit what is staged to the workspace's branch, merging when the branch moved.

    Returns:
        The commit; None when nothing is staged, or what is staged changes nothing.

    Raises:
        ConflictError: others changed the same, or HEAD is detached. Staging is kept.
    """
    workspace, state = session.here, session.here.state()
    staging = workspace.staging()
    if not staging.entries:
        return None
    if state.head.branch is None:
        raise ConflictError(
            f"HEAD is detached at {state.head.commit:.12}. Run `tensorrepo switch -c NAME --keep` "
            "to make a branch here, then commit."
        )
    if not message.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit -m MESSAGE`")
    pin = session.repository.log.view_at(staging.generation)
    with begin(session.repository, state.head.branch, pin=pin, base=staging.base) as transaction:
        for path, change in staging.entries.items():
            if change.entry is None:
                transaction.remove(path)
            else:
                transaction.stage(path, change.entry, since=staging.generation)
        made = transaction.commit(message, author=session.author(), closes_lease=state.lease)
    if made is not None:
        workspace.write_staging(Staging())
        forget_lease(session)
    return made
