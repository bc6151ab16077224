"""Merge of branches, cherry-pick and revert of commits.

One commit or nothing: there is no half-merged state to come back to. All are the three-way merge of
whole trees, as is the rebase of a transaction. To pick a change, the commit and its parent are two
sides: to repeat the change its parent is the base, to undo it the commit is.

Source:
    docs/spec/trees.md, section "Merge".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import (
    CommitAttempt,
    CommitTransaction,
    LandedCommit,
    begin,
    generation_of,
    raise_conflicts,
    tree_of,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import Commit, is_ancestor, read_commit
from tensorrepo.repo.history.merge_trees import (
    MergeContext,
    merge_base_tree,
    merge_trees,
    pick_sides,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.tables import RecordTable, Shown

# What is recorded with a move: of the view, the move itself and the transaction's name.
Beside: TypeAlias = Callable[[LogView, Update, str], tuple[LogEntry, ...]]


def nothing_beside(view: LogView, moved: Update, txn: str) -> tuple[LogEntry, ...]:  # noqa: ARG001
    """Nothing."""
    return ()


@dataclass(frozen=True, slots=True, repr=False)
class MergeOutcome(Shown):
    """What `merge` did: nothing (both None), moved the branch forward, or made a commit."""

    forwarded: Digest | None = None
    committed: LandedCommit | None = None

    def to_table(self) -> RecordTable:
        """In a line."""
        if self.committed is not None:
            made = self.committed.to_table()
            return replace(made, lines=(f"merged: {made.lines[0]}", *made.lines[1:]))
        if self.forwarded is not None:
            return RecordTable((f"moved forward to {self.forwarded:.12}",))
        return RecordTable(("nothing to merge: its history is there already",))


def merge(  # noqa: PLR0913  what a merge has
    repository: RepositoryCore,
    branch: str,
    other: Digest,
    *,
    author: str,
    message: str,
    called: str | None = None,
    strategy: str = "fail",
    by_path: Mapping[str, str] | None = None,
    fast_forward: bool = True,
    beside: Beside = nothing_beside,
    clock: Callable[[], int] = time.time_ns,
) -> MergeOutcome:
    """Bring the history of `other` into `branch`.

    Args:
        repository: where.
        branch: moves; it must exist.
        other: the commit to merge.
        author: author of the merge commit.
        message: message of the merge commit.
        called: what people call `other`, for messages: the branch that was named.
        strategy: "fail", "ours", "theirs", or one that a kind's merge driver knows.
        by_path: other strategies, for single paths.
        fast_forward: only move the branch where it has no commit that `other` lacks.
        beside: what is recorded with the move; asked anew for every head.
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
            forward(transaction, tip, other, author=author, beside=beside, clock=clock)
            return MergeOutcome(forwarded=other)

        def compose(onto: Digest | None) -> bytes:
            if onto not in (None, tip) and is_ancestor(repository.objects, other, onto):
                raise _MergedMeanwhile
            return _merged_tree(transaction, onto, other, strategy, dict(by_path or {}), called)

        attempt = _Merging(
            transaction, compose, message, author, clock(), others=(other,), beside=beside
        )
        try:
            return MergeOutcome(committed=attempt.run())
        except _MergedMeanwhile:
            return MergeOutcome()


@dataclass(slots=True, kw_only=True)
class _Merging(CommitAttempt):
    """An attempt to merge, with what is recorded beside it."""

    beside: Beside

    def after(self, view: LogView, moved: Update) -> tuple[LogEntry, ...]:
        return self.beside(view, moved, self.txn)


class _MergedMeanwhile(Exception):
    """Somebody else brought into the branch what was to be merged."""


def _merged_tree(
    transaction: CommitTransaction,
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


def forward(
    transaction: CommitTransaction,
    tip: Digest,
    other: Digest,
    *,
    author: str,
    beside: Beside = nothing_beside,
    clock: Callable[[], int] = time.time_ns,
) -> None:
    """Move the transaction's branch from `tip` to `other`, a descendant, with what is beside it."""
    txn, time_ns = secrets.token_hex(16), clock()

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        gc_fence.secure_commit(transaction.objects, view.state, other)
        moved = Update(transaction.ref, tip, other)
        note = f"fast-forward to {other:.12}"
        entry = LogEntry(txn, "commit", author, time_ns, note, (moved,))
        return (entry, *beside(view, moved, txn))

    transaction.repository.append(decide)


class _ChangesNothing(Exception):
    """The branch has, or lacks, already what was picked."""


def cherry_pick(
    repository: RepositoryCore,
    branch: str,
    commit: Digest,
    *,
    committer: str,
    message: str | None = None,
    mainline: int | None = None,
    strategy: str = "fail",
    clock: Callable[[], int] = time.time_ns,
) -> LandedCommit | None:
    """Make on `branch` the change that `commit` made to its parent, in its author's name.

    Args:
        repository: where.
        branch: moves; it must exist.
        commit: the change to repeat; its author and metadata are kept.
        committer: who picks: the log names them, and theirs is the record to undo.
        message: message of the new commit; None: that of `commit`, and where it was picked
            from.
        mainline: the parent, counted from 1, against which a merge's change is taken.
        strategy: "fail", "ours", "theirs", or one that a kind's merge driver knows.
        clock: UTC in ns.

    Returns:
        The commit, or None when it would change nothing (then nothing was written).

    Raises:
        ConflictError: `conflicts` tells which paths, and why. Nothing changed.
        InvalidInputError: a merge without `mainline`, or no such parent.
    """
    return _pick(
        repository, branch, commit, committer, clock,
        revert=False, message=message, mainline=mainline, strategy=strategy,
    )  # fmt: skip


def revert(
    repository: RepositoryCore,
    branch: str,
    commit: Digest,
    *,
    author: str,
    message: str | None = None,
    mainline: int | None = None,
    strategy: str = "fail",
    clock: Callable[[], int] = time.time_ns,
) -> LandedCommit | None:
    """Take back on `branch` what `commit` changed in its parent, and keep all that came after.

    Arguments, result and errors are those of `cherry_pick`; `message` None says what is reverted.
    """
    return _pick(
        repository, branch, commit, author, clock,
        revert=True, message=message, mainline=mainline, strategy=strategy,
    )  # fmt: skip


def picked_message(commit: Commit, digest: Digest) -> str:
    """The message of a commit that repeats `commit`, as `git cherry-pick -x` writes it."""
    return f"{commit.message}\n\n(cherry picked from commit {digest})".lstrip()


def revert_message(commit: Commit, digest: Digest, mainline: int | None = None) -> str:
    """The message of a commit that undoes `commit`, as `git revert` writes it."""
    subject = commit.message.partition("\n")[0]
    undone = f"This reverts commit {digest}"
    if len(commit.parents) > 1 and mainline is not None:
        undone += f", reversing\nchanges made to {commit.parents[mainline - 1]}"
    return f'Revert "{subject}"\n\n{undone}.'


def _pick(
    repository: RepositoryCore,
    branch: str,
    commit: Digest,
    actor: str,
    clock: Callable[[], int],
    *,
    revert: bool,
    message: str | None,
    mainline: int | None,
    strategy: str,
) -> LandedCommit | None:
    picked = read_commit(repository.objects, commit)
    sides = pick_sides(repository.objects, commit, revert=revert, mainline=mainline)
    if revert:
        what = f"revert {commit:.12} on", "what was there before that commit"
        message = revert_message(picked, commit, mainline) if message is None else message
    else:
        what = f"cherry-pick {commit:.12} onto", "that commit"
        message = picked_message(picked, commit) if message is None else message
    told = f"cannot {what[0]} branch {branch!r} (ours: the branch, theirs: {what[1]})"
    # A pick that conflicts leaves uploads behind: leaving the transaction ends their threads.
    with begin(repository, branch) as transaction:
        if transaction.base is None:
            raise NotFoundError(
                f"no branch {branch!r} to pick onto. Make it with `tensorrepo branch`."
            )
        compose = partial(_picked_tree, transaction, sides, told, strategy)
        author = actor if revert else picked.author
        metadata = {} if revert else dict(picked.metadata)
        attempt = CommitAttempt(transaction, compose, message, author, clock(), metadata)
        attempt.sources, attempt.actor = (commit,), actor
        try:
            return attempt.run()
        except _ChangesNothing:
            return None


def _picked_tree(
    transaction: CommitTransaction,
    sides: tuple[bytes, bytes],
    told: str,
    strategy: str,
    tip: Digest | None,
) -> bytes:
    """Root page of `tip`'s tree with the change from one of `sides` to the other made in it."""
    base, theirs = sides
    ours = tree_of(transaction.objects, tip)
    generation = generation_of(transaction.objects, tip)
    merged = merge_trees(
        transaction.objects,
        base,
        ours,
        theirs,
        drivers=transaction.repository.drivers,
        # What is picked comes after all that the branch has, however old the commit is.
        context=MergeContext(False, strategy, (generation, generation + 1)),
    )
    raise_conflicts(
        merged.conflicts,
        told,
        "Choose a side with `--strategy ours` or `--strategy theirs`, or change the branch first.",
    )
    if merged.root == ours:
        raise _ChangesNothing
    return merged.root
