"""Appends of clients, judged one after the other: each on the state that those before it leave.

`Appending` is one append on its way, `Decision` judges those of a group, which share a record. A
commit on a branch that moved is merged onto it, where the client allows it and nothing is signed;
one that comes as the paths that it changes is composed here.
An append of a transaction that is in the log already is answered with the record that it is in.

Source:
    docs/spec/service.md, section "Append".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import msgspec

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.transfer.client_entries import (
    as_callers,
    check_against,
    encode_entries,
    kept_by,
    parse_entries,
    supersede_pairs,
    updates_of,
)
from tensorrepo.api.transfer.new_commits import NewCommits
from tensorrepo.api.transfer.offered_objects import Offered, OfferedWriter
from tensorrepo.api.transfer.possession import Possession, Receipts
from tensorrepo.repo.changes.purge_guard import refuse_received
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import ClientPolicy, refuse_forbidden
from tensorrepo.repo.changes.transaction import generation_of, raise_conflicts, tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
)
from tensorrepo.repo.history.commits import (
    changed_paths,
    is_ancestor,
    read_commit,
    subject_of,
    write_commit,
)
from tensorrepo.repo.history.composing import WantedCommit, compose, parse_wanted
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext, merge_trees, replay
from tensorrepo.repo.history.trees import diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.apply import Folding
from tensorrepo.repo.log.branch_rules import BRANCHES
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, LogRecord, Update, decode_ref_updates
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind

_ENTRY_BYTES: Final = 56 << 10  # of a record's 64 KiB
_KNOWN_TRANSACTIONS: Final = 100_000
_MOST_BEHIND: Final = 4096
_NOTHING: Final = b"null"
_NO_ENTRIES: Final = b"[]"


@dataclass(frozen=True, slots=True)
class LandedEntries:
    """Where an append landed, what was written for it, and what saves its client reading.

    Attributes:
        generation: number of its record.
        entries: as they were written.
        records: those since it was decided.
        objects: stored forms, by key, of its commits, and of what its branches lead to now.
    """

    generation: int
    entries: tuple[LogEntry, ...]
    records: tuple[bytes, ...] = ()
    objects: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Appending:
    """One append on its way."""

    access: RepositoryAccess
    entries: tuple[LogEntry, ...]
    generation: int
    merges: bool
    offered: Offered
    possession: Possession | None = None
    wanted: WantedCommit | None = None  # to be composed: what the first entry will lead to
    landed: LandedEntries | None = None
    admitted: tuple[LogEntry, ...] = ()
    failure: Error | None = None

    @property
    def txns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.txn for entry in self.entries))


def appending_of(
    access: RepositoryAccess,
    entries: msgspec.Raw,
    generation: int,
    offered: Offered,
    *,
    merges: bool,
    receipts: Mapping[Digest, str],
    checker: Receipts,
    commit: msgspec.Raw,
) -> Appending:
    """What a caller wants appended, as far as it can be judged without the log.

    Where `commit` says what is to be composed, `entries` are written beside it.

    Raises:
        PermissionDenied, InvalidInputError: it will not be.
    """
    possession = None
    if not access.reads_all:
        possession = Possession(access, offered, receipts, checker)

    def read_bulk(digest: Digest) -> tuple[Update, ...]:
        if digest in offered:
            return decode_ref_updates(offered[digest].envelope().payload)
        return access.core.log.read_bulk(digest)

    if bytes(commit) == _NOTHING:
        parsed = as_callers(access, parse_entries(entries), read_bulk)
        return Appending(access, parsed, generation, merges, offered, possession)
    if possession is not None:
        raise InvalidInputError(
            "who may read some refs only makes commits by himself: send the commit itself"
        )
    wanted = parse_wanted(commit)
    beside = () if bytes(entries) == _NO_ENTRIES else parse_entries(entries)
    parsed = as_callers(access, (_entry_of(wanted), *beside), read_bulk)
    return Appending(access, parsed, generation, False, offered, wanted=wanted)


def as_it_is(appending: Appending) -> Appending:
    """What was checked already, for an appender."""
    return appending


def _entry_of(wanted: WantedCommit) -> LogEntry:
    """The entry of a commit that is to be composed, which leads nowhere yet."""
    if not wanted.ref.startswith(BRANCHES):
        raise InvalidInputError(f"{wanted.ref!r:.120} is no branch: send the commit itself")
    update = Update(wanted.ref, wanted.base, None)
    return LogEntry(wanted.txn, "commit", "", 0, subject_of(wanted.message), (update,))


class SeenTransactions:
    """Transactions of the newest records, by name, with the number of the record of each."""

    def __init__(self) -> None:
        self._records: dict[str, int] = {}
        self._start = self._stop = 0  # half-open range of the records that were looked at

    def look(self, view: LogView, records: Callable[[int, int], Iterator[LogRecord]]) -> None:
        """Take note of what is in the log up to `view`."""
        if not self._stop or len(self._records) > _KNOWN_TRANSACTIONS:
            self._records.clear()
            self._start = self._stop = view.generation + 1
        if self._stop <= view.generation:
            self._note(records(self._stop, view.generation + 1))
            self._stop = view.generation + 1

    def add(self, record: LogRecord) -> None:
        """Take note of a record that was appended here: it need not be read for that."""
        if record.gen == self._stop:
            self._note(iter((record,)))
            self._stop += 1

    def find(
        self,
        txns: Sequence[str],
        behind: int,
        records: Callable[[int, int], Iterator[LogRecord]],
    ) -> int | None:
        """The record behind `behind` that has one of these transactions."""
        if behind + 1 < self._start:
            if self._start - behind > _MOST_BEHIND:
                raise ConflictError(
                    f"this was decided on record {behind} of the log, which has gone on for more "
                    f"than {_MOST_BEHIND} records since. Read it, and decide anew."
                )
            self._note(records(behind + 1, self._start))
            self._start = behind + 1
        return next((gen for txn in txns if (gen := self._records.get(txn, 0)) > behind), None)

    def _note(self, records: Iterator[LogRecord]) -> None:
        for record in records:
            for entry in record.entries:
                self._records[entry.txn] = record.gen


class Decision:
    """What to append for a group, decided anew for each head.

    Args:
        core: the repository.
        seen: transactions of the records that are in the log.
        before: the group whose record is the head, where that is not durable yet.

    Attributes:
        entries: entries to append, in order.
        postponed: appends that come with a later group.
    """

    def __init__(
        self, core: RepositoryCore, seen: SeenTransactions, before: Decision | None = None
    ) -> None:
        self._core, self._seen, self._before = core, seen, before
        self._policy = ClientPolicy()
        self._writer: OfferedWriter | None = None
        self._txns: set[str] = set()  # of this group, and of that which is landing
        self.entries: list[LogEntry] = []
        self.postponed: list[Appending] = []

    def begin(self, view: LogView, known: LogView) -> None:
        """Decide anew at `view`.

        Args:
            view: after which the record is to come.
            known: the same, or what it stands on where it is not in the log yet.
        """
        self._seen.look(known, self._core.log.records)
        self._view, self._state, self._size = view, view.state, 0
        self._writer = self._writer_at(view)
        self.entries, self.postponed = [], []
        self._txns = set() if self._before is None else {each.txn for each in self._before.entries}

    def add(self, one: Appending) -> None:
        """Judge one more; why it cannot be appended is noted there."""
        one.failure, one.landed, one.admitted = None, None, ()
        if not self._txns.isdisjoint(one.txns):  # it was sent again before it landed
            self.postponed.append(one)
            return
        self.writer.offered.update(one.offered)
        try:
            found = self._seen.find(one.txns, one.generation, self._core.log.records)
            if found is not None:
                one.landed = self._landed(one, found)
                return
            admitted, after = _Judgment(
                self._core, self.writer, self._policy, one, self._view, self._state
            ).run()
        except Error as error:
            one.failure = error
            return
        size = len(encode_entries(admitted))
        if self._size + size > _ENTRY_BYTES and self.entries:
            self.postponed.append(one)
            return
        one.admitted, self._state = admitted, after
        self._size += size
        self.entries += admitted
        self._txns.update(one.txns)

    def settle(self) -> None:
        """The record that this stands on is durable."""
        self._before = None
        if self._writer is not None:
            self._writer.forget_before()

    @property
    def writer(self) -> OfferedWriter:
        """What stored the objects of the group; known when it was decided."""
        assert self._writer is not None, "nobody decided yet"
        return self._writer

    def _writer_at(self, view: LogView) -> OfferedWriter:
        if self._writer is not None and self._writer.graves == view.state.graves:
            return self._writer  # what it put is found again
        before = None if self._before is None else self._before.writer
        return OfferedWriter(self._core.objects, view.state.graves, before)

    def _landed(self, one: Appending, generation: int) -> LandedEntries:
        record = next(self._core.log.records(generation, generation + 1))
        mine = tuple(entry for entry in record.entries if entry.txn in one.txns)
        refs = [update.ref for entry in mine for update in entry.updates]
        if one.possession is not None and not all(one.access.may(Action.READ, ref) for ref in refs):
            raise ConflictError("another append has this transaction's name. Take another name.")
        return LandedEntries(generation, mine)


@dataclass(slots=True)
class _Judgment:
    """One append at the state that those before it leave."""

    core: RepositoryCore
    writer: OfferedWriter
    policy: ClientPolicy
    one: Appending
    view: LogView
    state: State
    moved: dict[str, Digest | None] = field(default_factory=dict)  # by entries before the judged

    def run(self) -> tuple[tuple[LogEntry, ...], State]:
        """The entries to write, and the state after them. Raises Error: none are written."""
        added = {
            digest
            for entry in self.one.entries
            if entry.kind == "shallow"
            for digest in entry.data.get("add", ())
        }
        commits = NewCommits(self.writer, self.state, frozenset(added), self.one.possession)
        entries = self._entries(commits)
        if not entries:
            return (), self.state
        for entry in entries:
            self._check(entry, commits)
        commits.refuse_missing()
        for entry in entries:
            check_against(
                self.state, self.one.access, entry, is_new=lambda one: one in commits.verified
            )
        refuse_received(
            self.writer, self.core.drivers, self.state, commits.verified, self.one.access.name
        )
        standing = LogView(self.view.generation, self.view.digest, self.state)
        refuse_forbidden(self.policy, self.writer, standing, entries, self._bulk)
        return entries, self._after(entries)

    def _entries(self, commits: NewCommits) -> tuple[LogEntry, ...]:
        """As they are to be written; none where a commit would change nothing."""
        entries = self.one.entries
        if self.one.wanted is not None:
            composed = self._composed(self.one.wanted, commits)
            if composed is None:
                return ()
            first = msgspec.structs.replace(entries[0], updates=(composed,))
            return (first, *entries[1:])
        try:
            return tuple(self._moved(entry, commits) for entry in entries)
        except NotFoundError:
            return entries  # whose check tells what is missing

    def _composed(self, wanted: WantedCommit, commits: NewCommits) -> Update | None:
        """What moves the branch to a commit made of `wanted`; None: it would change nothing."""
        tip = self.state.refs.get(wanted.ref)
        if tip is None and wanted.base is not None:
            raise ConflictError(f"{wanted.ref} was deleted meanwhile; nothing was written.")
        try:
            made = compose(self.writer, wanted, tip, drivers=self.core.drivers)
        except NotFoundError as error:
            raise CommitExpired(
                f"{wanted.ref}: {error} What this change was made on was collected since. Make it "
                "again on the new tip."
            ) from error
        self._refuse_conflicts(made.conflicts, wanted.ref, wanted.base, tip)
        if made.commit is None:
            return None
        if made.brought is not None:
            commits.add_composed(made.commit, made.brought)
        return Update(wanted.ref, tip, made.commit)

    def _refuse_conflicts(
        self, conflicts: Sequence[Conflict], ref: str, base: Digest | None, tip: Digest | None
    ) -> None:
        raise_conflicts(
            conflicts,
            f"{ref} moved from {base or 'nothing':.12} to {tip or 'nothing':.12} while committing",
            "Look with `tensorrepo diff`, then stage again on the new tip.",
        )

    def _check(self, entry: LogEntry, commits: NewCommits) -> None:
        if entry.bulk is not None and self.writer.take(entry.bulk) is None:
            self.writer.get(entry.bulk)  # it was sent before, or this says that it was not
        for update in updates_of(entry, self._bulk):
            if update.new is not None:
                commits.add(update.new)
                self._check_forward(entry, update, commits)
            if self._at(update.ref) != update.old and not commits.missing:
                raise self._conflict(update)
            self.moved[update.ref] = update.new
        if entry.kind == "lease-open":
            for digest in kept_by(entry):
                commits.add_kept(digest)
        if entry.kind == "supersede":
            self._check_supersede(entry)

    def _check_forward(self, entry: LogEntry, update: Update, commits: NewCommits) -> None:
        """What a branch leaves behind by a commit is not retained, so it must be behind it."""
        if entry.kind != "commit" or update.old is None or update.new is None or commits.missing:
            return
        if update.old in read_commit(self.writer, update.new).parents:
            return
        if not is_ancestor(self.writer, update.old, update.new):
            raise InvalidInputError(
                f"{update.ref}: {update.new:.12} does not have {update.old:.12} in its history: "
                "that takes an entry of kind ref-reset"
            )

    def _check_supersede(self, entry: LogEntry) -> None:
        """What is stored here stays: others take the place only of what never was here."""
        for old, new in supersede_pairs(entry):
            if self.core.objects.stored_bytes(old, 0) is not None or old in self.state.supersedes:
                raise PermissionDenied(
                    f"placement {old:.12} is stored here, and nobody else's takes its place"
                )
            if new not in self.writer.own:
                self.writer.describe(new)

    def _moved(self, entry: LogEntry, commits: NewCommits) -> LogEntry:
        """`entry`, its commit merged onto the branch where that moved and the client allows it."""
        if not self.one.merges or entry.kind != "commit" or len(entry.updates) != 1:
            return entry
        update = entry.updates[0]
        tip = self.state.refs.get(update.ref)
        if tip is None or tip == update.old or update.new is None or entry.bulk is not None:
            return entry
        if not update.ref.startswith(BRANCHES):
            return entry
        if self.one.possession is not None:  # before any of it is read by a merge
            commits.add(update.new)
            commits.refuse_missing()
        before = set(self.writer.own)
        merged = self._merged(update, tip)
        commits.made = frozenset(self.writer.own.keys() - before)
        return msgspec.structs.replace(entry, updates=(Update(update.ref, tip, merged),))

    def _merged(self, update: Update, tip: Digest) -> Digest:
        writer = self.writer
        assert update.new is not None, "the caller looked"
        made = read_commit(writer, update.new)
        if made.signature is not None or made.parents != _parents(update.old):
            raise self._conflict(update)
        generation = generation_of(writer, tip)
        base, theirs = tree_of(writer, update.old), tree_of(writer, tip)
        commit = replace(made, parents=(tip,), generation=generation + 1)
        if (again := replay(writer, base, made.tree, theirs)) is not None:
            commit = replace(commit, tree=again.root, changed=again.changed)
            return write_commit(writer, commit).digest
        merged = merge_trees(
            writer, base, made.tree, theirs, drivers=self.core.drivers,
            context=MergeContext(True, "fail", (generation + 1, generation)),
        )  # fmt: skip
        self._refuse_conflicts(merged.conflicts, update.ref, update.old, tip)
        changed = changed_paths(diff(writer, theirs, merged.root))
        return write_commit(writer, replace(commit, tree=merged.root, changed=changed)).digest

    def _after(self, entries: tuple[LogEntry, ...]) -> State:
        folding = Folding(self.state)
        record = LogRecord(self.view.generation + 1, self.view.digest, None, entries)
        verdicts = folding.add(record, self._bulk)
        void = [f"{each.kind}: {each.reason}" for each in verdicts if not each.applied]
        if void:
            raise ConflictError(f"nothing was written. {'; '.join(void)}")
        return folding.state()

    def _bulk(self, digest: Digest) -> tuple[Update, ...]:
        envelope = self.writer.get(digest)
        if envelope.kind is not Kind.REF_UPDATES or envelope.links:
            raise InvalidInputError(f"object {digest:.12} holds no updates of refs")
        return decode_ref_updates(envelope.payload)

    def _at(self, ref: str) -> Digest | None:
        """Where a ref is behind the entries that were judged: one append may let it begin anew."""
        return self.moved[ref] if ref in self.moved else self.state.refs.get(ref)

    def _conflict(self, update: Update) -> ConflictError:
        found = self._at(update.ref)
        return ConflictError(
            f"{update.ref} moved from {update.old or 'nothing':.12} to {found or 'nothing':.12} "
            "meanwhile; nothing was written. Read it, and decide anew."
        )


def _parents(old: Digest | None) -> tuple[Digest, ...]:
    return () if old is None else (old,)
