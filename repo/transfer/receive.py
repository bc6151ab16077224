"""Receiving of commits: have and want, copies, and one record of the log at the end.

    1. which commits of the origin does the receiver not have?  `difference.missing_commits`
    2. what does each bring?                                    `difference.objects_of`
    3. copy that, in batches, each made durable                 `copying.ObjectCopier`
    4. past the collector's fence, set refs in one record       `receive`

What was stored before a kill is found and adopted by whoever tries again; no ref names it until
the end. A long transfer holds a lease on the commits that are whole, so that no collection between
takes them: without it they would only be copied again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Final

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.purge_guard import refuse_received
from tensorrepo.repo.changes.refs import tag_signatures
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.shallow import MOST_ENDED, end_entry
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitExpired,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tensorrepo.repo.history.commits import decode_commit, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import Appended
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import (
    MOST_SUPERSEDED,
    LogEntry,
    encode_ref_updates,
)
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.threads import OrderedMap, ordered_map
from tensorrepo.repo.transfer.copying import ObjectCopier
from tensorrepo.repo.transfer.difference import (
    CommitObjects,
    EitherSource,
    EnvelopeSource,
    NewObject,
    deepen,
    history_ends,
    missing_commits,
    objects_below,
    objects_of,
)
from tensorrepo.repo.transfer.pace import RateLimit, TransferTotals
from tensorrepo.repo.transfer.source_purges import SourcePurges

_REMOTE_THREADS: Final = 16
_LOCAL_THREADS: Final = 2
_FLYING_BYTES: Final = 64 << 20
_COUNTED_BYTES: Final = 12 << 20  # of a large object: it holds no more at a time
_BATCH_BYTES: Final = 512 << 20
_BATCH_OBJECTS: Final = 20_000
_LEASE_SECONDS: Final = 60.0  # a shorter transfer needs none
_LEASE_EXPIRES_NS: Final = 14 * 86400 * 10**9
_LEASED_COMMITS: Final = 500  # a record has 64 KiB
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class HistorySource:
    """Where commits come from: a repository, or a bundle.

    Attributes:
        objects: its objects.
        refs: its refs.
        supersedes: placements of models that others took the place of.
        id: id of the repository.
        url: place for people, without secrets.
        near: whether asking it takes no time.
        has: whether it has an object, as far as a look tells.
        shallow: commits at which history ends, there or by what was asked for.
        purging: state that says what was purged there.
        signatures: gives the signatures of some of its tags, as they travel.
    """

    objects: EnvelopeSource
    refs: Mapping[str, Digest]
    supersedes: Mapping[Digest, Digest]
    id: str
    url: str
    near: bool
    has: Callable[[Digest], bool]
    shallow: frozenset[Digest] = frozenset()
    purging: State = field(default_factory=State)
    signatures: Callable[[Collection[str]], Mapping[str, str]] = lambda _: {}

    @classmethod
    def of(cls, repository: RepositoryCore, view: LogView | None = None) -> HistorySource:
        """What a repository has to give, at the newest view of it."""
        view = view or repository.log.refresh()
        state = view.state
        return cls(
            repository.objects,
            state.refs,
            state.supersedes,
            repository.id,
            repository.url,
            repository.backend.local_root is not None,
            partial(has_object, repository.objects),
            state.shallow,
            state,
            partial(tag_signatures, repository, view=view),
        )

    def purge_records(self, living: Container[Digest]) -> frozenset[int]:
        """Records of the purges for whose twins, or the twins of these, one of `living` stands."""
        return frozenset(
            record
            for old, record in self.purging.purges.items()
            if old in self.supersedes and self.resolve(old) in living
        )

    def resolve(self, digest: Digest) -> Digest:
        """What stands for an object there."""
        while digest in self.supersedes:
            digest = self.supersedes[digest]
        return digest

    def to_depth(self, tips: Iterable[Digest], depth: int) -> HistorySource:
        """The same, with a history of so many commits behind `tips` at most."""
        ends = history_ends(self.objects, tips, depth)
        return replace(self, shallow=self.shallow | ends)


def has_object(store: ObjectStore, digest: Digest) -> bool:
    """Whether an object lies where most do; one that was condemned once lies elsewhere."""
    return store.stored_bytes(digest, 0) is not None or store.packs.holds(digest)


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How objects are moved.

    Attributes:
        actor: who does it, for the log.
        parts: folder of unfinished objects, where the receiver has no place for them.
        limit: how fast.
        progress: receives the counters now and then, on any thread.
        omit: whether an object is left where it is, to be read when it is asked for.
        clock: seconds from any start.
    """

    actor: str
    parts: Path
    limit: RateLimit = field(default_factory=lambda: RateLimit(None))
    progress: Callable[[TransferTotals], None] = lambda _: None
    omit: Callable[[NewObject], bool] | None = None
    clock: Callable[[], float] = time.monotonic


Decide = Callable[[LogView], tuple[LogEntry, ...]]


@dataclass(frozen=True, slots=True)
class Depth:
    """How far back history is brought, also behind commits at which it ends at the receiver.

    Attributes:
        tips: commits that are counted from.
        commits: number of commits at most; None: all of them.
    """

    tips: tuple[Digest, ...]
    commits: int | None


def both_histories(
    source: HistorySource, target: RepositoryCore, shallow: frozenset[Digest]
) -> EitherSource:
    """The commits of both sides as one graph, which ends at `shallow`."""
    here = target.objects
    if source.near:
        return EitherSource(source.objects, source.has, here, shallow)
    return EitherSource(here, partial(has_object, here), source.objects, shallow)


def receive(
    source: HistorySource,
    target: RepositoryCore,
    wants: Iterable[Digest],
    decide: Decide,
    options: TransferOptions,
    *,
    likely: Iterable[Digest] = (),
    depth: Depth | None = None,
) -> tuple[Appended, TransferTotals]:
    """Have `wants` at `target` with all that they lead to, then append what `decide` says.

    Args:
        source: where they come from.
        target: the receiver.
        wants: commits.
        decide: entries that set refs to them, at the newest view; none: nothing is appended.
        options: how.
        likely: commits that the receiver has and that are near to `wants`.
        depth: how far back; None: to what the receiver has, which it ends where it did.

    Raises:
        CorruptError: something is damaged at the source. No ref was set.
        CommitExpired: collections at either side took something, again and again.
        PermissionDenied: the receiver can only be read, or is a mirror. Nothing was copied.
    """
    needed = list(dict.fromkeys(wants))
    totals = TransferTotals()
    if needed or depth:
        _refuse_read_only(target)  # before anything is copied
    for attempt in range(_TRIES):
        receiving = Receiving(source, target, options, target.log.refresh(), totals)
        try:
            if depth is None:
                receiving.copy(needed, likely)
            else:
                receiving.deepen(depth)
            return receiving.append(needed, decide), totals
        except CommitExpired:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _refuse_read_only(target: RepositoryCore) -> None:
    if target.backend.guarantee is Guarantee.READ_ONLY:
        raise PermissionDenied(f"{target.url} can only be read")
    if target.log.read_only is not None:
        raise PermissionDenied(f"{target.url}: {target.log.read_only}")
    if (reason := target.log.refresh().state.read_only_reason) is not None:
        raise UnsupportedError(f"{target.url}: {reason}")


class Receiving:
    """One attempt: what is copied, and what the fence must look at."""

    def __init__(
        self,
        source: HistorySource,
        target: RepositoryCore,
        options: TransferOptions,
        pin: LogView,
        totals: TransferTotals,
        writer: ObjectWriter | None = None,
    ) -> None:
        self._source, self._target, self._options, self._pin = source, target, options, pin
        self._totals = totals
        self._writer = writer or ObjectWriter(target.objects, pin.state.graves)
        self._copier = ObjectCopier(
            source.objects, source.url, self._writer, options.parts, options.limit, totals,
            lambda: options.progress(totals),
        )  # fmt: skip
        both_near = source.near and target.backend.local_root is not None
        self._threads = _LOCAL_THREADS if both_near else _REMOTE_THREADS
        self._reading = _LOCAL_THREADS if source.near else _REMOTE_THREADS
        self._placements: dict[Digest, Digest] = {}
        self._had_placements: dict[Digest, Digest] = {}
        self._purges = SourcePurges(source.id, source.purging, options.actor)
        self._purged: set[Digest] = set()
        self._replaced: dict[Digest, Digest | None] = {}
        self._ends: set[Digest] = set()
        self._lease = TransferLease(
            target, source.id, options.actor, options.clock, self._pass_fence, self.superseded,
            self._say_ahead,
        )  # fmt: skip
        self._shallow = source.shallow | pin.state.shallow
        self._whole: frozenset[Digest] = frozenset()
        self._received: list[Digest] = []
        self._many = False
        self._known: EitherSource | None = None
        self._fenced = pin

    def copy(
        self, wants: Iterable[Digest], likely: Iterable[Digest] = (), *, whole: bool = True
    ) -> None:
        """Copy what the receiver lacks of some commits; all is durable when this returns.

        Args:
            wants: commits.
            likely: commits that the receiver has and that are near to them.
            whole: whether it has all that its refs lead to; else all of that is looked at, too.
        """
        held = dict.fromkeys(self._pin.state.refs.values()) if whole else {}  # in a fixed order
        wanted = [digest for digest in wants if digest not in held]
        if not wanted:
            return
        self._known = both_histories(self._source, self._target, self._shallow)
        commits = missing_commits(
            self._known, wanted, lambda: held, [one for one in likely if one in held]
        )
        self._copy_commits([digest for digest, _ in commits])

    def deepen(self, depth: Depth) -> None:
        """Copy what the receiver lacks of a history, also behind where it ends there."""
        state = self._pin.state
        had = {digest for digest, _ in walk(self._target.objects, state.refs.values())}
        self._known = both_histories(self._source, self._target, self._source.shallow)
        found = deepen(self._known, depth.tips, had, state.shallow, depth.commits)
        self._whole = found.whole
        self._shallow = self._source.shallow | found.ends
        self._copy_commits(found.commits)

    def _copy_commits(self, commits: Sequence[Digest]) -> None:
        """Copy commits, parents first, with all that they bring."""
        self._many = len(commits) > 1
        plans = ordered_map(
            commits,
            self._plan,
            threads=min(self._reading, 8) if self._many else 0,
            name="plan",
        )
        try:
            for batch in _batches(plans):
                self._copy_batch(batch)
        except BaseException:
            self._writer.abort()
            raise
        finally:
            plans.close()

    def copy_all(self, roots: Iterable[Digest], had: Iterable[Digest] = ()) -> None:
        """Copy objects that are no commits, with all that they lead to and `had` do not."""
        wanted = list(dict.fromkeys(roots))
        if wanted:
            found = objects_below(
                self._source.objects,
                wanted,
                supersedes=self._source.supersedes,
                threads=self._reading,
                had=had,
                purged=self._is_purged,
                held=self._held,
            )
            self._placements |= found.placements
            self._had_placements |= found.had_placements
            self._purged |= found.purged
            for batch in _batches([found]):
                self._copy_batch(replace(batch, whole=[]))

    def append(self, wants: Sequence[Digest], decide: Decide) -> Appended:
        """One record with the refs, the placements that were replaced, and the end of the lease."""

        def entries(view: LogView) -> tuple[LogEntry, ...]:
            decided = decide(view)
            whole = self._whole & view.state.shallow
            if not decided and not whole:
                return self._lease.closing(view)
            self._pass_fence(view, [*wants, *self._continued(whole)])
            before = (*self._ending(view), *self.superseded(view))
            return (*before, *decided, *self._lease.closing(view))

        self._say_ahead()
        self._end_ahead()
        return self._target.append(entries)

    def _end_ahead(self) -> None:
        """Say in records of their own where history ends, and where it goes on again, of more
        commits than one can hold.

        That it ends at a commit which nothing leads to yet changes nothing. It goes on behind one
        when all of that is said, so that what lies there ends, too.
        """

        def first(view: LogView) -> tuple[LogEntry, ...]:
            ends = sorted(self._ends - view.state.shallow)
            whole = sorted(self._whole & view.state.shallow)
            if len(ends) + len(whole) <= MOST_ENDED:
                return ()
            if len(ends) > MOST_ENDED:
                return (end_entry(self._options.actor, add=ends[:MOST_ENDED]),)
            some = whole[: MOST_ENDED - len(ends)]
            self._pass_fence(view, list(self._continued(some)))
            going_on = end_entry(self._options.actor, add=ends, remove=some)
            return (*self.superseded(view), going_on)

        if len(self._ends) + len(self._whole) <= MOST_ENDED:
            return  # an append that says nothing asks the store, too
        while self._target.append(first).record is not None:
            pass

    def _say_ahead(self) -> None:
        """Say in records of their own what took the place of more placements than one can hold, and
        more names of columns that were erased.

        What is said of a placement that nothing leads to yet changes nothing.
        """

        def first(view: LogView) -> tuple[LogEntry, ...]:
            entries = [one for one in self.superseded(view) if one.kind == "supersede"]
            return tuple(entries[:1]) if len(entries) > 1 else ()

        if len(self._had_placements) + len(self._placements) > MOST_SUPERSEDED:
            while self._target.append(first).record is not None:
                pass  # an append that says nothing asks the store, too
        self.name_ahead(lambda view: bool(self._erased(self._standing(view))))

    def name_ahead(self, erases: Callable[[LogView], bool]) -> bool:
        """Say ahead which columns the source erased, of more than the record that erases names;
        gives whether any was said.

        Whoever is killed behind one has said what is true there, and says the rest another time.

        Args:
            erases: whether anything is to be erased at a view; else nothing is said.
        """

        def first(view: LogView) -> tuple[LogEntry, ...]:
            entry = self._purges.ahead(view.state)
            return (entry,) if entry is not None and erases(view) else ()

        said = False
        if self._purges.ahead(self._pin.state) is not None:
            while self._target.append(first).record is not None:
                said = True
        return said

    def _plan(self, digest: Digest) -> CommitObjects:
        return objects_of(
            self._source.objects,
            digest,
            supersedes=self._source.supersedes,
            shallow=self._shallow,
            threads=min(self._reading, 4) if self._many else self._reading,
            known=self._known,
            purged=self._is_purged,
            held=self._held,
        )

    def _continued(self, whole: Iterable[Digest]) -> Iterator[Digest]:
        """Commits that are reachable as soon as history goes on behind `whole`."""
        for digest in whole:
            yield from decode_commit(self._target.objects.get(digest).payload).parents

    def _is_purged(self, digest: Digest) -> bool:
        """Whether the receiver has a twin of an object that it purged; PurgedError: only that."""
        state = self._pin.state
        if digest not in state.purges:
            return False
        return self._target.objects.living(digest) != digest

    def _copy_batch(self, batch: _Batch) -> None:
        omit = self._options.omit
        items = [item for item in batch.objects if omit is None or not omit(item)]
        self._totals.plan(len(items), sum(item.link.bytes for item in items))
        self._copier.stopped = stopped = Event()
        copies = OrderedMap(
            items,
            self._copier.copy,
            threads=self._threads,
            bytes_ahead=_FLYING_BYTES,
            size_of=lambda item: min(item.link.bytes, _COUNTED_BYTES),
            name="copy",
            stop=stopped.set,
        )
        try:
            for _ in copies:
                pass
        finally:
            copies.close()
        self._copier.flush()
        self._totals.commits += len(batch.whole)
        for commit in batch.whole:
            self._placements |= commit.placements
            self._had_placements |= commit.had_placements
            self._purged |= commit.purged
            self._ends |= {commit.digest} if commit.beyond else set()
            self._received.append(commit.digest)
            # Nothing may lead to where history ends before the log says that it does: the record
            # at the end says so. What has no lease is at worst copied again.
            if self._target.log.read_only is None and self._ends <= self._pin.state.shallow:
                self._lease.hold(commit)
        self._options.progress(self._totals)

    def _pass_fence(self, view: LogView, wants: Sequence[Digest]) -> None:
        """Rules W3 and W4 at `view`."""
        graves = gc_fence.graves_since(view.state, self._fenced.generation)
        if graves:
            hits = gc_fence.condemned(self._target.objects, self._writer.own, graves)
            gc_fence.store_again(self._writer, hits, view.state.graves, self._target.url)
        named = set(view.state.refs.values())
        for commit in wants:
            # Where nothing was condemned meanwhile, all that a new commit shares is still there.
            fresh = commit in self._writer.own and not graves
            if not fresh and commit not in named:
                gc_fence.secure_commit(self._writer, view.state, commit)
        gc_fence.secure_twins(self._writer, view.state, sorted(self._purged), self._source.url)
        drivers, state = self._target.drivers, view.state
        soon = self._standing(view) if state.purges else {}
        refuse_received(
            self._target.objects, drivers, state, self._received, self._source.url,
            lambda digest: soon.get(digest, digest),
        )  # fmt: skip
        self._fenced = view

    def _ending(self, view: LogView) -> Iterator[LogEntry]:
        """Commits that came without their parents, where history ends here, too; and those whose
        parents came.
        """
        add, remove = self._ends - view.state.shallow, self._whole & view.state.shallow
        if add or remove:
            yield end_entry(self._options.actor, add=sorted(add), remove=sorted(remove))

    def superseded(self, view: LogView) -> tuple[LogEntry, ...]:
        """Where placements live that trees name and that are not what is stored now."""
        state, needed = view.state, self._standing(view)
        purged = self._erased(needed)
        living = {new for old, new in self._moved().items() if old in purged}
        here = partial(self._lies_here, state)
        entries = [self.purge_entry(state, purged, living, here)] if purged else []
        names = needed.keys() - self._source.purging.purges.keys()
        return (*entries, *self.supersede_entries({old: needed[old] for old in sorted(names)}))

    def _erased(self, standing: Mapping[Digest, Digest]) -> dict[Digest, Digest]:
        """What of it the source erased, and is erased here, too."""
        erased = self._source.purging.purges
        return {old: new for old, new in standing.items() if old in erased}

    def _moved(self) -> Mapping[Digest, Digest]:
        return self._had_placements | self._placements

    def _standing(self, view: LogView) -> dict[Digest, Digest]:
        """What is to stand for objects that trees name, but for what was purged and is kept."""
        state, erased = view.state, self._source.purging.purges
        return {
            old: state.resolve(new)
            for old, new in sorted(self._moved().items())
            if old not in state.supersedes and state.resolve(new) != old
            if old not in erased or not self._keep(view, old)
        }

    def _keep(self, view: LogView, digest: Digest) -> bool:
        """Keep what the source purged and what lies here still, be it only as garbage; False: all
        or some of it is gone.
        """
        if not self._lies_here(view.state, digest):
            return False
        try:
            needed = list(gc_fence.closure(self._target.objects, [digest], view.state.supersedes))
            gc_fence.store_again(self._writer, needed, view.state.graves, self._target.url)
        except (NotFoundError, CommitExpired):
            return False
        return True

    def _lies_here(self, state: State, digest: Digest) -> bool:
        """Whether the receiver has an object, where its collections let it lie."""
        store = self._target.objects
        label = store.label(digest, state.graves)
        return store.stored_bytes(digest, label) is not None or store.packs.holds(digest)

    def _held(self, digest: Digest) -> Digest | None:
        """What the receiver has where a parent names an object."""
        state = self._pin.state
        here = state.resolve(digest)
        if here != digest or digest not in self._source.supersedes:
            return here
        # Either it was here before the source replaced it, or parents that come, too, name it.
        if digest not in self._replaced:
            lies_here = self._lies_here(state, digest)
            self._replaced[digest] = None if lies_here else self._source.resolve(digest)
        return self._replaced[digest]

    def supersede_entries(self, placements: Mapping[Digest, Digest]) -> Iterator[LogEntry]:
        """Entries that say what took the place of placements."""
        names = iter(placements)
        while block := list(islice(names, MOST_SUPERSEDED)):
            data = {"placements": {old: placements[old] for old in block}}
            txn = secrets.token_hex(16)
            yield LogEntry(txn, "supersede", self._options.actor, time.time_ns(), data=data)

    def purge_entry(
        self,
        state: State,
        twins: Mapping[Digest, Digest],
        living: Container[Digest],
        kept: Callable[[Digest], bool],
    ) -> LogEntry:
        """What the source purged of it is purged here as well, unless it is here still.

        A repository that has the data keeps it until somebody purges it there.

        Args:
            state: what the entry is appended to.
            twins: what was purged, to what stands for it here.
            living: what stands for it at the source.
            kept: whether an object without a twin is not to be named. Those with twins are named
                when they are met.
        """
        source, records = self._source.purging, self._source.purge_records(living)
        gone = [
            digest
            for digest, record in sorted(source.purges.items())
            if record in records
            and digest not in state.purges
            and digest not in self._source.supersedes
        ]
        keeps = ordered_map(gone, kept, threads=self._threads, name="purged")
        erased: dict[Digest, Digest | None] = {**twins}
        erased |= {digest: None for digest, keep in zip(gone, keeps, strict=True) if not keep}
        updates = [self._purges.update(old, new) for old, new in sorted(erased.items())]
        bulk = self._writer.put(Kind.REF_UPDATES, encode_ref_updates(updates)).digest
        lists = [digest for digest, record in source.purged_rows.items() if record in records]
        joined = self._purges.joined(self._source.objects, lists)
        rows = sorted({self._writer.put(Kind.BLOB, each).digest for each in joined})
        self._writer.flush()
        return self._purges.entry(self._purges.unnamed(state), rows, bulk=bulk)


@dataclass(slots=True)
class _Batch:
    """Objects that are copied and made durable together, and the commits that end with them."""

    objects: list[NewObject] = field(default_factory=list)
    whole: list[CommitObjects] = field(default_factory=list)
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.objects) >= _BATCH_OBJECTS or self.bytes >= _BATCH_BYTES


def _batches(plans: Iterable[CommitObjects]) -> Iterator[_Batch]:
    """Each object once in a batch: two commits that bring the same do not race for it."""
    batch, seen = _Batch(), set[Digest]()
    for plan in plans:
        for item in plan.objects:
            if item.link.digest in seen:
                continue
            seen.add(item.link.digest)
            batch.objects.append(item)
            batch.bytes += item.link.bytes
            if batch.full:
                yield batch
                batch, seen = _Batch(), set()
        batch.whole.append(
            replace(plan, objects=())  # they are done
        )
    if batch.whole or batch.objects:
        yield batch


class TransferLease:
    """A lease on the commits of a long transfer that are whole at the receiver.

    Its name follows from the origin and the actor: who takes the transfer up again takes it over.
    """

    def __init__(
        self,
        target: RepositoryCore,
        origin: str,
        actor: str,
        clock: Callable[[], float],
        pass_fence: Callable[[LogView, Sequence[Digest]], None],
        superseded: Callable[[LogView], tuple[LogEntry, ...]],
        say_ahead: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            target: the receiver.
            origin: id of the source.
            actor: who receives.
            clock: seconds from any start.
            pass_fence: makes sure that the log may name commits, as for a ref.
            superseded: what the log must say before, as trees of the commits name what others took
                the place of.
            say_ahead: says so much of it in records of its own that the rest fits one.
        """
        told = f"{origin} {target.id} {actor}"
        self.id = f"transfer-{hashlib.sha256(told.encode()).hexdigest()[:24]}"
        self._target, self._actor, self._clock = target, actor, clock
        self._pass_fence, self._superseded = pass_fence, superseded
        self._say_ahead = say_ahead
        self._began = clock()
        self._tips: dict[Digest, None] = {}

    def hold(self, commit: CommitObjects) -> None:
        """Keep one more commit, with all that it leads to; written down once a minute."""
        for parent in commit.parents:
            self._tips.pop(parent, None)
        self._tips[commit.digest] = None
        if self._clock() - self._began > _LEASE_SECONDS:
            self._began = self._clock()
            self._say_ahead()
            self._target.append(self._opening)

    def closing(self, view: LogView) -> tuple[LogEntry, ...]:
        """What ends the lease, where there is one."""
        if self.id not in view.state.leases:
            return ()
        return (self._entry("lease-close", {"id": self.id}),)

    def _opening(self, view: LogView) -> tuple[LogEntry, ...]:
        keep = tuple(sorted(list(self._tips)[-_LEASED_COMMITS:]))
        self._pass_fence(view, keep)
        data = {
            "id": self.id,
            "keep": keep,
            "expires": time.time_ns() + _LEASE_EXPIRES_NS,
        }
        return (*self.closing(view), *self._superseded(view), self._entry("lease-open", data))

    def _entry(self, kind: str, data: dict[str, object]) -> LogEntry:
        txn = secrets.token_hex(16)
        return LogEntry(txn, kind, self._actor, time.time_ns(), "transfer", data=data)
