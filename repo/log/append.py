"""Append of transactions to the log, exactly once or not at all.

Creating a slot that must be absent is the one conditional write that every store offers. Whatever
the store answers but plain success, the slot itself is read: it holds this transaction, another
one, or nothing yet. A call that leaves before it knows says so (CommitOutcomeUnknown).

Source:
    docs/spec/log.md, section "Append".
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import msgspec

from tensorrepo.repo.backends.base import AppendsEntries, ComposesCommits, Guarantee, Landing
from tensorrepo.repo.backends.sql_log import SqlLogBackend, is_near
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    Error,
    NotFoundError,
    PermissionDenied,
    RepositoryRewound,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.hashing.digests import record_digest, state_digest
from tensorrepo.repo.log.checkpoints import HINT_INTERVAL, Hint, encode_hint, write_checkpoint
from tensorrepo.repo.log.log_slots import HINT_KEY, LogSlot, slot_key
from tensorrepo.repo.log.reader import LogView, RepositoryLog, Tip
from tensorrepo.repo.log.records import (
    STATE_INTERVAL,
    LogEntry,
    LogRecord,
    canonical_json,
    record_as_read,
)
from tensorrepo.repo.log.segments import SegmentCommit, segment_length, write_segment
from tensorrepo.repo.log.state import Verdict
from tensorrepo.repo.log.writer_queue import turn_of
from tensorrepo.repo.typed_decoding import from_json

FIRST_WAIT_SECONDS = 0.02
LONGEST_WAIT_SECONDS = 2.0
MAX_ATTEMPTS = 400  # of 30 writers in a loop the unluckiest lost 130 races, in a simulation
_CHANCE = random.SystemRandom()  # to seed another for each append takes longer than its note
HOPELESS_TRIES = 3  # after which an error that will not pass by itself is believed


@dataclass(frozen=True, slots=True)
class Appended:
    """A record that is in the log.

    Attributes:
        view: the repository right after it; behind a service perhaps a little later.
        record: what was appended; None when `decide` wanted nothing.
        verdicts: one for each entry.
        attempts: how often `decide` was called.
    """

    view: LogView
    record: LogRecord | None
    verdicts: tuple[Verdict, ...]
    attempts: int

    @property
    def generation(self) -> int:
        """Number of the record; where there is none, of the newest one seen."""
        return self.view.generation if self.record is None else self.record.gen


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to try, and what waiting is made of."""

    stop_at: float  # by `clock`
    attempts: int
    rng: random.Random
    sleep: Callable[[float], None]
    clock: Callable[[], float]

    def is_over(self, tries: int) -> bool:
        return tries >= self.attempts or self.clock() >= self.stop_at

    def back_off(self, lost: int, append_seconds: float) -> None:
        """Wait after losing a race for the `lost`-th time: 0 to 4 appends, to 8, then ever less.

        Who lost often waits less than others, or those who come later pass by again and again.
        """
        appends = 4 + 4 * (min(lost, 4) - 1) / 3 if lost <= 4 else max(1.0, 32 / lost)
        self.sleep(self.rng.uniform(0, appends * append_seconds))

    def wait_for_store(self, tries: int) -> None:
        """Wait before asking a store again that gave no answer."""
        longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0**tries)
        self.sleep(self.rng.uniform(longest / 2, longest))


def append(
    log: RepositoryLog,
    decide: Callable[[LogView], tuple[LogEntry, ...]],
    *,
    deadline_seconds: float = 120.0,
    attempts: int = MAX_ATTEMPTS,
    allow_void: bool = False,
    rng: random.Random | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    commits: Callable[[LogSlot], Iterable[SegmentCommit]] | None = None,
    merges: bool = False,
) -> Appended:
    """Append what `decide` returns for the newest view, at most once; see `writer_queue`, too.

    Args:
        log: where to.
        decide: called anew for every attempt, with the newest view, and once ahead of its turn if
            others write; merges, validates, runs the fence and returns the entries (all of them
            share one record), or raises. Nothing to do: an empty tuple. Every object that the
            entries name must be durable by then.
        deadline_seconds: after which no further attempt is made.
        attempts: how often to lose a race before giving up.
        allow_void: an entry that is void by the fold is appended all the same, and shows in
            `verdicts` (for a server that groups transactions); else it is a ConflictError and
            nothing is written.
        rng: chance for the back-off.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.
        commits: the commits that a record introduced, to write segments with; None: writes none.
        merges: whether a service that writes the log may merge a commit onto a branch that moved.

    Raises:
        ConflictError: nothing was written, and nothing will be: the race was lost too often, or
            an entry would be void.
        CommitOutcomeUnknown: the record may be in the log, or may yet land. Also raised from
            whatever else ends the call before the store has answered, KeyboardInterrupt too.
        PermissionDenied: the store can only be read.
        UnsupportedError: the repository needs a newer version to be written.
    """
    if log.backend.guarantee is Guarantee.READ_ONLY:
        raise PermissionDenied(f"{log.backend.url} can only be read")
    if log.read_only is not None:
        raise PermissionDenied(f"{log.backend.url}: {log.read_only}")
    patience = Patience(clock() + deadline_seconds, attempts, rng or _CHANCE, sleep, clock)
    if log.service is not None:
        return _append_at_service(log, log.service, decide, patience, merges=merges)
    queue = turn_of(
        log.backend,
        prepare=lambda: _prepare(log, decide),
        newest=lambda: log.refresh().generation,
        first=log.keys_of_news,
        sleep=sleep,
        clock=clock,
    )
    with _notes(log) as note_all, queue:
        for attempt in range(1, attempts + 1):
            began = clock()
            before = log.refresh_tip(remember=attempt > 1)  # of the first, what is appended tells
            if reason := before.view.state.read_only_reason:
                raise UnsupportedError(f"{log.backend.url}: {reason}")
            entries = decide(before.view)
            if not entries:
                return Appended(before.view, None, (), attempt)
            draft = _draft(log, before, entries, allow_void=allow_void)
            note_all(draft.txns, draft.slot.record.gen)
            after = _create(log, before, draft, patience)
            if after is not None:
                log.accept(after.tip)
                _publish(log, before, after.tip, commits)
                return Appended(after.tip.view, after.slot.record, after.verdicts, attempt)
            if patience.is_over(attempt):
                break
            patience.back_off(attempt, clock() - began)
    raise ConflictError(
        f"{log.backend.url}: lost the race for the next log record {attempt} times in "
        f"{deadline_seconds:.0f} s or less; nothing was written. Others commit faster: try again."
    )


def draft_record(log: RepositoryLog, before: Tip, entries: tuple[LogEntry, ...]) -> Draft:
    """The record of `entries` right behind `before`, for `land`; nothing is written yet.

    Raises:
        ConflictError: an entry would be void.
    """
    return _draft(log, before, entries, allow_void=False)


def land(
    log: RepositoryLog,
    before: Tip,
    draft: Draft,
    *,
    deadline_seconds: float = 120.0,
    commits: Callable[[LogSlot], Iterable[SegmentCommit]] | None = None,
) -> Appended | None:
    """Create the slot of a record that was drafted on `before`; see `append`.

    Every object that it names must be durable by now, and `before` itself. Nothing is decided
    anew: None says that another record is in the slot, so that this one never will be.

    Raises:
        CommitOutcomeUnknown: as `append`.
        Error: it was not written, and never will be.
    """
    clock = time.monotonic
    patience = Patience(clock() + deadline_seconds, MAX_ATTEMPTS, _CHANCE, time.sleep, clock)
    queue = turn_of(
        log.backend, prepare=_nothing, newest=lambda: log.refresh().generation,
        first=log.keys_of_news, sleep=patience.sleep, clock=clock,
    )  # fmt: skip
    with _notes(log) as note_all, queue:
        note_all(draft.txns, draft.slot.record.gen)
        after = _create(log, before, draft, patience)
        if after is None or after.slot.data != draft.slot.data:
            return None  # in the second case by an earlier call, as whoever decides anew will see
        log.slots.note_created(after.slot)  # its clients are told of it
        log.accept(after.tip)
        _publish(log, before, after.tip, commits)
    return Appended(after.tip.view, after.slot.record, after.verdicts, 1)


def _nothing() -> None:
    """All was prepared."""


def _append_at_service(
    log: RepositoryLog,
    service: AppendsEntries,
    decide: Callable[[LogView], tuple[LogEntry, ...]],
    patience: Patience,
    *,
    merges: bool,
) -> Appended:
    """As `append`, where a service writes the log: it judges at the head, and groups writers.

    Decided first on what was seen last: a commit on a branch that moved is merged there, and what
    cannot be is a conflict, after which the log is read.
    """
    with _notes(log) as note, service.gathering():
        view = log.latest or log.refresh()
        for attempt in range(1, patience.attempts + 1):
            if reason := view.state.read_only_reason:
                raise UnsupportedError(f"{log.backend.url}: {reason}")
            try:
                entries = decide(view)
            except Error as error:
                newer = _newer(log, view, error)
                if newer is None or patience.is_over(attempt):
                    raise
                view = newer
                continue
            if not entries:
                return Appended(view, None, (), attempt)
            txns = dict.fromkeys(entry.txn for entry in entries)
            note(txns, view.generation + 1)
            data = canonical_json(msgspec.to_builtins(entries))
            send = partial(service.append_entries, data, view.generation, merges=merges)
            try:
                landing, landed = _land(log, send, entries[0].txn, view, patience)
            except ConflictError:
                before, view = view, log.refresh()
                if patience.is_over(attempt) or view.generation == before.generation:
                    raise
                continue
            return _landed(log, landing, landed, view, attempt)
    raise AssertionError("the last attempt returns or raises")


def append_commit(
    log: RepositoryLog,
    composer: ComposesCommits,
    commit: bytes,
    beside: tuple[LogEntry, ...],
    txn: str,
    *,
    deadline_seconds: float = 120.0,
) -> Appended:
    """Have the service that writes the log compose a commit, at most once.

    Args:
        log: its log.
        composer: the service.
        commit: what is wanted, as `history.composing` encodes it.
        beside: what goes into the same record.
        txn: name of the transaction.
        deadline_seconds: after which a service that does not answer is not asked again.

    Returns:
        `record` is None where nothing would change; else the commit's is its first entry.

    Raises:
        CommitOutcomeUnknown: the service did not say.
        Error: it refused, and nothing was written.
    """
    view = log.latest or log.refresh()
    if log.read_only is not None:
        raise PermissionDenied(f"{log.backend.url}: {log.read_only}")
    if reason := view.state.read_only_reason:
        raise UnsupportedError(f"{log.backend.url}: {reason}")
    clock = time.monotonic
    stop_at = clock() + deadline_seconds
    patience = Patience(stop_at, MAX_ATTEMPTS, _CHANCE, time.sleep, clock)
    data = canonical_json(msgspec.to_builtins(beside))
    with _notes(log) as note:
        note((txn,), view.generation + 1)
        send = partial(composer.append_commit, commit, data, view.generation)
        landing, landed = _land(log, send, txn, view, patience)
        return _landed(log, landing, landed, view, 1)


def _landed(
    log: RepositoryLog,
    landing: Landing,
    entries: tuple[LogEntry, ...],
    before: LogView,
    attempts: int,
) -> Appended:
    """What a service appended; `before` is what it was decided on."""
    view = log.follow(landing.records, before.generation, landing.generation)
    if not entries:
        return Appended(view, None, (), attempts)
    record = LogRecord(landing.generation, view.digest, None, entries)
    verdicts = tuple(Verdict(entry.txn, entry.kind, applied=True) for entry in entries)
    return Appended(view, record, verdicts, attempts)


def _entries_of(landing: Landing) -> tuple[LogEntry, ...]:
    """What a service says that it wrote. Raises StorageError where that cannot be read."""
    try:
        return from_json(landing.entries, tuple[LogEntry, ...])
    except msgspec.DecodeError as error:
        raise StorageError(
            f"the service answers record {landing.generation} of the log with what are no "
            f"entries: {error}. Is it as new as this client?"
        ) from error


def _land(
    log: RepositoryLog,
    send: Callable[[], Landing],
    txn: str,
    view: LogView,
    patience: Patience,
) -> tuple[Landing, tuple[LogEntry, ...]]:
    """Call the service, by `send`, until it answers; gives the entries that it wrote, too.

    The transaction's name keeps it from landing twice.

    Raises:
        CommitOutcomeUnknown: leaving, for whatever reason, without knowing.
        Error: the service refused; nothing was written.
    """
    tries = 0
    while True:
        try:
            landing = send()
            return landing, _entries_of(landing)
        except StorageError as error:
            failure = error
        except Error:
            raise
        except BaseException as error:
            raise _unknown(log, txn, view.generation + 1, error) from error
        tries += 1
        if not failure.transient or patience.is_over(tries):
            raise _unknown(log, txn, view.generation + 1, failure) from failure
        patience.wait_for_store(tries)


def _unknown(
    log: RepositoryLog, txn: str, generation: int, error: BaseException
) -> CommitOutcomeUnknown:
    return CommitOutcomeUnknown(
        f"{log.backend.url}: whether transaction {txn} is in log record {generation} is "
        f"not known ({type(error).__name__}: {error}). It may be, or may yet come to be: do "
        "not repeat it, run `tensorrepo resolve`.",
        txn=txn,
        generation=generation,
    )


def _prepare(log: RepositoryLog, decide: Callable[[LogView], tuple[LogEntry, ...]]) -> None:
    """Decide once before it is our turn: what it stores is durable then, and found again.

    On what was seen last: somebody is about to write, so no view will be the newest.
    """
    view = log.latest or log.refresh()
    if view.state.read_only_reason:
        return
    try:
        decide(view)
    except Error as error:
        if _newer(log, view, error) is None:
            raise


def _newer(log: RepositoryLog, view: LogView, refused: Error) -> LogView | None:
    """A newer view than that which a decision was refused on, and is to be made again.

    What was seen last may be long ago: a branch that had a name then may be gone by now.
    None: there is none, or the store failed, and nothing that was stored can be relied upon.
    """
    if isinstance(refused, StorageError):
        return None
    newest = log.refresh()
    return newest if newest.generation > view.generation else None


@dataclass(frozen=True, slots=True)
class Draft:
    """A record as it will be read, and the log after it."""

    slot: LogSlot
    tip: Tip
    verdicts: tuple[Verdict, ...]

    @property
    def txns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.txn for entry in self.slot.record.entries))


def _draft(
    log: RepositoryLog, before: Tip, entries: tuple[LogEntry, ...], *, allow_void: bool
) -> Draft:
    """The record of `entries` after `before`, judged as every reader will judge it.

    The slot is created only right behind `before`, so this verdict is the final one: what would
    be void is not written at all.
    """
    view = before.view
    gen = view.generation + 1
    state = None if gen % STATE_INTERVAL else state_digest(log.encoded(view.state).data)
    record, data = record_as_read(LogRecord(gen, view.digest, state, entries))
    slot = LogSlot(record, record_digest(data), data)
    tip, verdicts = log.add(before, slot)
    void = [f"{verdict.kind}: {verdict.reason}" for verdict in verdicts if not verdict.applied]
    if void and not allow_void:
        raise ConflictError(f"{log.backend.url}: nothing was written. {'; '.join(void)}")
    return Draft(slot, tip, verdicts)


def _create(log: RepositoryLog, before: Tip, draft: Draft, patience: Patience) -> Draft | None:
    """Put the draft into its slot. None: somebody else's record is there, and stays.

    Raises:
        CommitOutcomeUnknown: leaving, for whatever reason, without knowing.
        Error: this machine's disk refuses, and certainly wrote nothing.
    """
    gen = draft.slot.record.gen
    try:
        found = _settle(log, gen, draft, patience)
    except _Refused as refused:
        raise refused.error from refused.error.__cause__
    except BaseException as error:
        raise _unknown(log, draft.txns[0], gen, error) from error
    if found == draft.slot.data:
        return draft
    slot = log.slots.parse(gen, before.view.digest, found)
    if not any(slot.record.has_txn(txn) for txn in draft.txns):
        return None
    # The same transaction from an earlier call: its record counts, not ours.
    tip, verdicts = log.add(before, slot)
    return Draft(slot, tip, verdicts)


def _settle(log: RepositoryLog, gen: int, draft: Draft, patience: Patience) -> bytes:
    """Try until slot `gen` holds something, and return that."""
    key, data = slot_key(gen), draft.slot.data
    absent = certain = True
    tries = 0
    while True:
        error = None
        try:
            # Only what was seen to be absent is sent again, and always the same bytes: whichever
            # of these writes lands, and however late, the slot holds this record once.
            if absent and log.backend.create(key, [data]):
                return data
        except Error as failure:
            error = failure
            # A call of this machine's own file system is over when it returns, and what a database
            # refused is over, too: nothing is in flight that could land later. Of any other store
            # that is not known, whatever it answers.
            certain &= failure.refused or log.backend.local_root is not None
        try:
            return log.backend.read(key)
        except NotFoundError:
            absent = True
        except Error as failure:
            absent, error = False, failure
        if absent and error and _is_lasting(error) and certain:
            raise _Refused(error)
        tries += 1
        if patience.is_over(tries) or (tries >= HOPELESS_TRIES and _is_lasting(error)):
            raise error or StorageError(f"{key} stays absent after {tries} creates")
        patience.wait_for_store(tries)


class _Refused(Exception):
    """The slot was not written, and never will be by this call."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


def _is_lasting(error: Error | None) -> bool:
    """Whether the store says that asking again is of no use: no permission, no space."""
    transient = isinstance(error, StorageError) and error.transient
    return error is not None and not transient


@contextmanager
def _notes(log: RepositoryLog) -> Iterator[Callable[[Iterable[str], int], None]]:
    """Notes in `pending/`, which stay behind only when the outcome is unknown."""
    noted: dict[str, int] = {}
    pending = log.pending

    def note(txns: Iterable[str], generation: int) -> None:
        if pending is None:
            return
        for txn in txns:
            noted[txn] = generation
            pending.write(txn, generation)

    try:
        yield note
    except CommitOutcomeUnknown:
        noted.clear()
        raise
    finally:
        for txn, generation in noted.items():
            _forget(log, txn, generation)


def _forget(log: RepositoryLog, txn: str, generation: int | None = None) -> None:
    try:
        if log.pending is not None:
            log.pending.remove(txn, generation)
    except Error as error:
        log.report(f"the outcome of {txn} is known, but its note stays: {error}")


def _publish(
    log: RepositoryLog,
    before: Tip,
    after: Tip,
    commits: Callable[[LogSlot], Iterable[SegmentCommit]] | None,
) -> None:
    """Write the caches that record `after` completes. The commit stands whether or not it works."""
    gen = after.view.generation
    try:
        if after.checkpoint == gen:
            write_checkpoint(log.slots, gen, log.encoded(before.view.state), before.checkpoint)
        # In a database one question finds what is newer than an old hint.
        interval = STATE_INTERVAL if isinstance(log.backend, SqlLogBackend) else HINT_INTERVAL
        if gen == 1 or gen % interval == 0:
            log.backend.overwrite(HINT_KEY, [encode_hint(Hint(gen, after.checkpoint))])
        length = segment_length(gen, log.form.segment_lengths)
        # Short segments spare requests. On a local disk they would only cost time.
        short = length < max(log.form.segment_lengths)
        if commits is not None and length and not (short and is_near(log.backend)):
            run = list(log.slots_between(gen - length + 1, gen + 1))
            write_segment(log.slots, run, commits, lengths=log.form.segment_lengths)
    except Error as error:
        log.report(f"record {gen} is written; a cache beside it is not: {error}")


AppendOutcome = Literal["landed", "lost", "unknown"]


def resolve(
    log: RepositoryLog,
    txn: str,
    generation: int,
    *,
    settle: bool,
    actor: str = "tensorrepo resolve",
) -> AppendOutcome:
    """What became of a transaction whose outcome was unknown.

    Args:
        log: log of the same repository.
        txn: as CommitOutcomeUnknown named it.
        generation: as CommitOutcomeUnknown named it.
        settle: where its slot is still empty, fill it with a noop, for a definite answer: else
            the answer is "unknown", because a write in flight may still land.
        actor: who is said to have written that noop.

    Returns:
        "landed": it is in the log and applied. "lost": it is not and never will be, or is void.

    Raises:
        RepositoryRewound: the log ends before the slot could have been tried.
    """
    if log.service is not None:
        outcome = _outcome_at_service(log, log.service, txn, generation, actor if settle else None)
    else:
        if settle and log.slots.read(slot_key(generation)) is None:
            _fill(log, generation, actor)
        outcome = _outcome(log, txn, generation)
    if outcome != "unknown":
        _forget(log, txn)
    return outcome


def _outcome(log: RepositoryLog, txn: str, generation: int) -> AppendOutcome:
    if log.slots.read(slot_key(generation)) is None:
        head = log.refresh().generation
        if head < generation - 1:
            raise RepositoryRewound(
                f"{log.backend.url}: transaction {txn} was tried in log record {generation}, but "
                f"the log ends with {head}. An older copy was put in its place."
            )
        return "unknown" if head < generation else _outcome(log, txn, generation)
    for record, verdicts in log.judged(generation, generation + 1):
        mine = [v for v in verdicts if v.txn == txn]
        return "landed" if record.has_txn(txn) and any(v.applied for v in mine) else "lost"
    return "lost"


def _outcome_at_service(
    log: RepositoryLog, service: AppendsEntries, txn: str, generation: int, settler: str | None
) -> AppendOutcome:
    """As `_outcome`, where a transaction may land in any record from `generation` on.

    A `settler` writes a noop under its name, which then is the transaction: what is still on its
    way comes too late.
    """
    if settler is not None:
        noop = LogEntry(txn, "noop", settler, time.time_ns())
        data = canonical_json(msgspec.to_builtins((noop,)))
        landed = _entries_of(service.append_entries(data, generation - 1, merges=False))
        return "lost" if all(entry.kind == "noop" for entry in landed) else "landed"
    for record, verdicts in log.judged(generation, log.refresh().generation + 1):
        if record.has_txn(txn):
            landed_here = any(v.applied and v.kind != "noop" for v in verdicts if v.txn == txn)
            return "landed" if landed_here else "lost"
    return "unknown"


def _fill(log: RepositoryLog, generation: int, actor: str) -> None:
    """Put a noop into slot `generation`, if that is the next one. Silent when it did not work."""
    noop = LogEntry(f"settle-{secrets.token_hex(12)}", "noop", actor, time.time_ns())

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        return (noop,) if view.generation + 1 == generation else ()

    try:
        append(log, decide)
    except CommitOutcomeUnknown:
        _forget(log, noop.txn)
