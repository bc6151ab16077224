"""Integrity check of the log: its chain, its fold, and all that is derived from them.

Opening begins at the newest checkpoint, and history is read from segments, so a damaged record of
long ago is met by nobody else. Here every record is read from its slot, folded from the first, and
what lies beside the slots is compared with them: checkpoints, ref pages, segments, void markers,
the hint. No damage ends the check: behind a damaged record the fold goes on from the next
checkpoint that a record vouches for.

Source:
    docs/spec/log.md, sections "Chain", "Checkpoint", "Segment" and "Void slots".
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, RepositoryRewound, UnsupportedError
from tensorrepo.repo.hashing.digests import record_digest, state_digest
from tensorrepo.repo.ids import DIGEST_BYTES, Digest, digest_bytes
from tensorrepo.repo.log.checkpoints import decode_hint, load_base
from tensorrepo.repo.log.log_slots import (
    CHECKPOINT_PREFIX,
    HINT_KEY,
    MAX_GENERATION,
    LogSlot,
    checkpoint_key,
    marker_holds,
    marker_is_right,
    ref_page_key,
    segment_key,
    slot_key,
    void_key,
)
from tensorrepo.repo.log.reader import LogView, RepositoryLog, Tip
from tensorrepo.repo.log.records import STATE_INTERVAL, decode_record
from tensorrepo.repo.log.segments import read_segment
from tensorrepo.repo.log.state import State

WINDOW: Final = 256  # slots read at once: at most 16 MiB
MAX_GAP: Final = 4096  # missing records; what lies behind more of them is no part of the log
RECORD, CHECKPOINT, REF_PAGE, SEGMENT, MARKER, MARKER_TEXT, HINT = (
    "log record", "checkpoint", "ref page", "segment", "void marker", "text of a void marker",
    "hint",
)  # fmt: skip
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class LogFault:
    """What is wrong with one key of the log.

    Attributes:
        key: the key.
        kind: what it is, in words.
        generation: number of the record, or of the last one that it is made from; 0 for none.
        problem: what is wrong with it.
    """

    key: str
    kind: str
    generation: int
    problem: str


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Generations of what lies in the log, ascending, and digests of ref pages."""

    slots: array[int]
    checkpoints: array[int]
    segments: array[int]
    markers: array[int]
    pages: tuple[Digest, ...]

    @property
    def head(self) -> int:
        """The newest record: a number far above those before it is of no record."""
        slots = self.slots
        tops = (slots[at] for at in range(len(slots) - 1, -1, -1) if slots[at] - at <= MAX_GAP)
        return next(tops, 0)


def generation_of(key: str, prefix: str, suffix: str = "") -> int | None:
    """The generation in a key of the log; None where it is none of that form."""
    digits = key.removeprefix(prefix).removesuffix(suffix)
    well_formed = len(digits) == _DIGITS and digits.isascii() and digits.isdigit()
    well_formed = well_formed and int(digits) < MAX_GENERATION
    return int(digits) if well_formed and key == f"{prefix}{digits}{suffix}" else None


def is_log_key(key: str) -> bool:
    """Whether a key is one that a log has."""
    page = key.removeprefix("log/refs/")
    return (
        key == HINT_KEY
        or generation_of(key, "log/", ".json") is not None
        or generation_of(key, CHECKPOINT_PREFIX, ".json") is not None
        or generation_of(key, "log/void/", ".json") is not None
        or generation_of(key, "log/segment/") is not None
        or (
            page != key
            and len(page) == 2 * DIGEST_BYTES
            and not set(page) - set("0123456789abcdef")
        )
    )


def log_keys(log: RepositoryLog) -> LogKeys:
    """All keys of a log, by one listing."""
    slots, checkpoints, segments, markers = (array("Q") for _ in range(4))
    pages = []
    for stored in log.backend.list("log/"):
        key = stored.key
        if key.startswith("log/refs/"):
            pages += [Digest(key.removeprefix("log/refs/"))] if is_log_key(key) else []
        for found, prefix, suffix in (
            (slots, "log/", ".json"),
            (checkpoints, CHECKPOINT_PREFIX, ".json"),
            (segments, "log/segment/", ""),
            (markers, "log/void/", ".json"),
        ):
            gen = generation_of(key, prefix, suffix)
            if gen is not None:
                found.append(gen)
    return LogKeys(slots, checkpoints, segments, markers, tuple(pages))


class LogCheck:
    """One check of a log. After `faults` has ended, `state` is the newest that could be folded.

    Attributes:
        records: number of records that were read.
        state: fold of the records up to the newest before which nothing is damaged, or that a
            checkpoint behind the damage tells.
        is_whole: whether that is the newest record.
    """

    def __init__(self, log: RepositoryLog) -> None:
        self.records = 0
        self.state = State()
        self.is_whole = False
        self._log = log
        self._keys = log_keys(log)
        self._head = self._keys.head  # others may append meanwhile
        self._told: set[int] = set()  # damaged records
        self._digests = bytearray()  # of the slots, one after the other; zeros where there is none

    def faults(self) -> Iterator[LogFault]:
        """What is wrong, slots first."""
        for fault in self._records():
            self._told.add(fault.generation)
            yield fault
        yield from self._newest()
        yield from self._checkpoints()
        yield from self._pages()
        yield from self._segments()
        yield from self._markers()
        yield from self._hint()

    def _records(self) -> Iterator[LogFault]:
        """The chain and the fold. What an altered record broke shows in the record behind it."""
        log, head = self._log, self._head
        checkpoints = set(self._keys.checkpoints)
        tip: Tip | None = Tip(LogView(0, log.digest_of(0), State()))
        previous: Digest | None = log.digest_of(0)
        for start in range(1, head + 1, WINDOW):
            gens = range(start, min(start + WINDOW, head + 1))
            values = log.slots.read_many(map(slot_key, gens))
            for gen in gens:
                data = values[slot_key(gen)]
                self._digests += digest_bytes(record_digest(data)) if data else bytes(DIGEST_BYTES)
                slot: LogSlot | None = None
                if data is None:
                    where = f"{log.backend.url}: log record {gen}"
                    yield _record_fault(gen, f"{where} is missing although a later one exists")
                else:
                    self.records += 1
                    try:
                        slot = log.slots.parse(gen, previous, data)
                    except (CorruptError, UnsupportedError) as error:
                        yield _record_fault(gen, _with_identity(gen, error))
                # What follows a damaged record is not held against it: its digest is not known.
                previous = None if slot is None else slot.digest
                if tip is None and slot is not None and gen in checkpoints:
                    tip = self._tip_at(gen)
                if tip is not None and slot is not None:
                    try:
                        tip, _ = log.add(tip, slot)
                        self.state = tip.view.state
                        continue
                    except (CorruptError, UnsupportedError) as error:
                        yield _record_fault(gen, str(error))
                tip = None
        self.is_whole = tip is not None
        for gen in self._keys.slots[bisect_right(self._keys.slots, head) :]:
            yield _record_fault(gen, f"no log record lies before it: the newest is {head}")

    def _tip_at(self, gen: int) -> Tip | None:
        """Where the fold may begin again: a checkpoint that its record vouches for."""
        try:
            base = load_base(self._log.slots, gen, paging=self._log.form.paging)
        except Error:
            return None  # told with the checkpoints
        if base is None:
            return None
        return Tip(LogView(gen - 1, base.previous, base.state), gen, base.bytes)

    def _newest(self) -> Iterator[LogFault]:
        """Nothing chains to the newest record: that it is another one, who saw it remembers."""
        try:
            self._head = max(self._head, self._log.refresh().generation)
        except RepositoryRewound as error:
            self.is_whole = False
            if self._head not in self._told:
                yield _record_fault(self._head, str(error))
        except (CorruptError, UnsupportedError):
            self.is_whole = False  # told with the records

    def _checkpoints(self) -> Iterator[LogFault]:
        """Each is what its record says that the records before it add up to."""
        for gen in self._keys.checkpoints:
            problem = self._checkpoint_problem(gen)
            if problem:
                yield LogFault(checkpoint_key(gen), CHECKPOINT, gen, problem)

    def _checkpoint_problem(self, gen: int) -> str:
        if not 0 < gen <= self._head or gen % STATE_INTERVAL:
            return f"no checkpoint belongs before record {gen}"
        try:
            base = load_base(self._log.slots, gen, paging=self._log.form.paging)
        except (CorruptError, UnsupportedError) as error:
            return str(error)
        return "" if base is not None else f"record {gen} is missing, which vouches for it"

    def _pages(self) -> Iterator[LogFault]:
        for name in self._keys.pages:
            data = self._log.slots.read(ref_page_key(name))
            if data is not None and (found := state_digest(data)) != name:
                problem = f"expected digest {name:.12}, found {found:.12}"
                yield LogFault(ref_page_key(name), REF_PAGE, 0, problem)

    def _segments(self) -> Iterator[LogFault]:
        for last in self._keys.segments:
            if problem := self._segment_problem(last):
                yield LogFault(segment_key(last), SEGMENT, last, problem)

    def _segment_problem(self, last: int) -> str:
        log = self._log
        if not 0 < last <= self._head or last % min(log.form.segment_lengths):
            return f"no segment ends with record {last}"
        try:
            segment = read_segment(log.slots, last)
        except (CorruptError, UnsupportedError) as error:
            return str(error)
        if segment is None:
            return "it is larger than any segment"
        for gen, data in enumerate(segment.records, segment.first):
            at = (gen - 1) * DIGEST_BYTES
            slot = self._digests[at : at + DIGEST_BYTES]
            if any(slot) and digest_bytes(record_digest(data)) != slot:
                return f"its record {gen} is not what the slot holds"
        if any(not segment.first <= each.generation <= last for each in segment.commits):
            return "it has a commit of a record that it has not"
        return ""

    def _markers(self) -> Iterator[LogFault]:
        for gen in self._keys.markers:
            if problem := self._marker_problem(gen):
                yield LogFault(void_key(gen), MARKER, gen, problem)
            elif problem := self._text_problem(gen):
                yield LogFault(void_key(gen), MARKER_TEXT, gen, problem)

    def _marker_problem(self, gen: int) -> str:
        slots = self._log.slots
        marker, data = slots.read(void_key(gen)), slots.read(slot_key(gen))
        if marker is None:
            return ""
        if data is None:
            return f"there is no log record {gen} that it could stand in for"
        before = slots.read(slot_key(gen - 1)) if gen > 1 else None
        previous = record_digest(before) if before is not None else self._log.digest_of(0)
        if not marker_holds(marker, gen, previous, record_digest(data)):
            return f"it is no marker for what lies in slot {gen}, and has no effect"
        try:
            decode_record(data)
        except CorruptError:
            return ""
        return f"log record {gen} is a record: nothing can stand in for it"

    def _text_problem(self, gen: int) -> str:
        """What is wrong with a marker that holds: who set it, why and when."""
        marker = self._log.slots.read(void_key(gen))
        if marker is None or marker_is_right(marker) is not False:
            return ""
        return (
            "it holds, but who set it, why or when was altered, or its tag. `tensorrepo fsck "
            "--repair --from URL` puts it back from a mirror; if none has it, `tensorrepo doctor "
            f"--void {gen}` says it anew"
        )

    def _hint(self) -> Iterator[LogFault]:
        data = self._log.slots.read(HINT_KEY)
        hint = decode_hint(data)
        if data is not None and hint is None:
            yield LogFault(HINT_KEY, HINT, 0, "it is no hint; nothing is lost with it")
        elif hint is not None and hint.generation > self._head:
            problem = (
                f"it names log record {hint.generation}, and the newest is {self._head}: "
                "it is damaged, or the end of the log is gone"
            )
            yield LogFault(HINT_KEY, HINT, 0, problem)


def _record_fault(gen: int, problem: str) -> LogFault:
    return LogFault(slot_key(gen), RECORD, gen, problem)


def _with_identity(gen: int, error: Error) -> str:
    """The first record chains to `repo.json`: either may be what was altered."""
    chained = gen == 1 and "does not follow" in str(error)
    return f"{error} Or repo.json was altered, to which it chains." if chained else str(error)
