"""Repair of objects and log records from copies of a repository.

Objects are looked for by their names, here under other labels, then in any repository: whatever has
the digest is right. Records of the log are in segments, in a mirror, or in the origin of one; a
record is put back where it chains to the records on both sides of it. Damaged bytes go to
quarantine before others take their place. Nothing that verifies is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tensorrepo.repo.backends.base import Backend, overwrite_durably
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_marks import StoredRow
from tensorrepo.repo.changes.object_content import read_incarnation
from tensorrepo.repo.changes.quarantine import QuarantinedBytes, quarantine
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    NotFoundError,
    RepositoryRewound,
    StorageError,
)
from tensorrepo.repo.hashing.digests import record_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.log_check import (
    CHECKPOINT,
    MARKER,
    MARKER_TEXT,
    RECORD,
    REF_PAGE,
    SEGMENT,
    LogCheck,
    LogFault,
    log_keys,
)
from tensorrepo.repo.log.log_slots import (
    IDENTITY_KEY,
    checkpoint_key,
    marker_holds,
    marker_is_right,
    slot_key,
    void_key,
)
from tensorrepo.repo.log.records import LogRecord, decode_record, genesis_digest
from tensorrepo.repo.log.repair import (
    restore_checkpoint,
    restore_segment,
    rewrite_checkpoint,
    rewrite_hint,
)
from tensorrepo.repo.log.rewind_guard import Remembered
from tensorrepo.repo.log.segments import read_segment
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    ObjectLink,
    encode_object,
    stored_form,
)
from tensorrepo.repo.objects.incarnations import object_key, parse_object_key
from tensorrepo.repo.objects.mapping import map_file
from tensorrepo.repo.transfer.part_files import WHOLE_BYTES, ReadRange, fetch_part, in_steps
from tensorrepo.repo.transfer.receive import HistorySource

WINDOW = 256  # records that are compared at once


@dataclass(frozen=True, slots=True)
class RepairedObject:
    """An object that is whole again, and the copy that it came from."""

    digest: Digest
    kind: str
    url: str


@dataclass(frozen=True, slots=True)
class RepairedRecord:
    """A record of the log that is in its slot again, and what it came from."""

    generation: int
    url: str


@dataclass(frozen=True, slots=True)
class RebuiltCache:
    """A key beside the records that was made anew, or taken away: all that it says is in them."""

    key: str
    kind: str
    rebuilt: bool


@dataclass(frozen=True, slots=True)
class AcceptedLog:
    """A log in SQL, restored from an older backup, that may be written to again."""

    url: str


Repaired = RepairedObject | RepairedRecord | RebuiltCache | QuarantinedBytes | AcceptedLog


def repair_log(
    repository: RepositoryCore, copies: Iterable[RepositoryCore], parts: Path
) -> Iterator[Repaired]:
    """Put right what can be of the log, then of what is derived from it: hint and all.

    Args:
        repository: what is repaired.
        copies: repositories that are asked where records are damaged: only mirrors have those.
        parts: folder of unfinished objects.

    Raises:
        CorruptError, RepositoryRewound: records are damaged, and no copy has them.
    """
    check = LogCheck(repository.log)
    faults = list(check.faults())
    if any(fault.kind == RECORD for fault in faults):
        known = list(copies)
        bulks = bulks_of(repository, faults)
        if bulks:
            sources = [HistorySource.of(copy) for copy in known]
            yield from repair_objects(repository, bulks, sources, parts, state=check.state)
        yield from repair_records(repository, known)
        faults = list(LogCheck(repository.log).faults())
    elif any(fault.kind == MARKER_TEXT for fault in faults):
        for copy in (copy for copy in copies if copy.id == repository.id):
            yield from _markers(repository, copy)
    if not any(fault.kind == RECORD for fault in faults):
        yield from repair_caches(repository, faults)
    try:
        rewrite_hint(repository.log)
        rewrite_checkpoint(repository.log)
    except (CorruptError, RepositoryRewound) as error:
        raise type(error)(
            f"{error} No copy that was asked is a mirror of this repository which has it."
        ) from error


def repair_damage(
    repository: RepositoryCore, copies: Sequence[HistorySource], parts: Path, *, deep: bool
) -> Iterator[RepairedObject | QuarantinedBytes]:
    """Check the objects, and fetch what is damaged, again and again: damage hides damage.

    Args:
        repository: what is repaired; its log can be read.
        copies: where to look, in this order.
        parts: folder of unfinished objects.
        deep: whether every byte is read, or sizes are compared.
    """
    tried: set[tuple[str, bool]] = set()
    while True:
        state = repository.log.refresh().state
        collects = repository.copy is None or repository.copy.kind != "mirror"
        faults = check_objects(
            repository.objects, state, ObjectTotals(), deep=deep, collects=collects
        )
        found = dict.fromkeys((fault.digest, fault.needed) for fault in faults)
        new = [each for each in found if each not in tried]
        tried |= set(new)
        tables = {grave.graves for grave in state.graves}  # first: they tell where others belong
        digests = sorted(dict.fromkeys(digest for digest, _ in new), key=lambda d: d not in tables)
        # What an unreadable object may lead to is not known to be of no use.
        unneeded = frozenset(digests) - {digest for digest, needed in found if needed}
        repaired = False
        for each in repair_objects(repository, digests, copies, parts, unneeded=unneeded):
            repaired = True
            yield each
        if not repaired:
            return


# ------------------------------------------------------------------------------------ objects


def repair_objects(
    repository: RepositoryCore,
    digests: Iterable[Digest],
    copies: Sequence[HistorySource],
    parts: Path,
    *,
    state: State | None = None,
    unneeded: frozenset[Digest] = frozenset(),
) -> Iterator[RepairedObject | QuarantinedBytes]:
    """Have objects whole again from whichever copy has them; those that none has are left out.

    Args:
        repository: what is repaired.
        digests: damaged or missing objects.
        copies: where to look, in this order, when no other incarnation here is whole.
        parts: folder of unfinished objects.
        state: what says under which label each is stored; None: the newest.
        unneeded: those of them that nothing leads to: without a copy they are put away, so that
            nobody adopts them.
    """
    at = state or repository.log.refresh().state
    for digest in digests:
        yield from _Repair(repository, digest, at, parts).run(copies, digest in unneeded)


class _Repair:
    """One object: its incarnations here, and what takes the place of those that are damaged."""

    def __init__(
        self, repository: RepositoryCore, digest: Digest, state: State, parts: Path
    ) -> None:
        self._store = repository.objects
        self._backend = repository.objects.backend
        self._digest = digest
        self._parts = parts
        self._whole: list[StoredRow] = []
        self._damaged: list[StoredRow] = []
        self._link: ObjectLink | None = None
        for row in self._incarnations():
            try:
                self._link = read_incarnation(self._store, row, deep=True).link(digest)
                self._whole.append(row)
            except NotFoundError:
                continue
            except (CorruptError, StorageError) as error:
                if isinstance(error, StorageError) and error.transient:
                    raise
                self._damaged.append(row)
        # Where tables of graves are damaged, what lies here tells under which label it belongs.
        label = self._store.known_label(digest, state.graves)
        known = [row.label for row in (*self._whole, *self._damaged)]
        self._key = object_key(digest, label or max(known, default=0))

    def _incarnations(self) -> Iterator[StoredRow]:
        for stored in list(self._backend.list(f"objects/{self._digest[:2]}/")):
            parsed = parse_object_key(stored.key)
            if parsed is not None and parsed[0] == self._digest:
                yield StoredRow(self._digest, stored.bytes, parsed[1], 0)

    def run(
        self, copies: Sequence[HistorySource], unneeded: bool
    ) -> Iterator[RepairedObject | QuarantinedBytes]:
        if not self._damaged and any(row.key == self._key for row in self._whole):
            return
        if unneeded:
            yield from self._put_away(row.key for row in self._damaged)
            return
        if self._whole:
            yield from self._from_here(self._whole[0])
            return
        for copy in copies:
            try:
                link = copy.objects.describe(self._digest)
                yield from self._fetched(copy, link)
            except Error:  # it is not there, or damaged there as well: the next one
                continue
            yield RepairedObject(self._digest, link.kind.label, copy.url)
            return

    def _from_here(self, row: StoredRow) -> Iterator[RepairedObject | QuarantinedBytes]:
        """From another incarnation, under the label that whoever looks for it now asks for."""
        assert self._link is not None, "one incarnation was read"
        link, read = self._link, partial(_range_of, self._backend, row.key)
        if all(each.key != self._key for each in self._whole):
            if row.bytes <= WHOLE_BYTES or link.kind.compressible:
                yield from self._replace((self._backend.read(row.key),))
            else:
                yield from self._replace_by_part(link, read)
        yield from self._put_away(each.key for each in self._damaged if each.key != self._key)
        yield RepairedObject(self._digest, link.kind.label, self._backend.url)

    def _fetched(
        self, copy: HistorySource, link: ObjectLink
    ) -> Iterator[RepairedObject | QuarantinedBytes]:
        if link.kind.compressible or link.bytes <= WHOLE_BYTES:
            envelope = copy.objects.fetch(self._digest)
            encoded = encode_object(envelope.kind, envelope.payload, envelope.links)
            yield from self._replace(stored_form(encoded))
        else:
            yield from self._replace_by_part(link, copy.objects.read_envelope)
        yield from self._put_away(each.key for each in self._damaged if each.key != self._key)

    def _replace_by_part(self, link: ObjectLink, read: ReadRange) -> Iterator[QuarantinedBytes]:
        name = fetch_part(self._parts, link, partial(in_steps, read), lambda _: None)
        try:
            whole = map_file(self._parts / name)
            if whole is None:
                raise StorageError(f"no room in memory to map {self._parts / name}")
            yield from self._replace(EncodedObject(link, (whole,)).parts)
        finally:
            (self._parts / name).unlink(missing_ok=True)

    def _replace(self, parts: Sequence[Buffer]) -> Iterator[QuarantinedBytes]:
        if self._backend.size(self._key) is None:
            self._backend.create(self._key, parts)
            return
        yield from _kept(self._backend, self._key)
        overwrite_durably(self._backend, self._key, parts)

    def _put_away(self, keys: Iterable[str]) -> Iterator[QuarantinedBytes]:
        for key in keys:
            yield from _kept(self._backend, key)
            self._backend.delete(key)


def _range_of(backend: Backend, key: str, _: Digest, start: int, stop: int) -> Buffer:
    return backend.read_range(key, start, stop)


def _kept(backend: Backend, key: str) -> Iterator[QuarantinedBytes]:
    found = quarantine(backend, key)
    if found is not None:
        yield found


# ------------------------------------------------------------------------------------ the log


def repair_identity(backend: Backend, copies: Iterable[RepositoryCore]) -> str | None:
    """Put `repo.json` back from a mirror whose own is what record 1 here chains to; its URL."""
    try:
        first = _record(backend.read(slot_key(1)))
    except NotFoundError:
        return None
    for copy in copies:
        if first is not None and genesis_digest(copy.log.identity) == first.previous:
            quarantine(backend, IDENTITY_KEY)
            overwrite_durably(backend, IDENTITY_KEY, (copy.log.identity,))
            return copy.url
    return None


def repair_records(
    repository: RepositoryCore, copies: Iterable[RepositoryCore]
) -> Iterator[RepairedRecord | QuarantinedBytes]:
    """Put records back that are missing or damaged: from segments here, mirrors, or the origin."""
    log, seen = repository.log, None
    if log.memory is not None:
        seen = log.memory.load(log.identity)
    yield from _put_back_all(repository, _from_segments(repository), repository.url, seen)
    for copy in copies:
        if copy.id == repository.id:
            yield from _put_back_all(repository, _from_copy(copy), copy.url, seen)
            yield from _markers(repository, copy)


def _from_segments(repository: RepositoryCore) -> Iterator[tuple[int, bytes]]:
    """Records in segments, the newest first: believed only where the chain asks for them."""
    log = repository.log
    for last in reversed(log_keys(log).segments):
        try:
            segment = read_segment(log.slots, last, commits=False)
        except Error:
            continue
        if segment is not None:
            yield from reversed(list(enumerate(segment.records, segment.first)))


def _from_copy(copy: RepositoryCore) -> Iterator[tuple[int, bytes]]:
    """Slots of a copy, its chain verified, the newest first; those that are void, too."""
    stop = copy.log.refresh().generation + 1
    while stop > 1:
        start = max(1, stop - WINDOW)
        slots = list(copy.log.slots_between(start, stop))
        yield from ((slot.record.gen, slot.data) for slot in reversed(slots))
        stop = start


def _put_back_all(
    repository: RepositoryCore,
    records: Iterable[tuple[int, bytes]],
    url: str,
    seen: Remembered | None,
) -> Iterator[RepairedRecord | QuarantinedBytes]:
    backend = repository.log.backend
    for generation, right in records:
        key = slot_key(generation)
        found = _read(backend, key)
        if found == right or not _belongs(backend, generation, right, found, seen):
            continue
        yield from _kept(backend, key)
        overwrite_durably(backend, key, (right,))
        repository.log.slots.forget(generation)
        yield RepairedRecord(generation, url)


def _belongs(
    backend: Backend, generation: int, right: bytes, found: bytes | None, seen: Remembered | None
) -> bool:
    """Whether the record behind it, right or put right by now, or who saw it before asks for it.

    A marker asks for what a void slot holds, and for the record before it.

    Behind the newest there is none: it is written only over what is no record at all. Where nothing
    lies, the copy is ahead, or this log was cut short: that is no damage that a copy may decide.
    """
    record, digest = _record(right), record_digest(right)
    if record is None:
        before = _read(backend, slot_key(generation - 1)) if generation > 1 else None
        return before is not None and _is_void(backend, generation, record_digest(before), right)
    if record.gen != generation:
        return False
    if seen is not None and seen.generation == generation:
        return seen.digest == digest
    after = _read(backend, slot_key(generation + 1))
    if after is not None:
        behind = _record(after)
        if behind is None:
            return _is_void(backend, generation + 1, digest, after)
        return behind.previous == digest
    if found is None or _record(found) is not None:
        return False
    before = _read(backend, slot_key(generation - 1)) if generation > 1 else None
    return before is None or _record(before) is None or record.previous == record_digest(before)


def _is_void(backend: Backend, generation: int, previous: Digest, data: bytes) -> bool:
    """Whether a marker here says that a slot of these bytes, behind those, is void."""
    marker = _read(backend, void_key(generation))
    found = record_digest(data)
    return marker is not None and marker_holds(marker, generation, previous, found)


def _markers(repository: RepositoryCore, copy: RepositoryCore) -> Iterator[QuarantinedBytes]:
    """Void markers of a copy that hold for what lies here, where there is none that does, or
    whose text is proved.
    """
    backend = repository.log.backend
    for gen in log_keys(copy.log).markers:
        data, slot = _read(copy.log.backend, void_key(gen)), _read(backend, slot_key(gen))
        before = _read(backend, slot_key(gen - 1)) if gen > 1 else None
        if data is None or slot is None or _record(slot) is not None:
            continue
        previous = record_digest(before) if before is not None else repository.log.digest_of(0)
        here, found = _read(backend, void_key(gen)), record_digest(slot)
        if here == data or not marker_holds(data, gen, previous, found):
            continue
        is_better = marker_is_right(data) is not False
        if (
            here is not None
            and marker_holds(here, gen, previous, found)
            and (marker_is_right(here) or not is_better)
        ):
            continue
        yield from _kept(backend, void_key(gen))
        overwrite_durably(backend, void_key(gen), (data,))


def repair_caches(
    repository: RepositoryCore, faults: Iterable[LogFault]
) -> Iterator[RebuiltCache | QuarantinedBytes]:
    """Make anew what is derived from the records: checkpoints, ref pages, segments.

    What no record vouches for, and markers without effect, are put away. Records are in order.
    """
    log, backend = repository.log, repository.log.backend
    faulty = {fault.key: fault for fault in faults if fault.kind != RECORD}
    pages = [fault for fault in faulty.values() if fault.kind == REF_PAGE]
    for fault in faulty.values():
        if fault.kind in (CHECKPOINT, REF_PAGE, SEGMENT, MARKER):
            yield from _kept(backend, fault.key)
            backend.delete(fault.key)
    for gen in log_keys(log).checkpoints if pages else ():  # those that name a page
        with_pages = LogFault(checkpoint_key(gen), CHECKPOINT, gen, "")
        faulty.setdefault(with_pages.key, with_pages)
    restored: set[str] = set()
    for fault in faulty.values():
        if fault.kind == CHECKPOINT and _states(repository, fault.generation):
            restored.update(restore_checkpoint(log, fault.generation))
        elif fault.kind == SEGMENT and restore_segment(
            log, fault.generation, repository.introduced
        ):
            restored.add(fault.key)
    for key, fault in faulty.items():
        if fault.problem and fault.kind in (CHECKPOINT, REF_PAGE, SEGMENT, MARKER):
            yield RebuiltCache(key, fault.kind, key in restored)


def _states(repository: RepositoryCore, gen: int) -> bool:
    """Whether record `gen` names a state, which a checkpoint may hold."""
    if not 0 < gen <= repository.log.refresh().generation:
        return False
    record = _record(repository.log.slots.slot_bytes(gen))
    return record is not None and record.state is not None


def bulks_of(repository: RepositoryCore, faults: Iterable[LogFault]) -> list[Digest]:
    """Ref-updates objects that damaged stretches of the log name: without them it does not fold."""
    found: list[Digest] = []
    for fault in faults:
        data = _read(repository.log.backend, fault.key) if fault.kind == RECORD else None
        record = None if data is None else _record(data)
        if record is not None:
            found += [entry.bulk for entry in record.entries if entry.bulk is not None]
    return found


def _record(data: bytes) -> LogRecord | None:
    """What is in a slot; None where that is no record."""
    try:
        return decode_record(data)
    except Error:
        return None


def _read(backend: Backend, key: str) -> bytes | None:
    try:
        return backend.read(key)
    except NotFoundError:
        return None
