"""How do two lines of history become one commit?

One merge commit or nothing: there is no half-merged state to come back to. Rebasing a transaction
(`transaction`) and merging a branch are the same three-way merge of trees.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo import fence
from tensorrepo.repo.attempt import (
    Attempt,
    Committed,
    generation_of,
    raise_conflicts,
    tree_of,
)
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history import is_ancestor
from tensorrepo.repo.merge import MergeContext, merge_base_tree, merge_trees
from tensorrepo.repo.records import LogEntry, Update
from tensorrepo.repo.transaction import Transaction, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What `merge` did: nothing (both None), moved the branch forward, or made a commit."""

    forwarded: Digest | None = None
    committed: Committed | None = None


def merge(
    repository: Repository,
    branch: str,
    other: Digest,
    *,
    author: str,
    message: str,
    called: str | None = None,
    strategy: str = "fail",
    by_path: Mapping[str, str] | None = None,
    fast_forward: bool = True,
    clock: Callable[[], int] = time.time_ns,
) -> MergeOutcome:
    """Bring the history of `other` into `branch`.

    Args:
        repository: where.
        branch: moves; it must exist.
        other: the commit to merge.
        author: of the merge commit.
        message: of the merge commit.
        called: what people call `other`, for messages: the branch that was named.
        strategy: "fail", "ours", "theirs", or one that a kind's merge driver knows.
        by_path: other strategies, for single paths.
        fast_forward: only move the branch where it has no commit that `other` lacks.
        clock: UTC in ns.

    Raises:
        ConflictError: `conflicts` tells which paths, and why. Nothing changed.
    """
    # A merge that conflicts leaves uploads behind: leaving the transaction ends their threads.
    with begin(repository, branch) as transaction:
        tip = transaction.base
        if tip is None:
            raise NotFoundError(
                f"no branch {branch!r} to merge into. Make it with `tensorrepo branch`."
            )
        if is_ancestor(repository.objects, other, tip):
            return MergeOutcome()
        if fast_forward and is_ancestor(repository.objects, tip, other):
            _forward(transaction, tip, other, author, clock())
            return MergeOutcome(forwarded=other)

        def compose(onto: Digest | None) -> bytes:
            return _merged_tree(transaction, onto, other, strategy, dict(by_path or {}), called)

        attempt = Attempt(transaction, compose, message, author, clock(), others=(other,))
        return MergeOutcome(committed=attempt.run())


def _merged_tree(
    transaction: Transaction,
    tip: Digest | None,
    other: Digest,
    strategy: str,
    by_path: Mapping[str, str],
    called: str | None,
) -> bytes:
    objects, drivers = transaction.objects, transaction.repository.drivers
    assert tip is not None, "a merge goes into an existing branch"
    generations = (generation_of(objects, tip), generation_of(objects, other))
    merged = merge_trees(
        objects,
        merge_base_tree(objects, tip, other, drivers=drivers),
        tree_of(objects, tip),
        tree_of(objects, other),
        drivers=drivers,
        context=MergeContext(False, strategy, generations, by_path),
    )
    raise_conflicts(
        merged.conflicts,
        f"cannot merge {_named(other, called)} into {transaction.branch!r}",
        "Choose a side with `--strategy ours` or `--strategy theirs`, or change one side first.",
    )
    return merged.root


def _named(commit: Digest, called: str | None) -> str:
    is_digest = called is None or commit.startswith(called)
    return f"{commit:.12}" if is_digest else f"{called!r} ({commit:.12})"


def _forward(
    transaction: Transaction, tip: Digest, other: Digest, author: str, time_ns: int
) -> None:
    txn = secrets.token_hex(16)

    def decide(view: View) -> tuple[LogEntry, ...]:
        fence.secure_commit(transaction.objects, view.state, other)
        moved = Update(transaction.ref, tip, other)
        note = f"fast-forward to {other:.12}"
        return (LogEntry(txn, "commit", author, time_ns, note, (moved,)),)

    transaction.repository.append(decide)
