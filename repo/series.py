"""How is a commit made that none of its kind descends from, and how do others go in the same step?

Checkpoints of a training are commits beside each other: each has the same parent, where the
training began, and a ref of its own. As ancestors of one another none could ever be freed. One
record creates the ref of a new one and deletes those that are not kept, so that no crash leaves
more, or fewer, than the policy says.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.repo.attempt import Attempt, Committed
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.records import LogEntry, Update
from tensorrepo.repo.refs import refuse_taken
from tensorrepo.repo.transaction import Transaction, begin
from tensorrepo.repo.trees import EMPTY_TREE, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tensorrepo.repo.commits import Json
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository

MOST_DROPPED = 100  # refs in one record, which has 64 KiB; what is left goes with the next


def begin_beside(repository: Repository, ref: str) -> Transaction:
    """A transaction whose commit will be named by `ref`, such as ``runs/<run>/<step>``.

    It has no base: its tree is what is staged, and the history before it is told at the end.
    """
    space, _, name = check_ref(ref).partition("/")
    started = begin(repository, name, space=f"{space}/")
    started.base = None
    return started


def commit_beside(
    transaction: Transaction,
    parent: Digest | None,
    message: str,
    *,
    author: str,
    metadata: Mapping[str, Json] | None = None,
    drops: Callable[[View], Iterable[str]],
    clock: Callable[[], int] = time.time_ns,
) -> Committed:
    """Make the commit; its ref begins anew, whatever it named before.

    Args:
        transaction: of `begin_beside`.
        parent: where the series began; None: nowhere.
        message: of the commit.
        author: of the commit.
        metadata: of the commit.
        drops: full names of refs that go in the same record, of those that a view has; at most
            `MOST_DROPPED` of them go at once.
        clock: UTC in ns.

    Raises:
        CommitOutcomeUnknown: the store did not say; `resolve` finds out.
        CommitExpired: a staged object, or the parent, was collected.
    """
    tree = update(transaction.objects, EMPTY_TREE, transaction.staged)
    anew = _Anew(
        transaction,
        lambda _: tree,
        message,
        author,
        clock(),
        dict(metadata or {}),
        others=() if parent is None else (parent,),
        drops=drops,
    )
    return anew.run()


@dataclass(slots=True)
class _Anew(Attempt):
    """An attempt whose ref does not move from what it names, but begins anew."""

    drops: Callable[[View], Iterable[str]] = field(default=lambda _: ())

    def tip(self, view: View) -> Digest | None:
        if self.transaction.ref not in view.state.refs:
            refuse_taken(view, self.transaction.ref)
        return None

    def before(self, view: View) -> tuple[LogEntry, ...]:
        held = view.state.refs
        gone = [ref for ref in dict.fromkeys(self.drops(view)) if ref in held][:MOST_DROPPED]
        own = [self.transaction.ref] if self.transaction.ref in held else []
        updates = tuple(Update(ref, held[ref], None) for ref in dict.fromkeys([*own, *gone]))
        if not updates:
            return ()
        actor = self.actor or self.author
        return (LogEntry(self.txn, "ref-delete", actor, self.time_ns, "expired", updates),)
