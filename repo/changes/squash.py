"""Squash of a branch: one commit with its content takes the place of its history.

The log keeps where the branch was, so that `undo` takes it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import CommitAttempt, LandedCommit, begin, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView


def squash_branch(
    repository: RepositoryCore,
    branch: str,
    message: str,
    *,
    author: str,
    clock: Callable[[], int] = time.time_ns,
) -> LandedCommit:
    """Put one commit without parents in the place of all that lead to a branch.

    Raises:
        NotFoundError: there is no such branch.
        ConflictError: it moved meanwhile. Nothing changed.
    """
    with begin(repository, branch) as transaction:
        if transaction.base is None:
            raise NotFoundError(f"there is no branch {branch!r:.120}")
        root = tree_of(transaction.objects, transaction.base)
        return _Squashed(transaction, lambda _: root, message, author, clock()).run()


@dataclass(slots=True)
class _Squashed(CommitAttempt):
    """An attempt whose commit has the tree of its branch, and no parents."""

    @property
    def kind(self) -> str:
        return "ref-reset"  # which keeps the commit that the ref leaves

    def note(self, subject: str) -> str:
        return f"squash: {subject}"[:200]

    def tip(self, view: LogView) -> Digest | None:
        tx = self.transaction
        found = view.state.refs.get(tx.ref)
        if found != tx.base:
            raise ConflictError(
                f"branch {tx.branch!r} moved from {tx.base:.12} to {found or 'nothing':.12} while "
                "it was squashed. Nothing changed: look at it, and repeat."
            )
        return found

    def _parents(self, tip: Digest | None) -> tuple[Digest, ...]:  # noqa: ARG002  it has none
        return ()

    def _compared(self, tip: Digest | None) -> Digest | None:  # noqa: ARG002  as above
        return None
