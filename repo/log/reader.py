"""The log of a repository, as readers see it: newest record and state.

The log is a sequence of create-only slots, each chained to the bytes of the one before. It is the
only truth about refs. Everything else beside it (hint, checkpoints, segments) makes reading it
faster and may be lost, late or wrong at any time.

    repo.json                      what record 1 chains to
    log/<gen:020d>.json            record number gen
    log/checkpoint/<gen:020d>.json the fold of the records before gen
    log/refs/<digest>              a page of the refs in checkpoints, when they are many
    log/segment/<gen:020d>         the records up to gen, verbatim
    log/void/<gen:020d>.json       says that slot gen is no record and counts as an empty one
    log/hint                       a lower bound of the newest generation

`append` writes to it.

Source:
    docs/spec/log.md, sections "Reading" and "Keys".
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tensorrepo.repo.backends.base import (
    AppendsEntries,
    Backend,
    ComposesCommits,
    LogTail,
    TellsState,
    TellsTail,
    ToldState,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, RepositoryRewound
from tensorrepo.repo.hashing.digests import record_digest, state_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.apply import Folding
from tensorrepo.repo.log.checkpoints import (
    MAX_PREFETCH,
    PROBE_SLOTS,
    CheckpointBase,
    Hint,
    decode_hint,
    hint_keys,
    load_base,
    newest_base,
)
from tensorrepo.repo.log.log_slots import (
    COPY_KEY,
    HINT_KEY,
    IDENTITY_KEY,
    LogSlot,
    LogSlots,
    slot_key,
)
from tensorrepo.repo.log.records import STATE_INTERVAL, LogRecord, Update, genesis_digest
from tensorrepo.repo.log.rewind_guard import Memory, Pending, Remembered
from tensorrepo.repo.log.segments import SEGMENT_LENGTHS, read_run
from tensorrepo.repo.log.state import (
    FORMAT,
    TOLD,
    EncodedState,
    Paging,
    State,
    Verdict,
    decode_state,
    encode_with_pages,
)

MAX_WINDOW: Final = 256  # slots read at once: at most 16 MiB

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogView:
    """The repository after record `generation`.

    `digest` names the bytes of that slot; for generation 0, of `repo.json`.
    """

    generation: int
    digest: Digest
    state: State


@dataclass(frozen=True, slots=True)
class Tip:
    """A view with what the next checkpoint depends on.

    Attributes:
        view: the repository at some generation.
        checkpoint: generation of the last checkpoint that was due, 0 before the first. Whether
            it was written is not known: that is best effort.
        checkpoint_bytes: its size.
        since_bytes: size of the records from `checkpoint` on.
    """

    view: LogView
    checkpoint: int = 0
    checkpoint_bytes: int = 0
    since_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """Numbers that the format fixes. Only tests use others, to do without thousands of records."""

    segment_lengths: tuple[int, ...] = SEGMENT_LENGTHS
    paging: Paging = FORMAT


class RepositoryLog:
    """The log of one repository. Thread-safe; pickled, it leaves behind what it has read."""

    def __init__(
        self,
        backend: Backend,
        identity: bytes,
        read_bulk: Callable[[Digest], tuple[Update, ...]],
        *,
        pending: Path | None = None,
        memory: Path | None = None,
        hint: bytes | None = None,
        form: Form = Form(),
        cache_bytes: int = 8 << 20,
        workers: int | None = None,
        report: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        """Nothing is read yet.

        `service` is the backend where that appends for its clients, else None.

        Args:
            backend: where it lies.
            identity: all bytes of `repo.json`.
            read_bulk: `decode_ref_updates` of the payload of that ref-updates object.
            pending: folder of the workspace where unresolved transactions are written down.
            memory: folder where this client remembers how far it read, to notice a rewind.
            hint: bytes of `log/hint`, when they were read together with `repo.json`
                (`read_opening`), which saves the first `refresh` a round trip.
            form: as the format says, but for tests.
            cache_bytes: how many bytes of records to keep.
            workers: reads in flight; None chooses by the backend (1 on a local disk).
            report: is told of caches that could not be used or written.
        """
        self.backend = backend
        self.identity = identity
        self.read_bulk = read_bulk
        self.read_only: str | None = None  # why nothing may be appended here
        self.pending = None if pending is None else Pending(pending)
        self.memory = None if memory is None else Memory(memory)
        self.form = form
        self.report = report
        self._hint = hint
        self._cache_bytes = cache_bytes
        self._workers = workers
        self._start()

    def _start(self) -> None:
        self.slots = LogSlots(self.backend, workers=self._workers, cache_bytes=self._cache_bytes)
        self._lock = threading.Lock()
        self._tip: Tip | None = None
        self._told_state: ToldState | None = None
        self._remembered = 0  # generation
        self._encoded: tuple[State, EncodedState] | None = None
        self._news: tuple[int, list[str]] | None = None  # keys to read behind a record
        self._folding = _Folding()
        # Whether a class has a protocol's methods is asked of each by name: too slow for each call.
        backend = self.backend
        self.service = backend if isinstance(backend, AppendsEntries) else None
        self.composer = backend if isinstance(backend, ComposesCommits) else None
        self._told_by = backend if isinstance(backend, TellsState) else None
        self._tail_of = backend if isinstance(backend, TellsTail) else None

    def __getstate__(self) -> dict[str, object]:
        left_behind = {
            "slots", "_lock", "_tip", "_told_state", "_remembered", "_encoded", "_news",
            "_folding", "service", "composer", "_told_by", "_tail_of",
        }  # fmt: skip
        return {name: value for name, value in vars(self).items() if name not in left_behind}

    def __setstate__(self, held: dict[str, object]) -> None:
        vars(self).update(held)
        self._start()

    @property
    def latest(self) -> LogView | None:
        """The newest view that this object has seen, without reading anything."""
        tip = self._unfinished() or self._tip
        return None if tip is None else tip.view

    def refresh(self) -> LogView:
        """The newest view. Cheap when nothing happened: probes forward from the last one.

        Raises:
            CorruptError: a slot is no record and not marked, or one is missing.
            RepositoryRewound: the past is shorter or different than it was.
        """
        return self.refresh_tip().view

    def refresh_tip(self, *, remember: bool = True) -> Tip:
        """As `refresh`, with what an append must know beside the view.

        Without `remember` the rewind guard is told later, of what comes next.
        """
        unfinished = self._unfinished()
        if unfinished is not None:
            return unfinished
        if self._told_by is not None:
            return self._told(self._told_by.read_state())
        known = self._tip
        return self.accept(
            self._open() if known is None else self._follow(known), remember=remember
        )

    def _told(self, told: ToldState) -> Tip:
        """The tip that the backend tells of: what may be seen may change without a record."""
        known = self._tip
        if known is not None and self._told_state == told:
            return known
        where = f"{self.backend.url}: state {told.generation}"
        state = decode_state(told.state, where, paging=TOLD)
        tip = Tip(LogView(told.generation, Digest(told.digest), state))
        with self._lock:
            self._tip, self._told_state = tip, told
        return tip

    def follow(self, records: Sequence[bytes], after: int, generation: int) -> LogView:
        """The newest view, at least as new as record `generation`.

        `records` are bytes of those behind record `after`, which need not be read then; where they
        do not reach from the newest that was seen to `generation`, the log is read.
        """
        known = self._tip
        if known is None:
            return self.refresh()
        view = known.view
        if view.generation >= generation:
            return view
        if not after <= view.generation < generation <= after + len(records):
            return self.refresh()
        unseen = records[view.generation - after :]
        slots = self.slots.chain(view.generation + 1, view.digest, unseen)
        return self.accept(self._add_all(known, slots)[0]).view

    def _unfinished(self) -> Tip | None:
        """How far this thread has folded when `read_bulk` asks for the newest view.

        An object store looks at the log to find an object; while the log is being folded it
        must make do with what the fold holds so far, or the two would call each other for ever.
        """
        return self._folding.tip

    def accept(self, tip: Tip, *, remember: bool = True) -> Tip:
        """Take `tip`, which is in the chain, for the newest that was seen, unless it is not."""
        with self._lock:
            if self._tip is None or self._tip.view.generation < tip.view.generation:
                self._tip = tip
            remember &= self._remembered < tip.view.generation
            if remember:
                self._remembered = tip.view.generation
        if remember and self.memory is not None:
            self._remember(self.memory, tip.view)
        return tip

    def keys_of_news(self) -> list[str]:
        """The keys that `refresh` reads first; none where nothing was read yet."""
        return [] if self._tip is None else self._next_keys(self._tip)

    def _next_keys(self, tip: Tip) -> list[str]:
        gen = tip.view.generation
        known = self._news
        if known is None or known[0] != gen:
            keys = [slot_key(each) for each in range(max(gen, 1), gen + 1 + self.slots.window)]
            known = self._news = gen, keys
        return known[1]

    def records(self, start: int, stop: int) -> Iterator[LogRecord]:
        """Records ``[start, stop)``, their chain verified, from segments where there are some.

        Raises:
            NotFoundError: the log has not that many.
        """
        for slot in self.slots_between(start, stop):
            yield slot.record

    def slots_between(self, start: int, stop: int) -> Iterator[LogSlot]:
        """Slots ``[start, stop)``, as `records`."""
        if start < 1:
            raise NotFoundError(f"{self.backend.url}: log records begin at 1, not {start}")
        previous = self.digest_of(start - 1)
        while start < stop:
            run = read_run(
                self.slots,
                start,
                stop,
                previous,
                lengths=self.form.segment_lengths,
                report=self.report,
            )
            if not run:
                raise NotFoundError(f"{self.backend.url} has no log record {start}")
            yield from run
            start += len(run)
            previous = run[-1].digest

    def view_at(self, gen: int) -> LogView:
        """The repository after record `gen`."""
        known = self._tip
        if known is not None and known.view.generation == gen:
            return known.view
        if gen == 0:
            return self._beginning().view
        base = newest_base(self.slots, self.report, at_most=gen, paging=self.form.paging)
        tip = self._beginning() if base is None else _tip_of(base)
        return self._add_all(tip, self.slots_between(tip.view.generation + 1, gen + 1))[0].view

    def judged(self, start: int, stop: int) -> Iterator[tuple[LogRecord, tuple[Verdict, ...]]]:
        """Records ``[start, stop)`` with what became of their entries."""
        tip = Tip(self.view_at(start - 1))
        for slot in self.slots_between(start, stop):
            tip, verdicts = self.add(tip, slot)
            yield slot.record, verdicts

    def add(self, tip: Tip, slot: LogSlot) -> tuple[Tip, tuple[Verdict, ...]]:
        """`tip` after the slot that follows it, and the verdicts on its entries."""
        return self._add_all(tip, [slot])

    def encoded(self, state: State) -> EncodedState:
        """The bytes of `state`. The last answer is kept: an append asks for it three times."""
        known = self._encoded
        if known is None or known[0] is not state:
            known = self._encoded = (state, encode_with_pages(state, self.form.paging))
        return known[1]

    def digest_of(self, gen: int) -> Digest:
        """What record ``gen + 1`` must name as its `previous`."""
        if gen == 0:
            return genesis_digest(self.identity)
        return record_digest(self.slots.slot_bytes(gen))

    def _beginning(self) -> Tip:
        return Tip(LogView(0, genesis_digest(self.identity), State()))

    def _open(self) -> Tip:
        """The newest tip, knowing nothing: two round trips when hint and checkpoint are right."""
        data, self._hint = self._hint, None
        hint = decode_hint(self.slots.read(HINT_KEY) if data is None else data)
        seen = None if self.memory is None else self.memory.load(self.identity)
        if self._tail_of is not None and (hint is None or hint.generation < MAX_WINDOW):
            told = self._told_records(seen)
            if told is not None:
                return told
        keys = [] if hint is None else hint_keys(hint)
        keys += [] if seen is None else [slot_key(seen.generation)]
        known = self.slots.read_many(keys) if keys else {}
        if seen is not None:
            self._check_past(seen, known[slot_key(seen.generation)])
        if hint is not None and known[slot_key(hint.generation)] is None:
            hint = None  # its slot is absent: garbage, or the store lost its end
        base = self._base_for(hint, known)
        tip = self._beginning() if base is None else _tip_of(base)
        ahead = 0 if hint is None else hint.generation - tip.view.generation
        window = min(max(ahead, 0) + PROBE_SLOTS, MAX_PREFETCH + PROBE_SLOTS)
        return self._advance(tip, known, window, jump=True)

    def _told_records(self, seen: Remembered | None) -> Tip | None:
        """The newest tip, by all records in one call; None: they are too many for one."""
        beginning = self._beginning()
        tail = self._tail_behind(beginning)
        if tail is None:
            return None
        if seen is not None:
            at = seen.generation - 1
            self._check_past(seen, tail.records[at] if at < len(tail.records) else None)
        # Who tells may be a second behind another writer: the slots say what is newest.
        return self._advance(self._with_tail(beginning, tail), {}, 1)

    def _tail_behind(self, tip: Tip) -> LogTail | None:
        """Records behind `tip` that the backend tells of; None: it does not, or not of this log."""
        tail = None if self._tail_of is None else self._tail_of.log_tail(tip.view.generation)
        return tail if tail is not None and tail.digest == tip.view.digest else None

    def _with_tail(self, tip: Tip, tail: LogTail) -> Tip:
        slots = self.slots.chain(tip.view.generation + 1, tip.view.digest, tail.records)
        return self._add_all(tip, slots)[0] if slots else tip

    def _base_for(
        self, hint: Hint | None, known: Mapping[str, bytes | None]
    ) -> CheckpointBase | None:
        """The checkpoint to begin with: the hint's, or the newest; None for the beginning."""
        if hint is not None and hint.checkpoint:
            try:
                base = load_base(self.slots, hint.checkpoint, known, self.form.paging)
            except Error as error:
                self.report(f"skipping a checkpoint: {error}")
            else:
                if base is not None:
                    return base
        elif hint is not None and hint.generation <= STATE_INTERVAL:
            return None
        return newest_base(self.slots, self.report, paging=self.form.paging)

    def _follow(self, tip: Tip) -> Tip:
        """The newest tip from an older one; also reads its slot again, to notice a rewind."""
        gen = tip.view.generation
        tail = self._tail_behind(tip)
        if tail is not None:
            return self._with_tail(tip, tail)
        keys = self._next_keys(tip)
        known = self.slots.read_row(keys)
        if gen:
            self._check_past(Remembered(gen, tip.view.digest), known[keys[0]])
        values = [known[key] for key in keys[1 if gen else 0 :]]
        if values[0] is None:
            return tip
        present = len(values) - values.count(None)
        news = [value for value in values[:present] if value]
        # More, a gap, or an empty record, which is none.
        if present == len(values) or len(news) < present:
            return self._advance(tip, known, self.slots.window)
        return self._add_all(tip, self.slots.chain(gen + 1, tip.view.digest, news))[0]

    def _advance(
        self, tip: Tip, known: Mapping[str, bytes | None], window: int, *, jump: bool = False
    ) -> Tip:
        """Probe forward in doubling windows, the first of `window` slots.

        `known` holds what was read already. With `jump`, a log that goes on and on is left for
        its newest checkpoint: only for a reader that has verified nothing yet.
        """
        while True:
            start = tip.view.generation + 1
            values = self.slots.run(start, start + window, known)
            tip, _ = self._add_all(tip, self.slots.chain(start, tip.view.digest, values))
            if len(values) < window:
                return tip
            if jump and window >= STATE_INTERVAL:
                jump = False
                base = newest_base(self.slots, self.report, paging=self.form.paging)
                if base is not None and base.start > tip.view.generation + 1:
                    tip = _tip_of(base)
            window = min(2 * window, MAX_WINDOW)
            known = {}

    def _add_all(self, tip: Tip, slots: Iterable[LogSlot]) -> tuple[Tip, tuple[Verdict, ...]]:
        """`tip` after `slots`, and the verdicts on the last of them."""
        folding = Folding(tip.view.state)
        digest, since_bytes = tip.view.digest, tip.since_bytes
        verdicts: tuple[Verdict, ...] = ()
        for slot in slots:
            if slot.record.state is not None:
                tip = self._check_state(tip, slot.record, since_bytes, folding)
                since_bytes = tip.since_bytes
            since_bytes += len(slot.data)
            bulk = partial(self._bulk, slot.record.gen, tip, folding, digest)
            verdicts = folding.add(slot.record, bulk)
            digest = slot.digest
        view = LogView(folding.generation, digest, folding.state())
        return Tip(view, tip.checkpoint, tip.checkpoint_bytes, since_bytes), verdicts

    def _check_state(self, tip: Tip, record: LogRecord, since_bytes: int, folding: Folding) -> Tip:
        """Check the fold against a record that states it; see whether a checkpoint is due.

        `since_bytes` is the size of the records between the last checkpoint and this one.
        """
        gen, stated = record.gen, record.state or ""
        tip = Tip(tip.view, tip.checkpoint, tip.checkpoint_bytes, since_bytes)
        if gen != tip.checkpoint:
            state = folding.state()
            encoded = self.encoded(state).data
            # A version that does not know all that happened cannot fold as the writer did.
            if state.read_only_reason is None and state_digest(encoded) != stated:
                raise CorruptError(
                    f"{self.backend.url}: log record {gen} states that the records before it add "
                    f"up to {stated:.12}, here they add up to {state_digest(encoded):.12}. One "
                    "of the two versions of tensorrepo is wrong: update it, run `tensorrepo fsck`."
                )
            # A checkpoint is due where the records since the last one are a quarter of its size.
            if gen % STATE_INTERVAL == 0 and tip.since_bytes * 4 > tip.checkpoint_bytes:
                tip = replace(tip, checkpoint=gen, checkpoint_bytes=len(encoded), since_bytes=0)
        return tip

    def _bulk(
        self, gen: int, tip: Tip, folding: Folding, last: Digest, digest: Digest
    ) -> tuple[Update, ...]:
        outer = self._unfinished()
        view = LogView(folding.generation, last, folding.state())
        self._folding.tip = replace(tip, view=view)
        try:
            return self.read_bulk(digest)
        except (NotFoundError, CorruptError) as error:
            raise CorruptError(
                f"{self.backend.url}: log record {gen} names ref updates {digest:.12}, which "
                f"cannot be read: {error} `tensorrepo fsck --repair` fetches it from a copy."
            ) from error
        finally:
            self._folding.tip = outer

    def _check_past(self, seen: Remembered, found: bytes | None) -> None:
        if found is not None and record_digest(found) == seen.digest:
            return
        # A network may have damaged that answer: the verdict needs two.
        found = self.slots.read(slot_key(seen.generation))
        if found is not None and record_digest(found) == seen.digest:
            return
        now = "is gone" if found is None else f"now has digest {record_digest(found):.12}"
        raise RepositoryRewound(
            f"{self.backend.url}: log record {seen.generation}, seen before with digest "
            f"{seen.digest:.12}, {now}. An older copy was put in its place, a copy of its folder "
            "went on elsewhere (which is the same repository: `tensorrepo clone` makes another), "
            "somebody changed the past, or it is damaged: `tensorrepo fsck` tells, and `tensorrepo "
            "fsck --repair --from URL` puts it back from a mirror. To accept it as it is, "
            f"{self._to_accept()}."
        )

    def _to_accept(self) -> str:
        return (
            "open it anew" if self.memory is None else f"delete {self.memory.path(self.identity)}"
        )

    def _remember(self, memory: Memory, view: LogView) -> None:
        try:
            memory.save(self.identity, Remembered(view.generation, view.digest))
        except Error as error:
            self.report(f"cannot remember how far {self.backend.url} was read: {error}")


class _Folding(threading.local):
    """How far a thread has folded; None where it does not."""

    tip: Tip | None = None


def read_opening(backend: Backend) -> tuple[bytes, bytes | None, bytes | None]:
    """`repo.json`, the hint and `copy.json` in one round trip: the first two are a log's.

    Raises:
        NotFoundError: there is no repository.
    """
    slots = LogSlots(backend, workers=None, cache_bytes=0)
    found = slots.read_many([IDENTITY_KEY, HINT_KEY, COPY_KEY])
    identity = found[IDENTITY_KEY]
    if identity is None:
        raise NotFoundError(f"there is no repository at {backend.url}. `tensorrepo init` makes one")
    return identity, found[HINT_KEY], found[COPY_KEY]


def _tip_of(base: CheckpointBase) -> Tip:
    return Tip(LogView(base.start - 1, base.previous, base.state), base.start, base.bytes)
