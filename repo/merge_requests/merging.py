"""Merging of a merge request: the target moves and the request is closed, in one record.

Rules of the target hold: who may move it, whose signature its commits need, which checks must have
passed. A check counts for the commit that it was reported on; whoever pushes another one runs it
again. Where the target must be signed, nobody but who signs makes the merge commit: they merge by
themselves, push the commit to a branch of their own, and name it here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tensorrepo.repo.changes.merge_branches import forward, merge
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import CheckRun, ClientPolicy, rules_of
from tensorrepo.repo.changes.transaction import begin, generation_of, raise_conflicts, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.commits import is_ancestor
from tensorrepo.repo.history.merge_trees import (
    Conflict,
    MergeContext,
    merge_base_tree,
    merge_trees,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import BranchRule
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.log.state import State
from tensorrepo.repo.merge_requests.editing import merged_edit, proposed
from tensorrepo.repo.merge_requests.records import MergeRequest, find_request


@dataclass(frozen=True, slots=True)
class Mergeability:
    """Whether a request can be merged as things stand.

    Attributes:
        is_merged: whether the target has it already.
        conflicts: paths that both changed.
        missing_checks: names of required checks that did not pass on the proposed commit.
        must_be_signed: whether the merge commit needs a signature that the server does not make.
    """

    is_merged: bool
    conflicts: tuple[Conflict, ...]
    missing_checks: tuple[str, ...]
    must_be_signed: bool

    @property
    def is_ready(self) -> bool:
        return not (self.is_merged or self.conflicts or self.missing_checks or self.must_be_signed)


def rules_for(state: State, ref: str) -> tuple[BranchRule, ...]:
    """Rules that hold for a branch, by its ref."""
    branch = ref.removeprefix(BRANCHES)
    return tuple(rule for rule in rules_of(state) if rule.matches(branch))


def look_at(repository: RepositoryCore, view: LogView, request: MergeRequest) -> Mergeability:
    """Whether `request` can be merged at `view`; nothing is written."""
    head, tip = proposed(view, request.number), view.state.refs.get(request.target)
    if tip is None:
        raise _target_gone(request)
    rules = rules_for(view.state, request.target)
    needed = dict.fromkeys(name for rule in rules for name in rule.checks)
    passed = request.passed(head)
    merged = is_ancestor(repository.objects, head, tip)
    is_forward = is_ancestor(repository.objects, tip, head)
    return Mergeability(
        merged,
        () if merged or is_forward else _conflicts(repository, view, request, tip, head),
        tuple(name for name in needed if name not in passed),
        must_be_signed=not is_forward and any(rule.signed for rule in rules),
    )


def _target_gone(request: MergeRequest) -> NotFoundError:
    return NotFoundError(
        f"branch {request.target.removeprefix(BRANCHES)!r}, into which merge request "
        f"{request.number} is to come, is gone: make it again, or close the request"
    )


def _conflicts(
    repository: RepositoryCore, view: LogView, request: MergeRequest, tip: Digest, head: Digest
) -> tuple[Conflict, ...]:
    branch = request.target.removeprefix(BRANCHES)
    with begin(repository, branch, pin=view) as transaction:
        objects = transaction.objects
        merged = merge_trees(
            objects,
            merge_base_tree(objects, tip, head, drivers=repository.drivers),
            tree_of(objects, tip),
            tree_of(objects, head),
            drivers=repository.drivers,
            context=MergeContext(
                False, "fail", (generation_of(objects, tip), generation_of(objects, head))
            ),
        )
    return tuple(merged.conflicts)


def merge_request(
    repository: RepositoryCore,
    number: int,
    *,
    author: str,
    head: Digest | None = None,
    commit: Digest | None = None,
    message: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> MergeRequest:
    """Merge an open request, and close it.

    Args:
        repository: where.
        number: number of the request.
        author: who merges.
        head: the commit that they looked at; None: the one that is proposed now.
        commit: a merge that they made themselves: a descendant of the target and of the head;
            None: the repository's three-way merge.
        message: message of the merge commit; None says which request it is of.
        clock: UTC in ns.

    Raises:
        ConflictError: both changed the same, the request is not open, it or the target moved, or
            the target's commits must be signed and `commit` is None. Nothing changed.
        PermissionDenied: a rule of the target forbids it, or a check has not passed.
    """
    view = repository.log.refresh()
    request = find_request(repository.objects, view, number)
    head = head or proposed(view, number)
    branch, source = (ref.removeprefix(BRANCHES) for ref in (request.target, request.source))
    if request.state == "open" and request.target not in view.state.refs:
        raise _target_gone(request)
    allowed = _with_checks(repository, number, head)
    moved_to: list[Digest | None] = [None]
    edit = merged_edit(
        allowed, number, head, author=author, commit=lambda: moved_to[0], clock=clock
    )

    def beside(view: LogView, moved: Update, txn: str) -> tuple[LogEntry, ...]:
        moved_to[0], edit.txn = moved.new, txn
        return edit.decide(view)

    with edit.transaction:
        if commit is not None:
            _take(allowed, branch, head, commit, partial(_forwarded, author, beside, clock))
        else:
            must_sign = any(rule.signed for rule in rules_for(view.state, request.target))
            if must_sign:
                _refuse_unsigned(repository, view, request, head)
            try:
                outcome = merge(
                    allowed,
                    branch,
                    head,
                    author=author,
                    message=message or f"Merge request {number}: {request.title}",
                    called=source,
                    fast_forward=must_sign,
                    beside=beside,
                    clock=clock,
                )
            except ConflictError as error:  # whoever merges a request chooses no side
                conflicts = [one for one in error.conflicts if isinstance(one, Conflict)]
                raise_conflicts(
                    conflicts,
                    f"cannot merge request {number}, {source!r} into {branch!r}",
                    f"Merge {branch!r} into {source!r}, decide there, push, and update it.",
                )
                raise
            if outcome.committed is None and outcome.forwarded is None:  # it is there already
                moved_to[0] = repository.log.refresh().state.refs.get(request.target)
                edit.run()
    assert edit.made is not None, "an append ends with the decision that it stored"
    return edit.made


def _forwarded(
    author: str,
    beside: Callable[[LogView, Update, str], tuple[LogEntry, ...]],
    clock: Callable[[], int],
    repository: RepositoryCore,
    branch: str,
    tip: Digest,
    commit: Digest,
) -> None:
    with begin(repository, branch) as transaction:
        forward(transaction, tip, commit, author=author, beside=beside, clock=clock)


def _take(
    repository: RepositoryCore,
    branch: str,
    head: Digest,
    commit: Digest,
    move: Callable[[RepositoryCore, str, Digest, Digest], None],
) -> None:
    """Move the target to a merge that somebody made. Raises ConflictError for what is none."""
    tip = repository.log.refresh().state.refs.get(BRANCHES + branch)
    if tip is None:
        raise NotFoundError(f"branch {branch!r} is gone")
    if not is_ancestor(repository.objects, tip, commit):
        raise ConflictError(
            f"branch {branch!r} is at {tip:.12}, which {commit:.12} does not have in its history: "
            "merge once more on the new head, and repeat"
        )
    if not is_ancestor(repository.objects, head, commit):
        raise ConflictError(f"{commit:.12} does not have the proposed {head:.12} in its history")
    move(repository, branch, tip, commit)


def _refuse_unsigned(
    repository: RepositoryCore, view: LogView, request: MergeRequest, head: Digest
) -> None:
    """Raise ConflictError with the target's head where only a new commit would merge."""
    tip = view.state.refs.get(request.target)
    if tip is not None and not is_ancestor(repository.objects, tip, head):
        raise ConflictError(
            f"commits of {request.target.removeprefix(BRANCHES)!r} must be signed, and the server "
            f"does not sign: merge {head} into {tip}, sign, push that commit to a branch of yours, "
            "and repeat with it"
        )


def _with_checks(repository: RepositoryCore, number: int, head: Digest) -> RepositoryCore:
    """The repository, with what was reported on `head` for the answer of its checks."""

    def run_check(run: CheckRun) -> None:
        view = repository.log.latest or repository.log.refresh()
        if run.name not in find_request(repository.objects, view, number).passed(head):
            raise PermissionDenied(
                f"check {run.name!r} has not passed on {head:.12}, which {run.ref} needs. Nothing "
                f"was changed. Let it be reported on merge request {number}."
            )

    policy = ClientPolicy(repository.policy.signer, repository.policy.allowed, run_check)
    return replace(repository, policy=policy)
