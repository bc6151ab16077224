"""Transactions: staged changes committed onto a moving branch by rebase, and detached commits.

Heavy work first, then one small atomic step: objects are put as they come, `commit` makes them
durable, and one record of the log makes them the branch. When the branch moved meanwhile the trees
are merged three ways and the record is tried again: kilobytes, never tensors.

Who calls what: `begin` reads the log once and pins it; `CommitTransaction` collects; `commit` runs
a `CommitAttempt` on the caller's thread, whose `decide` the log's `append` calls for every head: it
composes the tree on that head, makes its objects durable, passes the fence and gives the entries.
Behind a service that composes commits, a plain one is made there, of the paths that it changes
(`history.composing`); what the service refuses is made here, which merges it, or tells why not.

Checkpoints of a training are commits beside each other: each has the same parent, where the
training began, and a ref of its own. As ancestors of one another none could ever be freed. One
record creates the ref of a new one and deletes those that are not kept, so that no crash leaves
more, or fewer, than the policy says.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from types import TracebackType
from typing import Self

from tensorrepo.repo.backends.base import ComposesCommits
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.purge_guard import refuse_held
from tensorrepo.repo.changes.refs import BRANCHES, refuse_taken
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import rules_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    CommitOutcomeUnknown,
    ConflictError,
    Error,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import (
    SUBJECT_CHARACTERS,
    Commit,
    MetadataValue,
    changed_paths,
    clean_message,
    commit_lines,
    read_commit,
    signed_bytes,
    subject_of,
    write_commit,
)
from tensorrepo.repo.history.composing import WantedCommit, encode_wanted, wanted_entry
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext, merge_trees
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, diff, lookup, root_links, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import Appended, append_commit
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, LogRecord, Update
from tensorrepo.repo.log.state import Condemnation, State
from tensorrepo.repo.names import check_path, check_ref
from tensorrepo.repo.objects.envelope import Envelope, ObjectSource
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.tables import RecordTable, Shown, counted


@dataclass(frozen=True, slots=True, repr=False)
class LandedCommit(Shown):
    """A commit that was made. `onto` is the tip that it was merged onto, None when none moved."""

    digest: Digest
    commit: Commit
    generation: int
    onto: Digest | None
    attempts: int

    def to_table(self) -> RecordTable:
        """The commit, and what it was merged onto."""
        onto = () if self.onto is None else (f"merged onto {self.onto:.12}",)
        return RecordTable((*commit_lines(self.digest, self.commit), *onto))


@dataclass(slots=True)
class CommitAttempt:
    """One commit on its way into the log.

    `compose` gives the root page of the tree to commit on a tip; `others` are parents beside it,
    `sources` commits that the tree takes content of without being their child. The log names
    `actor`, who is the author unless another is told.
    """

    transaction: CommitTransaction
    compose: Callable[[Digest | None], bytes]
    message: str
    author: str
    time_ns: int
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    closes_lease: str | None = None
    others: tuple[Digest, ...] = ()
    sources: tuple[Digest, ...] = ()
    actor: str | None = None
    txn: str = field(default_factory=lambda: secrets.token_hex(16))
    _made: tuple[Digest, Commit] | None = None
    _fenced: int | None = None

    def run(self) -> LandedCommit:
        """Append it. Raises what `append` and `compose` raise; then nothing changed."""
        appended = self.transaction.repository.append(self.decide, merges=self.merges)
        assert self._made is not None, "an append ends with the decision that it stored"
        assert appended.record is not None, "there is a commit to append"
        digest, commit = self._landed(appended.record)
        tip = commit.parents[0] if commit.parents else None
        onto = tip if tip != self.transaction.base else None
        return LandedCommit(digest, commit, appended.record.gen, onto, appended.attempts)

    @property
    def merges(self) -> bool:
        """Whether a service may merge the commit onto a branch that moved: as `compose` would."""
        tx = self.transaction
        plain = self.kind == "commit" and not self.others and not tx.unchanged
        return plain and tx.repository.policy.signer is None

    def _landed(self, record: LogRecord) -> tuple[Digest, Commit]:
        """The commit as it is in the log: of a service it may be another one than was sent."""
        assert self._made is not None, "see `run`"
        ref = self.transaction.ref
        for entry in record.entries:
            for moved in entry.updates if entry.txn == self.txn else ():
                if moved.ref == ref and moved.new is not None and moved.new != self._made[0]:
                    return moved.new, read_commit(self.transaction.repository.objects, moved.new)
        return self._made

    def decide(self, view: LogView) -> tuple[LogEntry, ...]:
        """What to append at `view`: merged, durable, and past the fence."""
        tx, tip = self.transaction, self.tip(view)
        if self._made is None or self._made[1].parents != self._parents(tip):
            self._made = self._write_or_expire(tip)
        tx.objects.flush()
        self._pass_fence(view)
        return self._entries(view, Update(tx.ref, tip, self._made[0]))

    def tip(self, view: LogView) -> Digest | None:
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

    @property
    def kind(self) -> str:
        """Kind of the entry that moves the ref."""
        return "commit"

    def note(self, subject: str) -> str:
        """What that entry says."""
        return subject

    def before(self, view: LogView) -> tuple[LogEntry, ...]:  # noqa: ARG002  a series looks at it
        """What is recorded with the commit, ahead of it."""
        return ()

    def after(self, view: LogView, moved: Update) -> tuple[LogEntry, ...]:  # noqa: ARG002  as above
        """What is recorded with the commit, behind it; `moved` is what the commit does."""
        return ()

    def _entries(self, view: LogView, moved: Update) -> tuple[LogEntry, ...]:
        subject = subject_of(self.message)
        actor = self.actor or self.author
        commit = LogEntry(self.txn, self.kind, actor, self.time_ns, self.note(subject), (moved,))
        around = (*self.before(view), commit, *self.after(view, moved))
        if self.closes_lease is None or self.closes_lease not in view.state.leases:
            return around
        gone = {"id": self.closes_lease}
        return (*around, LogEntry(self.txn, "lease-close", actor, self.time_ns, data=gone))

    def _write_or_expire(self, tip: Digest | None) -> tuple[Digest, Commit]:
        try:
            return self._write(tip)
        except NotFoundError as error:
            staged = self.transaction.staged.items()
            lost = [path for path, entry in staged if entry and entry.digest[:12] in str(error)]
            what = ", ".join(lost) or self.transaction.ref
            raise gc_fence.expired(what, error, " since it was staged") from error

    def _write(self, tip: Digest | None) -> tuple[Digest, Commit]:
        objects = self.transaction.objects
        root, parents = self.compose(tip), self._parents(tip)
        before = tree_of(objects, self._compared(tip))
        commit = Commit(
            tree=root,
            parents=parents,
            generation=1 + max((generation_of(objects, each) for each in parents), default=0),
            author=self.author,
            message=clean_message(self.message),
            time_ns=self.time_ns,
            metadata=self.metadata,
            changed=changed_paths(diff(objects, before, root)),
            signature=None,
        )
        signer = self.transaction.repository.policy.signer
        if signer is not None:
            commit = replace(commit, signature=signer().sign(signed_bytes(commit)))
        return write_commit(objects, commit).digest, commit

    def _parents(self, tip: Digest | None) -> tuple[Digest, ...]:
        return self.others if tip is None else (tip, *self.others)

    def _compared(self, tip: Digest | None) -> Digest | None:
        """The commit that the paths which changed are told against.

        None where no ref moves: what stands beside its parent holds its own entries alone, and has
        removed none of the others.
        """
        return tip

    def _pass_fence(self, view: LogView) -> None:
        """Rules W3 and W4 at `view`; what a condemnation hit is stored again."""
        tx = self.transaction
        for other in (*self.others, *self.sources):
            gc_fence.secure_commit(tx.objects, view.state, other)
        fenced = tx.pin.generation if self._fenced is None else self._fenced
        graves = gc_fence.graves_since(view.state, fenced)
        # What is staged may come from anywhere at the pin, also from a branch that is gone by now.
        staged = {
            path: gc_fence.graves_since(view.state, tx.since.get(path, fenced))
            for path in tx.staged
        }
        self._refuse_purged(view.state, fenced)
        if any(staged.values()) or graves:
            try:
                hits = self._hits(view.state, graves, staged)
            except NotFoundError as error:
                raise gc_fence.expired(tx.ref, error, " since this commit began") from error
            gc_fence.store_again(tx.objects, hits, view.state.graves, tx.ref)
            tx.since = dict.fromkeys(tx.since, view.generation)
        self._fenced = view.generation

    def _refuse_purged(self, state: State, fenced: int) -> None:
        """Raise where the commit relies on what was purged since it was read."""
        tx = self.transaction
        newest = max(state.purges.values(), default=0)
        if newest > min([fenced, *tx.since.values()]):
            assert self._made is not None, "the fence comes after the commit is written"
            made = self._made[1]
            gc_fence.refuse_purged(tx.objects, root_links(made.tree), state, tx.ref)
            before = tree_of(tx.objects, made.parents[0] if made.parents else None)
            refuse_held(tx.objects, tx.repository.drivers, state, before, made.tree, tx.ref)

    def _hits(
        self,
        state: State,
        graves: tuple[Condemnation, ...],
        staged: Mapping[str, tuple[Condemnation, ...]],
    ) -> list[Digest]:
        """Every relied digest that a condemnation since it was put, or pinned, names."""
        tx, store = self.transaction, self.transaction.repository.objects
        hits = gc_fence.condemned(store, tx.objects.own, graves)
        for path, since in staged.items():
            relied = gc_fence.closure(tx.objects, entry_digests(tx.staged[path]), state.supersedes)
            hits += gc_fence.condemned(store, relied, since)
        if graves and not self._pin_is_intact(state):
            assert self._made is not None, "the fence comes after the commit is written"
            reused = gc_fence.closure(tx.objects, root_links(self._made[1].tree), state.supersedes)
            hits += gc_fence.condemned(store, reused, graves)
        return list(dict.fromkeys(hits))

    def _pin_is_intact(self, state: State) -> bool:
        """Whether all that was reachable at the pin still is: then it was not condemned."""
        tx, pinned = self.transaction, self.transaction.pin.state
        # A base may be reachable, and what lay behind it given up: rows that were restored of it.
        if (state.supersedes, state.shallow) != (pinned.supersedes, pinned.shallow):
            return False
        return tx.base is None or gc_fence.reachable(tx.repository.objects, state, tx.base)


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
    others = f" (and {counted(more, 'more conflict')})" if more else ""
    raise ConflictError(
        f"{what}: {first.path}: {first.reason}{others}. Nothing changed. {advice}",
        tuple(conflicts),
        f"{what}. Nothing changed. {advice}",
    )


@dataclass(slots=True)
class CommitTransaction:
    """One commit in the making. `objects` takes what it needs; `stage` says what it changes."""

    repository: RepositoryCore
    branch: str
    pin: LogView
    base: Digest | None
    unchanged: tuple[str, ...]
    objects: ObjectWriter
    staged: dict[str, Entry | None] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    space: str = BRANCHES

    @property
    def ref(self) -> str:
        return self.space + self.branch

    def entry(self, path: str) -> Entry | None:
        """The entry at `path` as this transaction would commit it."""
        if path in self.staged:
            return self.staged[path]
        return lookup(self.objects, tree_of(self.objects, self.base), path)

    def stage(self, path: str, entry: Entry, *, since: int | None = None) -> None:
        """Set `path` to `entry` in the commit to come.

        Args:
            path: by the path grammar.
            entry: what was put into `objects`, or is reachable at the pin.
            since: the log generation at which its objects were put, when that was before the pin.
        """
        self.objects.refuse_after_end()
        self.staged[check_path(path)] = entry
        if since is not None:
            self.since[path] = since

    def remove(self, path: str) -> None:
        """Leave `path` out of the commit to come."""
        self.objects.refuse_after_end()
        self.staged[check_path(path)] = None

    def commit(
        self,
        message: str,
        *,
        author: str,
        metadata: Mapping[str, MetadataValue] | None = None,
        closes_lease: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> LandedCommit | None:
        """Make the commit, merging onto what others committed meanwhile.

        Returns:
            The commit, or None when nothing would change (then nothing was written).

        Raises:
            ConflictError: others changed the same; `conflicts` says what. Nothing changed.
            CommitOutcomeUnknown: the store did not say; `resolve` finds out.
            CommitExpired: a staged object, or what the change was made on, was collected.
        """
        told = (message, author, dict(metadata or {}), closes_lease, clock)
        composer = self._composer()
        if composer is None:
            return self._commit_here(*told)
        with composer.gathering():
            self.objects.flush()
            try:
                appended = self._append_there(composer, *told)
            except (CommitOutcomeUnknown, PermissionDenied, StorageError):
                raise
            except Error:  # nothing was written; made here it can be merged here, or is explained
                return self._commit_here(*told)
        return self._made_there(appended)

    def _composer(self) -> ComposesCommits | None:
        """The service that can make this commit of its paths; None: it is made here."""
        composer, policy = self.repository.log.composer, self.repository.policy
        if composer is None or not 0 < len(self.staged) <= composer.most_paths:
            return None
        if policy.signer is not None or self.unchanged or self.space != BRANCHES:
            return None
        # A rule is judged here, too: what runs its checks may stand in this user's settings.
        state = (self.repository.log.latest or self.pin).state
        is_ruled = any(rule.matches(self.branch) for rule in rules_of(state))
        return None if is_ruled else composer

    def _append_there(
        self,
        composer: ComposesCommits,
        message: str,
        author: str,
        metadata: dict[str, MetadataValue],
        closes_lease: str | None,
        clock: Callable[[], int],
    ) -> Appended:
        """Have a service make the commit. Raises Error: nothing was written, unless it says so."""
        txn, time_ns = secrets.token_hex(16), clock()
        wanted = WantedCommit(
            txn,
            self.ref,
            {path: wanted_entry(entry) for path, entry in self.staged.items()},
            author,
            clean_message(message),
            time_ns,
            self.base,
            metadata,
        )
        closing: tuple[LogEntry, ...] = ()
        if closes_lease is not None and closes_lease in self.pin.state.leases:
            gone = {"id": closes_lease}
            closing = (LogEntry(txn, "lease-close", author, time_ns, data=gone),)
        return append_commit(self.repository.log, composer, encode_wanted(wanted), closing, txn)

    def _made_there(self, appended: Appended) -> LandedCommit | None:
        """The commit that a service made; None: it would have changed nothing."""
        if appended.record is None:
            return None
        moved = [update for entry in appended.record.entries for update in entry.updates]
        digest = next((update.new for update in moved if update.ref == self.ref), None)
        if digest is None:
            raise ConflictError(
                f"branch {self.branch!r}: somebody gave this commit up by `tensorrepo resolve` "
                "before it was in the log, and it never will be. Make it again."
            )
        commit = read_commit(_Unlinked(self.repository.objects), digest)
        tip = commit.parents[0] if commit.parents else None
        onto = tip if tip != self.base else None
        return LandedCommit(digest, commit, appended.record.gen, onto, appended.attempts)

    def _commit_here(
        self,
        message: str,
        author: str,
        metadata: dict[str, MetadataValue],
        closes_lease: str | None,
        clock: Callable[[], int],
    ) -> LandedCommit | None:
        """Make the commit, and append it. Raises as `commit`."""
        try:
            base = tree_of(self.objects, self.base)
            mine = update(self.objects, base, self.staged)
        except NotFoundError as error:
            raise CommitExpired(
                f"{self.ref}: {error} What this change was made on was collected since. Stage it "
                "again on the new tip."
            ) from error
        if mine == base:
            return None
        compose = partial(self._compose, mine)
        return CommitAttempt(self, compose, message, author, clock(), metadata, closes_lease).run()

    def abort(self) -> None:
        """Forget it. What was stored so far is garbage, and harmless."""
        self.objects.abort()

    def _compose(self, mine: bytes, tip: Digest | None) -> bytes:
        """The staged tree `mine` on top of `tip`: what it changes, when the branch moved."""
        if tip == self.base:
            return mine
        generation = generation_of(self.objects, tip)
        merged = merge_trees(
            self.objects,
            # Not the common ancestor: after an undo or a reset that would be older than the base,
            # and this commit would bring back what was taken away.
            tree_of(self.objects, self.base),
            mine,
            tree_of(self.objects, tip),
            drivers=self.repository.drivers,
            context=MergeContext(True, "fail", (generation + 1, generation)),
            unchanged=self.unchanged,
        )
        raise_conflicts(
            merged.conflicts,
            f"branch {self.branch!r} moved from {self.base or 'nothing':.12} to "
            f"{tip or 'nothing':.12} while committing",
            "Look with `tensorrepo diff`, then stage again on the new tip.",
        )
        return merged.root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.abort()


@dataclass(frozen=True, slots=True)
class _Unlinked:
    """Objects without their links, for who reads what a commit says and goes no further."""

    objects: ObjectStore

    @property
    def shallow(self) -> frozenset[Digest]:
        return self.objects.shallow

    def get(self, digest: Digest) -> Envelope:
        """Kind and payload of an object, its digest verified."""
        kind, payload = self.objects.unlinked(digest)
        return Envelope(kind, (), payload)


def begin(
    repository: RepositoryCore,
    branch: str,
    *,
    unchanged: Iterable[str] = (),
    pin: LogView | None = None,
    base: Digest | None = None,
    space: str = BRANCHES,
) -> CommitTransaction:
    """Pin the log and the branch's commit, and start a transaction on them.

    Args:
        repository: where to commit.
        branch: which branch; one that does not exist yet is made by its first commit.
        unchanged: paths that this change relies on: a commit that finds them changed conflicts.
        pin: the view to work from, instead of the newest.
        base: the commit to work from, instead of the branch's at the pin.
        space: space of refs in which `branch` is a name.
    """
    view = pin or repository.log.refresh()
    if view.state.read_only_reason:
        raise UnsupportedError(f"{repository.url} is read-only here: {view.state.read_only_reason}")
    base = base or view.state.refs.get(check_ref(space + branch))
    writer = ObjectWriter(repository.objects, view.state.graves)
    return CommitTransaction(repository, branch, view, base, tuple(unchanged), writer, space=space)


def amend(
    transaction: CommitTransaction,
    message: str,
    *,
    author: str,
    closes_lease: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> LandedCommit:
    """Put a commit in the place of the one at the head of its branch, in one entry of the log.

    It has the parents and the metadata of that one, which is the base of `transaction`, and its
    content with what is staged. The log keeps the one before, so that `undo` takes it back.

    Raises:
        ConflictError: the branch moved meanwhile. Nothing changed.
        CommitOutcomeUnknown: the store did not say; `resolve` finds out.
        CommitExpired: a staged object was collected.
    """
    objects, base = transaction.objects, transaction.base
    assert base is not None, "there is a commit to amend"
    amended = read_commit(objects, base)
    if amended.beyond:
        raise CommitExpired(
            f"commit {base:.12} cannot be amended: its parents are not in this repository, whose "
            "history ends there. Make another commit; `tensorrepo revert` takes a change back."
        )
    root = update(objects, amended.tree, transaction.staged)
    attempt = _Amended(
        transaction,
        lambda _: root,
        message,
        author,
        clock(),
        dict(amended.metadata),
        closes_lease,
        amended=amended,
    )
    return replace(attempt.run(), onto=None)


@dataclass(slots=True, kw_only=True)
class _Amended(CommitAttempt):
    """An attempt that takes the place of the commit `amended`, the head of its branch."""

    amended: Commit

    @property
    def kind(self) -> str:
        return "ref-reset"  # which keeps the commit that the ref leaves

    def note(self, subject: str) -> str:
        return f"amend: {subject}"[:SUBJECT_CHARACTERS]

    def tip(self, view: LogView) -> Digest | None:
        tx = self.transaction
        tip = view.state.refs.get(tx.ref)
        if tip != tx.base:
            raise ConflictError(
                f"branch {tx.branch!r} moved from {tx.base:.12} to {tip or 'nothing':.12} while "
                "amending, and only the head of a branch is amended. Nothing changed: "
                "`tensorrepo commit` makes a commit of its own."
            )
        return tip

    def _parents(self, tip: Digest | None) -> tuple[Digest, ...]:  # noqa: ARG002  takes its place
        return self.amended.parents

    def _compared(self, tip: Digest | None) -> Digest | None:  # noqa: ARG002  as above
        return self.amended.parents[0] if self.amended.parents else None


MOST_DROPPED = 50  # refs of 1 KiB, the longest, that one record takes; the next takes more


def begin_beside(repository: RepositoryCore, ref: str) -> CommitTransaction:
    """A transaction whose commit will be named by `ref`, such as ``runs/<run>/<step>``.

    It has no base: its tree is what is staged, and the history before it is told at the end.
    """
    space, _, name = check_ref(ref).partition("/")
    started = begin(repository, name, space=f"{space}/")
    started.base = None
    return started


def commit_beside(
    transaction: CommitTransaction,
    parent: Digest | None,
    message: str,
    *,
    author: str,
    metadata: Mapping[str, MetadataValue] | None = None,
    drops: Callable[[LogView], Iterable[str]],
    tree: bytes = EMPTY_TREE,
    clock: Callable[[], int] = time.time_ns,
) -> LandedCommit:
    """Make the commit; its ref begins anew, whatever it named before.

    Args:
        transaction: what `begin_beside` gave.
        parent: where the series began; None: nowhere.
        message: message of the commit.
        author: author of the commit.
        metadata: metadata of the commit.
        drops: full names of refs that go in the same record, of those that a view has; at most
            `MOST_DROPPED` of them go at once.
        tree: root page of a tree that what is staged changes; a ref leads to it until this commit
            is made, which `drops` sees to.
        clock: UTC in ns.

    Raises:
        CommitOutcomeUnknown: the store did not say; `resolve` finds out.
        CommitExpired: a staged object, or the parent, was collected.
    """
    changed = update(transaction.objects, tree, transaction.staged)
    anew = _Anew(
        transaction,
        lambda _: changed,
        message,
        author,
        clock(),
        dict(metadata or {}),
        others=() if parent is None else (parent,),
        drops=drops,
    )
    return anew.run()


@dataclass(slots=True)
class _Anew(CommitAttempt):
    """An attempt whose ref does not move from what it names, but begins anew."""

    drops: Callable[[LogView], Iterable[str]] = field(default=lambda _: ())

    def tip(self, view: LogView) -> Digest | None:
        if self.transaction.ref not in view.state.refs:
            refuse_taken(view, self.transaction.ref)
        return None

    def before(self, view: LogView) -> tuple[LogEntry, ...]:
        held = view.state.refs
        gone = [ref for ref in dict.fromkeys(self.drops(view)) if ref in held][:MOST_DROPPED]
        own = [self.transaction.ref] if self.transaction.ref in held else []
        updates = tuple(Update(ref, held[ref], None) for ref in dict.fromkeys([*own, *gone]))
        if not updates:
            return ()
        actor = self.actor or self.author
        return (LogEntry(self.txn, "ref-delete", actor, self.time_ns, "expired", updates),)
