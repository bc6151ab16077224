"""How does a change become a commit, whole or not at all?

Heavy work first, then one small atomic step: objects are put as they come, `commit` makes them
durable, and one record of the log makes them the branch. When the branch moved meanwhile the trees
are merged three ways and the record is tried again: kilobytes, never tensors.

Who calls what: `begin` reads the log once and pins it; `Transaction` collects; `commit` calls
`log.append`, which calls back `_Attempt.decide` for every attempt, on the caller's thread.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tensorrepo.repo import fence
from tensorrepo.repo.append import append
from tensorrepo.repo.commits import Commit, read_commit, write_commit
from tensorrepo.repo.errors import ConflictError, UnsupportedError
from tensorrepo.repo.history import merge_bases
from tensorrepo.repo.merge import MergeContext, merge_base_tree, merge_trees
from tensorrepo.repo.names import check_path
from tensorrepo.repo.records import LogEntry, Update
from tensorrepo.repo.store import ObjectWriter
from tensorrepo.repo.trees import EMPTY_TREE, diff, lookup, root_links, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tensorrepo.repo.commits import Json
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository
    from tensorrepo.repo.state import Grave, State
    from tensorrepo.repo.trees import Entry

MAX_CHANGED = 256


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was made. `onto` is the tip that it was merged onto, None when none moved."""

    digest: Digest
    commit: Commit
    generation: int
    onto: Digest | None
    attempts: int


@dataclass(slots=True)
class Transaction:
    """One commit in the making. `objects` takes what it needs; `stage` says what it changes."""

    repository: Repository
    branch: str
    pin: View
    base: Digest | None
    unchanged: tuple[str, ...]
    objects: ObjectWriter
    staged: dict[str, Entry | None] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        return f"heads/{self.branch}"

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
        self.staged[check_path(path)] = entry
        if since is not None:
            self.since[path] = since

    def remove(self, path: str) -> None:
        """Leave `path` out of the commit to come."""
        self.staged[check_path(path)] = None

    def commit(
        self,
        message: str,
        *,
        author: str,
        metadata: Mapping[str, Json] | None = None,
        closes_lease: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> Committed | None:
        """Make the commit, merging onto what others committed meanwhile.

        Returns:
            The commit, or None when nothing would change (then nothing was written).

        Raises:
            ConflictError: others changed the same; `conflicts` says what. Nothing changed.
            CommitOutcomeUnknown: the store did not say; `resolve` finds out.
            CommitExpired: a staged object was collected.
        """
        attempt = _Attempt(self, message, author, dict(metadata or {}), clock(), closes_lease)
        if attempt.changes_nothing():
            return None
        appended = append(self.repository.log, attempt.decide)
        made = attempt.made
        assert made is not None, "an append ends with the decision that it stored"
        digest, commit = made
        onto = commit.parents[0] if commit.parents and commit.parents[0] != self.base else None
        return Committed(digest, commit, appended.view.generation, onto, appended.attempts)

    def abort(self) -> None:
        """Forget it. What was stored so far is garbage, and harmless."""
        self.objects.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.abort()


def begin(
    repository: Repository, branch: str, *, unchanged: Iterable[str] = (), pin: View | None = None
) -> Transaction:
    """Pin the log and the branch's commit, and start a transaction on them.

    Args:
        repository: where to commit.
        branch: which branch; one that does not exist yet is made by its first commit.
        unchanged: paths that this change relies on: a commit that finds them changed conflicts.
        pin: a view read just now, instead of reading the log again.
    """
    view = pin or repository.log.refresh()
    if view.state.read_only_reason:
        raise UnsupportedError(f"{repository.url} is read-only here: {view.state.read_only_reason}")
    base = view.state.refs.get(f"heads/{branch}")
    writer = ObjectWriter(repository.objects, view.state.graves)
    return Transaction(repository, branch, view, base, tuple(unchanged), writer)


def tree_of(objects: ObjectWriter, commit: Digest | None) -> bytes:
    """Root page of a commit's tree; the empty tree for no commit."""
    return EMPTY_TREE if commit is None else read_commit(objects, commit).tree


@dataclass(slots=True)
class _Attempt:
    """One call of `commit`: decides anew for every head that the log shows."""

    transaction: Transaction
    message: str
    author: str
    metadata: dict[str, Json]
    time_ns: int
    closes_lease: str | None
    txn: str = field(default_factory=lambda: secrets.token_hex(16))
    made: tuple[Digest, Commit] | None = None
    secured: int = -1

    def changes_nothing(self) -> bool:
        base = tree_of(self.transaction.objects, self.transaction.base)
        return self._tree(self.transaction.base) == base

    def decide(self, view: View) -> tuple[LogEntry, ...]:
        """The entry to append at `view`: merged, durable, and past the fence."""
        tx = self.transaction
        tip = view.state.refs.get(tx.ref)
        if tip is None and tx.base is not None:
            raise ConflictError(
                f"branch {tx.branch!r} was deleted while committing onto {tx.base:.12}. "
                f"Make it again with `tensorrepo branch {tx.branch} {tx.base:.12}` and repeat."
            )
        if self.made is None or self.made[1].parents != _only(tip):
            self.made = self._write(tip)
        tx.objects.flush()
        self._fence(view)
        update_ref = Update(tx.ref, tip, self.made[0])
        subject = self.message.partition("\n")[0][:200]
        entries = [LogEntry(self.txn, "commit", self.author, self.time_ns, subject, (update_ref,))]
        if self.closes_lease in view.state.leases:
            entries.append(
                LogEntry(
                    self.txn, "lease-close", self.author, self.time_ns,
                    data={"id": self.closes_lease},
                )
            )  # fmt: skip
        return tuple(entries)

    def _write(self, tip: Digest | None) -> tuple[Digest, Commit]:
        objects = self.transaction.objects
        root = self._tree(tip)
        before = tree_of(objects, tip)
        changed = []
        for change in diff(objects, before, root):
            changed.append(change.path)
            if len(changed) > MAX_CHANGED:
                break
        commit = Commit(
            tree=root,
            parents=_only(tip),
            generation=1 + (read_commit(objects, tip).generation if tip else 0),
            author=self.author,
            message=self.message,
            time_ns=self.time_ns,
            metadata=self.metadata,
            changed=tuple(changed) if len(changed) <= MAX_CHANGED else None,
            signature=None,
        )
        return write_commit(objects, commit).digest, commit

    def _tree(self, tip: Digest | None) -> bytes:
        """The staged change on top of `tip`, by a three-way merge when the branch moved."""
        tx = self.transaction
        mine = update(tx.objects, tree_of(tx.objects, tx.base), tx.staged)
        if tip == tx.base:
            return mine
        base = self._merge_base(tip)
        generation = read_commit(tx.objects, tip).generation if tip else 0
        merged = merge_trees(
            tx.objects,
            base,
            mine,
            tree_of(tx.objects, tip),
            drivers=tx.repository.drivers,
            context=MergeContext(True, "fail", (generation + 1, generation)),
            unchanged=tx.unchanged,
        )
        if merged.conflicts:
            first = merged.conflicts[0]
            more = len(merged.conflicts) - 1
            raise ConflictError(
                f"branch {tx.branch!r} moved from {tx.base or 'nothing':.12} to {tip:.12} while "
                f"committing; {first.path}: {first.reason}"
                + (f", and {more} more" if more else "")
                + ". Nothing changed. Look with `tensorrepo diff`, then stage again on the new tip.",
                merged.conflicts,
            )
        return merged.root

    def _merge_base(self, tip: Digest | None) -> bytes:
        tx = self.transaction
        if tx.base is None or tip is None:
            return EMPTY_TREE
        if tx.base in merge_bases(tx.objects, tx.base, tip):
            return tree_of(tx.objects, tx.base)
        return merge_base_tree(tx.objects, tx.base, tip, drivers=tx.repository.drivers)

    def _fence(self, view: View) -> None:
        """Rule W3. What the pin made reachable is safe while the pinned commit is reachable."""
        tx = self.transaction
        pinned = tx.pin.generation if self.secured < 0 else self.secured
        graves = fence.graves_since(view.state, pinned)
        old = {path: fence.graves_since(view.state, since) for path, since in tx.since.items()}
        if graves or any(old.values()):
            self._store_condemned_again(view, graves, old)
            tx.since = dict.fromkeys(tx.since, view.generation)
        self.secured = view.generation

    def _store_condemned_again(
        self, view: View, graves: tuple[Grave, ...], old: Mapping[str, tuple[Grave, ...]]
    ) -> None:
        tx, store, state = self.transaction, self.transaction.repository.objects, view.state
        hits = fence.condemned(store, tx.objects.own, graves)
        for path, since in old.items():
            staged = fence.closure(tx.objects, entry_digests(tx.staged[path]), state.supersedes)
            hits += fence.condemned(store, staged, since)
        if graves and not self._pin_is_intact(state):
            assert self.made is not None, "the fence comes after the commit is written"
            reused = fence.closure(tx.objects, root_links(self.made[1].tree), state.supersedes)
            hits += fence.condemned(store, reused, graves)
        fence.store_again(tx.objects, dict.fromkeys(hits), state.graves, tx.ref)

    def _pin_is_intact(self, state: State) -> bool:
        """Whether all that was reachable at the pin still is: then it was not condemned."""
        tx = self.transaction
        if state.supersedes != tx.pin.state.supersedes:
            return False
        return tx.base is None or fence.reachable(tx.repository.objects, state, tx.base)


def entry_digests(entry: Entry | None) -> list[Digest]:
    """The objects that a tree holds for one entry (none for a removal)."""
    if entry is None:
        return []
    return [entry.digest] if entry.storage is None else [entry.digest, entry.storage]


def _only(tip: Digest | None) -> tuple[Digest, ...]:
    return () if tip is None else (tip,)
