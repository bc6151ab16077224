"""How does a composed tree get onto a branch that others move at the same time?

`Attempt.run` hands `decide` to the log's `append`, which calls it anew for every head that it
finds: compose the tree on that head, make its objects durable, pass the fence, say what to append.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.repo import fence
from tensorrepo.repo.commits import Commit, changed_paths, clean_message, read_commit, write_commit
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.records import LogEntry, Update
from tensorrepo.repo.refs import refuse_taken
from tensorrepo.repo.trees import EMPTY_TREE, diff, root_links

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensorrepo.repo.commits import Json as MetadataJson
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.merge import Conflict
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.state import Grave, State
    from tensorrepo.repo.transaction import Transaction
    from tensorrepo.repo.trees import Entry

_SUBJECT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was made. `onto` is the tip that it was merged onto, None when none moved."""

    digest: Digest
    commit: Commit
    generation: int
    onto: Digest | None
    attempts: int


@dataclass(slots=True)
class Attempt:
    """One commit on its way into the log.

    `compose` gives the root page of the tree to commit on a tip; `others` are parents beside it,
    `sources` commits that the tree takes content of without being their child. The log names
    `actor`, who is the author unless another is told.
    """

    transaction: Transaction
    compose: Callable[[Digest | None], bytes]
    message: str
    author: str
    time_ns: int
    metadata: dict[str, MetadataJson] = field(default_factory=dict)
    closes_lease: str | None = None
    others: tuple[Digest, ...] = ()
    sources: tuple[Digest, ...] = ()
    actor: str | None = None
    txn: str = field(default_factory=lambda: secrets.token_hex(16))
    _made: tuple[Digest, Commit] | None = None
    _fenced: int | None = None

    def run(self) -> Committed:
        """Append it. Raises what `append` and `compose` raise; then nothing changed."""
        appended = self.transaction.repository.append(self.decide)
        assert self._made is not None, "an append ends with the decision that it stored"
        digest, commit = self._made
        tip = commit.parents[0] if commit.parents else None
        onto = tip if tip != self.transaction.base else None
        return Committed(digest, commit, appended.view.generation, onto, appended.attempts)

    def decide(self, view: View) -> tuple[LogEntry, ...]:
        """What to append at `view`: merged, durable, and past the fence."""
        tx, tip = self.transaction, self.tip(view)
        if self._made is None or self._made[1].parents != self._parents(tip):
            self._made = self._write_or_expire(tip)
        tx.objects.flush()
        self._pass_fence(view)
        return self._entries(view, Update(tx.ref, tip, self._made[0]))

    def tip(self, view: View) -> Digest | None:
        """The commit that the ref moves from; None where it is made."""
        tx = self.transaction
        tip = view.state.refs.get(tx.ref)
        if tip is None and tx.base is not None:
            raise ConflictError(
                f"branch {tx.branch!r} was deleted while committing onto {tx.base:.12}. "
                f"Make it again with `tensorrepo branch {tx.branch} {tx.base:.12}` and repeat."
            )
        if tip is None:
            refuse_taken(view, tx.ref)
        return tip

    def before(self, view: View) -> tuple[LogEntry, ...]:  # noqa: ARG002  a series looks at it
        """What is recorded with the commit, ahead of it."""
        return ()

    def after(self, view: View, moved: Update) -> tuple[LogEntry, ...]:  # noqa: ARG002  as above
        """What is recorded with the commit, behind it; `moved` is what the commit does."""
        return ()

    def _entries(self, view: View, moved: Update) -> tuple[LogEntry, ...]:
        subject = self.message.partition("\n")[0][:_SUBJECT_CHARACTERS]
        actor = self.actor or self.author
        commit = LogEntry(self.txn, "commit", actor, self.time_ns, subject, (moved,))
        around = (*self.before(view), commit, *self.after(view, moved))
        if self.closes_lease is None or self.closes_lease not in view.state.leases:
            return around
        gone = {"id": self.closes_lease}
        closed = LogEntry(self.txn, "lease-close", actor, self.time_ns, data=gone)
        return (*around, closed)

    def _write_or_expire(self, tip: Digest | None) -> tuple[Digest, Commit]:
        try:
            return self._write(tip)
        except NotFoundError as error:
            staged = self.transaction.staged.items()
            lost = [path for path, entry in staged if entry and entry.digest[:12] in str(error)]
            raise CommitExpired(
                f"{', '.join(lost) or self.transaction.ref}: {error} It was collected since it was "
                "staged. Add it again."
            ) from error

    def _write(self, tip: Digest | None) -> tuple[Digest, Commit]:
        objects = self.transaction.objects
        root = self.compose(tip)
        commit = Commit(
            tree=root,
            parents=self._parents(tip),
            generation=1 + max(generation_of(objects, p) for p in (tip, *self.others)),
            author=self.author,
            message=clean_message(self.message),
            time_ns=self.time_ns,
            metadata=self.metadata,
            changed=changed_paths(diff(objects, tree_of(objects, tip), root)),
            signature=None,
        )
        return write_commit(objects, commit).digest, commit

    def _parents(self, tip: Digest | None) -> tuple[Digest, ...]:
        return self.others if tip is None else (tip, *self.others)

    def _pass_fence(self, view: View) -> None:
        """Rules W3 and W4 at `view`; what a condemnation hit is stored again."""
        tx = self.transaction
        for other in (*self.others, *self.sources):
            fence.secure_commit(tx.objects, view.state, other)
        fenced = tx.pin.generation if self._fenced is None else self._fenced
        graves = fence.graves_since(view.state, fenced)
        # What is staged may come from anywhere at the pin, also from a branch that is gone by now.
        staged = {
            path: fence.graves_since(view.state, tx.since.get(path, fenced)) for path in tx.staged
        }
        if any(staged.values()) or graves:
            hits = self._hits_or_expire(view.state, graves, staged)
            fence.store_again(tx.objects, hits, view.state.graves, tx.ref)
            tx.since = dict.fromkeys(tx.since, view.generation)
        self._fenced = view.generation

    def _hits_or_expire(
        self, state: State, graves: tuple[Grave, ...], staged: Mapping[str, tuple[Grave, ...]]
    ) -> list[Digest]:
        try:
            return self._hits(state, graves, staged)
        except NotFoundError as error:
            raise CommitExpired(
                f"{self.transaction.ref}: {error} It was collected since this commit began. "
                "Add it again."
            ) from error

    def _hits(
        self, state: State, graves: tuple[Grave, ...], staged: Mapping[str, tuple[Grave, ...]]
    ) -> list[Digest]:
        """Every relied digest that a condemnation since it was put, or pinned, names."""
        tx, store = self.transaction, self.transaction.repository.objects
        hits = fence.condemned(store, tx.objects.own, graves)
        for path, since in staged.items():
            relied = fence.closure(tx.objects, entry_digests(tx.staged[path]), state.supersedes)
            hits += fence.condemned(store, relied, since)
        if graves and not self._pin_is_intact(state):
            assert self._made is not None, "the fence comes after the commit is written"
            reused = fence.closure(tx.objects, root_links(self._made[1].tree), state.supersedes)
            hits += fence.condemned(store, reused, graves)
        return list(dict.fromkeys(hits))

    def _pin_is_intact(self, state: State) -> bool:
        """Whether all that was reachable at the pin still is: then it was not condemned."""
        tx = self.transaction
        if state.supersedes != tx.pin.state.supersedes:
            return False
        return tx.base is None or fence.reachable(tx.repository.objects, state, tx.base)


def tree_of(objects: ObjectSource, commit: Digest | None) -> bytes:
    """Root page of a commit's tree; the empty tree for no commit."""
    return EMPTY_TREE if commit is None else read_commit(objects, commit).tree


def generation_of(objects: ObjectSource, commit: Digest | None) -> int:
    return 0 if commit is None else read_commit(objects, commit).generation


def entry_digests(entry: Entry | None) -> list[Digest]:
    """The objects that a tree holds for one entry (none for a removal)."""
    if entry is None:
        return []
    return [entry.digest] if entry.storage is None else [entry.digest, entry.storage]


def raise_conflicts(conflicts: Sequence[Conflict], what: str, advice: str) -> None:
    """Raise the ConflictError that a merge's conflicts make; none: return."""
    if not conflicts:
        return
    first, more = conflicts[0], len(conflicts) - 1
    others = f" (and {more} more conflicts)" if more else ""
    raise ConflictError(
        f"{what}: {first.path}: {first.reason}{others}. Nothing changed. {advice}",
        tuple(conflicts),
    )
