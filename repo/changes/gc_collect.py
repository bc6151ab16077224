"""Garbage collection by the log: condemn what no root leads to, then delete it.

The decision to delete is a record of the log, judged at its very place; no clock decides anything.
A collection that died is ended by the next one, whoever runs it, and several may run at once.

G1 mark     everything that roots of the state at the head lead to; any error ends it all
G2 list     candidates are unmarked keys, with no label or that of a known condemnation
G3 condemn  one record names them, after what became reachable since was taken back
G4 keep     all incarnations of what is marked
G5 delete   the keys of the record's list, in any order, any number of times; then a record ends it

Times only say how much is kept for convenience: garbage younger than the grace, refs that were
dropped within the retention. They are the store's own times.

Source:
    docs/design/collection.md; docs/spec/log.md, section "Kinds"; docs/spec/objects.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.changes.gc_marks import (
    PACKED,
    READING_THREADS,
    SOME,
    Marks,
    ObjectTable,
    StoredRow,
    count_kinds,
)
from tensorrepo.repo.changes.leases import MOST_CLOSED
from tensorrepo.repo.changes.refs import updates_of
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import retention_seconds
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitOutcomeUnknown, NotFoundError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import Appended
from tensorrepo.repo.log.checkpoints import Hint, encode_hint
from tensorrepo.repo.log.log_slots import HINT_KEY, slot_key
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.log.state import Condemnation, State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import (
    decode_key_list,
    encode_graves,
    encode_key_list,
    merge_graves,
)
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.tables import RecordTable, Shown, counted
from tensorrepo.repo.threads import ordered_map

DAY_SECONDS: Final = 86400
GRACE_SECONDS: Final = 3 * DAY_SECONDS
RETENTION_SECONDS: Final = 14 * DAY_SECONDS
MOST_KEYS: Final = 1 << 18  # in one condemnation: its list has 18 MB, its graves 3 MB
MOST_TABLES: Final = 16  # of graves, before some are merged
LEAST_MERGED: Final = 4
MOST_ROWS: Final = 1 << 19  # of a merged table, which has 6 MB
MOST_RELEASED: Final = 800  # dropped values that one record lets go of; it has 64 KiB
CHECKPOINTS: Final = "runs/"  # refs whose own policy drops them: what it drops is not retained

Progress = Callable[[str, int, int], None]
T = TypeVar("T")
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """How long garbage is spared, in seconds by the store's clock.

    Attributes:
        grace_seconds: age from which an object that nothing leads to may be condemned. A command
            that stores objects for longer than that may have to store some of them again.
        retention_seconds: age of a dropped or reset ref from which it is let go of; None: what
            the repository's config says, else 14 days.
        close_leases: whether leases that ran out longer ago than the grace are closed. A lease ends
            only so, for its holder may be a stash that somebody comes back to.
    """

    grace_seconds: float = GRACE_SECONDS
    retention_seconds: float | None = None
    close_leases: bool = False


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What was packed.

    Attributes:
        objects: commits, tree pages and small files that came into packs.
        packs: packs that were made.
        freed_keys: keys of packed objects that are deleted now.
        history_packs: packs that there are now.
    """

    objects: int = 0
    packs: int = 0
    freed_keys: int = 0
    history_packs: int = 0

    def lines(self) -> Iterator[str]:
        """In a line; none where nothing came into packs and nothing went."""
        if self.objects:
            yield (
                f"packed {self.objects:,} commits, pages of trees and small files into "
                f"{counted(self.packs, 'pack')}: {counted(self.freed_keys, 'file')} of their own "
                f"{'is' if self.freed_keys == 1 else 'are'} gone"
            )
        elif self.freed_keys:  # of a packing that was cut off
            gone = counted(self.freed_keys, "file")
            yield f"deleted {gone} of objects that had come into packs before"


@dataclass(frozen=True, slots=True, repr=False)
class CollectionReport(Shown):
    """What a collection did, or would do.

    Attributes:
        dry_run: whether nothing was changed.
        live_objects: keys of objects that are needed, or within the grace.
        live_bytes: their bytes in the store.
        dead_objects: keys that were condemned, or would be.
        dead_bytes: their bytes in the store.
        young_objects: keys of those objects that only the grace keeps.
        young_bytes: their bytes.
        deleted_keys: keys that are deleted now, also of earlier collections.
        released: commits of dropped refs that were let go of, or would be.
        retained: commits of dropped refs that are kept for now.
        closed_leases: leases that had run out and were closed, by their names.
        condemned: generations of the records that condemned something.
        kinds: with `dry_run`, bytes that would go by kind of object.
        refs: with `dry_run`, bytes that each ref alone leads to, the most first; under
            "dropped refs" and "leases" what only those keep.
        foreign: files among the objects that are none of ours, the first of them; they are kept.
        foreign_count: number of those files.
        packing: what was packed before, which is neither dead nor counted as deleted; None where
            nobody asked for it.
    """

    dry_run: bool
    live_objects: int = 0
    live_bytes: int = 0
    dead_objects: int = 0
    dead_bytes: int = 0
    young_objects: int = 0
    young_bytes: int = 0
    deleted_keys: int = 0
    released: tuple[Digest, ...] = ()
    retained: int = 0
    closed_leases: tuple[str, ...] = ()
    condemned: tuple[int, ...] = ()
    kinds: Mapping[str, int] = field(default_factory=dict)
    refs: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    foreign_count: int = 0
    packing: PackingReport | None = None

    def to_table(self) -> RecordTable:
        """In lines."""
        verb = "would delete" if self.dry_run else "deleted"
        lines = [
            *(self.packing.lines() if self.packing is not None else ()),
            f"{verb} {self.dead_objects:,} objects, {self.dead_bytes:,} bytes",
            f"kept {self.live_objects:,} objects, {self.live_bytes:,} bytes",
        ]
        if self.young_objects:
            lines.append(f"of these only for being young: {self.young_objects:,} objects, "
                         f"{self.young_bytes:,} bytes")  # fmt: skip
        return RecordTable(tuple(lines))


def collect_garbage(
    repository: RepositoryCore,
    *,
    actor: str,
    rules: CollectionRules = CollectionRules(),
    progress: Progress = lambda _what, _done, _total: None,
) -> CollectionReport:
    """Delete what no root leads to, and what earlier collections condemned and left.

    Safe beside any number of writers and other collections. It may be stopped at any moment: the
    next one goes on.

    Args:
        repository: where.
        actor: who, as the log tells it.
        rules: what is spared for convenience.
        progress: callback that receives what is being done, how much is done, and of how much
            (0: unknown).

    Raises:
        UnsupportedError: a newer version uses this repository, and says things in it that this
            version does not know; or the store can only be read.
        NotFoundError, CorruptError: something that a root leads to cannot be read. Nothing more was
            deleted.
    """
    view = repository.log.refresh()
    refuse_collection(repository, view)
    deleted = sum(
        delete_condemned(repository, grave, actor, progress)
        for grave in view.state.graves
        if not grave.ended
    )
    moment = StoreTimes.of(repository, view)
    closed = _close_leases(repository, actor, moment, rules) if rules.close_leases else ()
    collection = _Collection(repository, actor, rules, moment, progress)
    reports = [beside_others(repository, collection.run)]
    while len(reports[-1].released) == MOST_RELEASED:
        reports.append(beside_others(repository, collection.run))
    _merge_graves(repository, actor)
    return replace(
        reports[-1],
        dead_objects=sum(each.dead_objects for each in reports),
        dead_bytes=sum(each.dead_bytes for each in reports),
        deleted_keys=deleted + sum(collection.deleted),
        released=tuple(digest for each in reports for digest in each.released),
        closed_leases=closed,
        condemned=tuple(collection.condemned),
    )


def beside_others(repository: RepositoryCore, work: Callable[[], T]) -> T:
    """Do what reads all that roots lead to, and again where the log moved on.

    A root may be dropped meanwhile, and a table of graves merged; another collection takes it then.
    """
    for _ in range(_TRIES - 1):
        before = repository.log.refresh().digest
        try:
            return work()
        except NotFoundError:
            if repository.log.refresh().digest == before:
                raise
    return work()


def _merge_graves(repository: RepositoryCore, actor: str) -> None:
    """Let one table of graves stand for the newest of similar size, where there are many."""
    store, txn = repository.objects, secrets.token_hex(16)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        try:
            chosen = _mergeable(store, view.state)
            payload = merge_graves([store.table(grave) for grave in chosen])
        except NotFoundError:
            if repository.log.refresh().state.graves == view.state.graves:
                raise
            return ()  # another collection merged them, and a third one took the tables
        if not chosen:
            return ()
        with ObjectWriter(store, view.state.graves) as writer:
            merged = writer.put(Kind.GRAVES, payload)
            writer.flush()
        names = [grave.generation for grave in chosen]
        return (log_entry("gc-merge", actor, {"generations": names, "graves": merged.digest}, txn),)

    append_record(repository, decide)


def _mergeable(store: ObjectStore, state: State) -> list[Condemnation]:
    """The newest ended condemnations, down to one that is twice as large as all after it."""
    ended = [grave for grave in state.graves if grave.ended]
    if len(ended) <= MOST_TABLES:
        return []
    chosen: list[Condemnation] = []
    rows = 0
    for grave in reversed(ended):
        count = len(store.table(grave))
        if (len(chosen) >= LEAST_MERGED and count > 2 * rows) or rows + count > MOST_ROWS:
            break
        chosen.insert(0, grave)
        rows += count
    return chosen if len(chosen) > 1 else []


def plan_collection(
    repository: RepositoryCore,
    *,
    rules: CollectionRules = CollectionRules(),
    progress: Progress = lambda _what, _done, _total: None,
    ends: Collection[Digest] = (),
) -> CollectionReport:
    """What `collect_garbage` would delete, by kind, and what refs hold. Changes nothing.

    Arguments are those of `collect_garbage`; `ends` are commits at which history would end by then.
    """

    def plan() -> CollectionReport:
        view = repository.log.refresh()
        refuse_collection(repository, view, writes=False)
        moment = StoreTimes.of(repository, view, asks=False)
        state = replace(view.state, shallow=view.state.shallow | frozenset(ends))
        return _Collection(repository, "", rules, moment, progress).plan(state)

    return beside_others(repository, plan)


def refuse_collection(repository: RepositoryCore, view: LogView, *, writes: bool = True) -> None:
    if (reason := view.state.read_only_reason) is not None:
        raise UnsupportedError(f"nothing is collected in {repository.url}: {reason}")
    if writes and repository.log.service is not None:
        raise UnsupportedError(
            f"{repository.url} is behind a service, and garbage is collected where its store lies: "
            "let whoever runs the service run `tensorrepo gc` there. With --dry-run it tells here "
            "what would go."
        )
    if writes and repository.backend.guarantee is Guarantee.READ_ONLY:
        raise UnsupportedError(f"{repository.url} can only be read: nothing is collected there")


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The store's clock: what it says now, and when it stored records of the log."""

    now: float
    stored: Mapping[str, float]

    @classmethod
    def of(cls, repository: RepositoryCore, view: LogView, *, asks: bool = True) -> StoreTimes:
        """Read from a listing of the log.

        To learn what time it is, the hint is written: nobody relies on it. Without `asks` nothing
        is written, and this machine's clock must do.
        """
        backend, generation = repository.backend, view.generation
        if asks and generation:
            backend.overwrite(HINT_KEY, [encode_hint(Hint(generation, 0))])
        wanted = {slot_key(gen) for gen in view.state.retained.values()} | {HINT_KEY}
        stored = {
            each.key: each.modified_seconds
            for each in backend.list("log/")
            if each.key in wanted and each.modified_seconds is not None
        }
        now = stored.get(HINT_KEY, 0.0) if asks else time.time()
        return cls(now, stored)

    def age_of_record(self, generation: int) -> float:
        """Seconds since a record was stored; 0 where the store does not tell."""
        return max(0.0, self.now - self.stored.get(slot_key(generation), self.now))


def _close_leases(
    repository: RepositoryCore, actor: str, moment: StoreTimes, rules: CollectionRules
) -> tuple[str, ...]:
    latest = (moment.now - rules.grace_seconds) * 1e9
    txn = secrets.token_hex(16)
    closed: list[str] = []

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        leases = sorted(view.state.leases.items())
        ended = (name for name, one in leases if one.expires_ns and one.expires_ns < latest)
        closed[:] = islice(ended, MOST_CLOSED)
        return tuple(log_entry("lease-close", actor, {"id": name}, txn) for name in closed)

    append_record(repository, decide)
    return tuple(closed)


@dataclass(frozen=True, slots=True)
class _Collection:
    """Passes: list, mark, condemn, delete. What one did stands in `condemned` and `deleted`, also
    where it is begun anew.
    """

    repository: RepositoryCore
    actor: str
    rules: CollectionRules
    moment: StoreTimes
    progress: Progress
    condemned: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)

    def run(self) -> CollectionReport:
        view = self.repository.log.refresh()
        released = self._released(view.state)
        marks = self._list(view.state)
        marks.mark(_roots(view.state, released))
        judged = self._judge(view.state, marks)
        is_first = True
        candidates = self._candidates(view.state, marks)
        while True:
            # What is let go of stands in the first record, for what it led to is in any of them.
            batch = tuple(islice(candidates, MOST_KEYS)) if judged.worth_it else ()
            step = _Condemning(self, marks, view.generation, batch, released)
            grave = step.append() if batch or (released and is_first) else None
            if grave is None:
                break
            is_first = False
            self.condemned.append(grave.generation)
            gone = delete_condemned(self.repository, grave, self.actor, self.progress)
            self.deleted.append(gone)
            if len(batch) < MOST_KEYS:
                break
        report = judged.report(marks.table, dry_run=False)
        return replace(
            report,
            released=tuple(sorted(released)),
            retained=len(view.state.retained) - len(released),
        )

    def plan(self, state: State) -> CollectionReport:
        released = self._released(state)
        marks = self._list(state)
        others = {"dropped refs": [each for each in state.retained if each not in released]}
        others["leases"] = [each for lease in state.leases.values() for each in lease.keep]
        owners = {ref: [digest] for ref, digest in sorted(state.refs.items())} | others
        owners["the log"] = [*log_roots(state)]
        for number, roots in enumerate(owners.values(), 1):
            marks.mark(roots, number)
        judged = self._judge(state, marks)
        held = dict(zip(owners, marks.bytes_by_owner(len(owners))[1:-1], strict=True))
        candidates = map(marks.table.__getitem__, self._candidates(state, marks))
        rows = (row for row in candidates if row.label != PACKED)
        told = partial(self.progress, "looking at kinds of")
        kinds = count_kinds(self.repository.backend, rows, told, judged.dead_objects)
        return replace(
            judged.report(marks.table, dry_run=True),
            released=tuple(sorted(released)),
            retained=len(state.retained) - len(released),
            kinds=kinds,
            refs=dict(sorted(held.items(), key=lambda pair: (-pair[1], pair[0]))),
        )

    def _list(self, state: State) -> Marks:
        packs = self.repository.objects.packs.tables()
        table = ObjectTable(self.repository.backend, partial(self.progress, "listing"), packs)
        return Marks(self.repository.objects, table, state, partial(self.progress, "marking"))

    def _released(self, state: State) -> dict[Digest, int]:
        """Dropped values whose time is over, and the generations that dropped them."""
        retention = self.rules.retention_seconds
        if retention is None:
            configured = retention_seconds(state)
            retention = RETENTION_SECONDS if configured is None else configured
        oldest = sorted(state.retained.items(), key=lambda pair: (pair[1], pair[0]))
        return dict(islice((one for one in oldest if self._is_over(one, retention)), MOST_RELEASED))

    def _is_over(self, dropped: tuple[Digest, int], retention: float) -> bool:
        digest, generation = dropped
        age = self.moment.age_of_record(generation)
        if age >= retention:
            return True
        return age >= self.rules.grace_seconds and self._is_checkpoint(digest, generation)

    def _is_checkpoint(self, digest: Digest, generation: int) -> bool:
        """Whether it was a run's policy that dropped a commit, and nothing else did then."""
        (record,) = self.repository.log.records(generation, generation + 1)
        dropped = [
            update.ref
            for entry in record.entries
            for update in updates_of(self.repository.log, entry)
            if update.old == digest
        ]
        return bool(dropped) and all(ref.startswith(CHECKPOINTS) for ref in dropped)

    def _candidates(self, state: State, marks: Marks) -> Iterator[int]:
        """Rows that may be condemned: known incarnations of what is unmarked, beyond the grace."""
        latest = self.moment.now - self.rules.grace_seconds
        for number in marks.unmarked():
            row = marks.table[number]
            is_due = row.seconds <= latest or row.digest in state.purges
            if is_due and is_known_key(self.repository.objects, state, row):
                yield number

    def _judge(self, state: State, marks: Marks) -> _Judgement:
        judged = _Judgement()
        ended = {grave.list for grave in state.graves if grave.ended}
        for number in self._candidates(state, marks):
            row = marks.table[number]
            judged.dead_objects += row.label != PACKED
            judged.dead_bytes += row.bytes
            # The list of a collection is all that it leaves: by itself no reason for another.
            judged.worth_it |= row.digest not in ended
        for number in marks.unmarked():
            if marks.table[number].label == PACKED:  # no key of its own
                continue
            judged.unmarked_objects += 1
            judged.unmarked_bytes += marks.table[number].bytes
        return judged


@dataclass(slots=True)
class _Judgement:
    dead_objects: int = 0
    dead_bytes: int = 0
    unmarked_objects: int = 0
    unmarked_bytes: int = 0
    worth_it: bool = False

    def report(self, table: ObjectTable, *, dry_run: bool) -> CollectionReport:
        dead = (self.dead_objects, self.dead_bytes) if self.worth_it else (0, 0)
        total = sum(size for _, size, _, _ in table.rows())
        return CollectionReport(
            dry_run=dry_run,
            live_objects=len(table) - dead[0],
            live_bytes=total - dead[1],
            dead_objects=dead[0],
            dead_bytes=dead[1],
            young_objects=self.unmarked_objects - self.dead_objects,
            young_bytes=self.unmarked_bytes - self.dead_bytes,
            foreign=tuple(table.foreign),
            foreign_count=table.foreign_count,
        )


def is_known_key(store: ObjectStore, state: State, row: StoredRow) -> bool:
    """Whether the label of a key is that of a condemnation, so that a collector may judge it.

    Of those whose graves were merged only the newest label of each digest is known; a key with an
    older one is of an incarnation that came before.
    """
    if row.label == 0:
        return True
    if row.label == PACKED:  # it is buried, so that the next pack leaves it out
        return store.packs.home(row.digest, store.label(row.digest, state.graves)) is not None
    if any(grave.generation == row.label for grave in state.graves):
        return True
    return row.label <= store.label(row.digest, state.graves)


def log_roots(state: State) -> Iterator[Digest]:
    """What the log itself keeps."""
    yield from state.bulks
    yield from state.history_packs
    yield from state.purged_rows
    for grave in state.graves:
        yield grave.graves
        if not grave.ended:
            yield grave.list


def _roots(state: State, released: Mapping[Digest, int]) -> list[Digest]:
    """Roots of a state, but for dropped values that are let go of with the record to come."""
    gone = {each for each, dropped in released.items() if state.retained.get(each) == dropped}
    kept = [each for each in state.retained if each not in gone]
    leased = [each for lease in state.leases.values() for each in lease.keep]
    return list(dict.fromkeys([*state.refs.values(), *kept, *leased, *log_roots(state)]))


@dataclass(slots=True)
class _Condemning:
    """One gc-condemn on its way into the log."""

    collection: _Collection
    marks: Marks
    listed_at: int
    numbers: tuple[int, ...]
    released: Mapping[Digest, int]
    txn: str = field(default_factory=lambda: secrets.token_hex(16))

    def append(self) -> Condemnation | None:
        """The condemnation, once it is in the log; None when nothing was left to condemn."""
        return appended_condemnation(self.collection.repository, self._decide)

    def _decide(self, view: LogView) -> tuple[LogEntry, ...]:
        """What to condemn by the record after `view`: rule G3."""
        repository, state = self.collection.repository, view.state
        refuse_collection(repository, view)
        self.marks.advance(state)
        self.marks.mark(_roots(state, self.released))
        rows = [self.marks.table[number] for number in self.numbers if self._is_dead(number, state)]
        gone = [each for each, at in self.released.items() if state.retained.get(each) == at]
        keys = [row.key for row in rows if row.label != PACKED]
        buried = [row.digest for row in rows]
        actor = self.collection.actor
        return condemnation_entry(repository, view, actor, keys, buried, gone, self.txn)

    def _is_dead(self, number: int, state: State) -> bool:
        row = self.marks.table[number]
        if self.marks.owner(row.digest):
            return False
        # What another collection condemned meanwhile is its to delete.
        store = self.collection.repository.objects
        since = [grave for grave in state.graves if grave.generation > self.listed_at]
        return store.label(row.digest, since) <= self.listed_at


def condemnation_entry(
    repository: RepositoryCore,
    view: LogView,
    actor: str,
    keys: Collection[str],
    buried: Collection[Digest],
    released: Collection[Digest],
    txn: str,
) -> tuple[LogEntry, ...]:
    """What condemns keys by the record after `view`, and buries digests; nothing for no keys."""
    if not keys and not buried and not released:
        return ()
    # Put anew for every head: another collection may have condemned what was put before.
    at = view.generation + 1
    with ObjectWriter(repository.objects, view.state.graves) as writer:
        listed = writer.put(Kind.GC_LIST, encode_key_list(keys))
        graves = writer.put(Kind.GRAVES, encode_graves(buried, at))
        writer.flush()
    data = {
        "at": at,
        "list": listed.digest,
        "graves": graves.digest,
        "release": sorted(released),
    }
    return (log_entry("gc-condemn", actor, data, txn),)


def appended_condemnation(
    repository: RepositoryCore, decide: Callable[[LogView], tuple[LogEntry, ...]]
) -> Condemnation | None:
    """The condemnation, once it is in the log; None when nothing was left to condemn."""
    appended = append_record(repository, decide)
    at = None if appended.record is None else appended.record.gen
    return next((grave for grave in appended.view.state.graves if grave.generation == at), None)


def delete_condemned(
    repository: RepositoryCore, grave: Condemnation, actor: str, progress: Progress
) -> int:
    """Delete what was condemned, and record that it is done; gives the number of keys."""

    def waits(state: State) -> bool:
        return any(each.generation == grave.generation and not each.ended for each in state.graves)

    try:
        keys = list(decode_key_list(repository.objects.fetch(grave.list).payload))
    except NotFoundError:
        if waits(repository.log.refresh().state):
            raise
        return 0  # another collection was faster, and a third one took the list
    backend = repository.backend
    threads = READING_THREADS if backend.local_root is None else 0
    for done, _ in enumerate(ordered_map(keys, backend.delete, threads=threads), 1):
        if done % SOME == 0:
            progress("deleting", done, len(keys))
    txn = secrets.token_hex(16)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        if not waits(view.state):
            return ()  # another collection was faster
        return (log_entry("gc-end", actor, {"generation": grave.generation}, txn),)

    append_record(repository, decide)
    return len(keys)


def append_record(
    repository: RepositoryCore, decide: Callable[[LogView], tuple[LogEntry, ...]]
) -> Appended:
    """Append a record of a collection.

    Nobody need ask what became of one that was cut off. If it landed, or lands yet, the next
    collection finds its list and ends it; if not, that one decides anew.
    """
    try:
        return repository.append(decide)
    except CommitOutcomeUnknown as unknown:
        if repository.log.pending is not None:
            repository.log.pending.remove(unknown.txn)
        raise CommitOutcomeUnknown(
            f"{repository.url}: a collection was cut off at record {unknown.generation} of the "
            f"log: {unknown.__cause__ or unknown}. Nothing that is needed is gone: run "
            "`tensorrepo gc` again, which ends what this one began.",
            txn=unknown.txn,
            generation=unknown.generation,
        ) from unknown.__cause__


def log_entry(kind: str, actor: str, data: Mapping[str, Any], txn: str) -> LogEntry:
    """An entry that moves no ref, made now."""
    return LogEntry(txn, kind, actor, time.time_ns(), data=dict(data))
