"""Log slots: create-only records, their hash chain and void markers.

Thin reading below `log`: many keys in one round trip, the chain from slot to slot, and the
markers that stand in for slots that hold no record.

Source:
    docs/spec/log.md, sections "Keys", "Chain" and "Void slots".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from typing import Final, TypeVar

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.sql_log import LOG_PREFIX, SqlLogBackend
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, StorageError
from tensorrepo.repo.hashing.digests import content_tag, record_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogRecord, canonical_json, decode_record, parse_canonical
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.threads import ordered_map

T = TypeVar("T")
R = TypeVar("R")

IDENTITY_KEY: Final = "repo.json"
COPY_KEY: Final = "copy.json"  # says that a repository is a mirror, or a lazy clone
HINT_KEY: Final = "log/hint"
CHECKPOINT_PREFIX: Final = "log/checkpoint/"
MAX_WORKERS: Final = 32
MAX_GENERATION: Final = 10**18
_TAG: Final = re.compile("[0-9a-f]{32}")
_TAGS_CHARACTERS: Final = 70  # two of them with their line feeds, one of which may be damaged


def slot_key(gen: int) -> str:
    return f"log/{gen:020d}.json"


def checkpoint_key(gen: int) -> str:
    return f"{CHECKPOINT_PREFIX}{gen:020d}.json"


def ref_page_key(digest: Digest) -> str:
    return f"log/refs/{digest}"


def segment_key(gen: int) -> str:
    return f"log/segment/{gen:020d}"


def void_key(gen: int) -> str:
    return f"log/void/{gen:020d}.json"


@dataclass(frozen=True, slots=True)
class LogSlot:
    """One slot, its place in the chain checked.

    `record` has no entries where `void`: the bytes are no record and a marker says so.
    """

    record: LogRecord
    digest: Digest
    data: bytes
    void: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """Says that slot `gen` is to count as an empty record.

    It holds only for the bytes of digest `found` in a slot whose predecessor is `previous`, and
    only where they are no record: it can never take back what a reader accepted.
    """

    gen: int
    previous: Digest
    found: Digest
    actor: str
    time_ns: int
    note: str


def encode_marker(marker: Marker) -> bytes:
    raw = asdict(marker)
    raw["time"] = raw.pop("time_ns")
    # Of markers an older version takes no other members. The tag comes twice: where a byte of one
    # is damaged, the other tells that there was one.
    tag = _marker_tag(raw)
    return canonical_json(raw | {"note": f"{marker.note}\n{tag}\n{tag}"})


def _marker_tag(raw: Mapping[str, object]) -> str:
    return content_tag(canonical_json(raw)).hex()


def marker_is_right(data: bytes) -> bool | None:
    """Whether a marker has the tag that its members make; None: it is one from before tags.

    What it says of its slot is proved by that: who set it, why and when by the tag alone.
    """
    raw = parse_canonical(data, "marker")
    note = raw["note"]
    if not isinstance(note, str) or not _TAG.search(note[-_TAGS_CHARACTERS:]):
        return None
    text, *tags = note.rsplit("\n", 2)
    return tags == [_marker_tag(raw | {"note": text})] * 2


def marker_holds(data: bytes, gen: int, previous: Digest, found: Digest) -> bool:
    """Whether `data` is a marker for exactly these bytes in this slot."""
    try:
        raw = parse_canonical(data, "marker")
    except CorruptError:
        return False
    fields = {"gen", "previous", "found", "actor", "time", "note"}
    expected = {"gen": gen, "previous": previous, "found": found}
    return isinstance(raw, dict) and raw.keys() == fields and expected.items() <= raw.items()


SQL_WINDOW: Final = 12


class LogSlots:
    """Reads keys of one log; keeps the bytes of slots, which never change, up to a limit.

    Attributes:
        rounds: batches of reads so far: what a far-away store makes us wait for.
        window: slots to look at beyond the newest known: several where one question gets them all.
    """

    def __init__(self, backend: Backend, *, workers: int | None, cache_bytes: int) -> None:
        near = backend.local_root is not None or backend.url.startswith("memory://")
        self.backend = backend
        self.workers = workers or (1 if near else MAX_WORKERS)
        self.rounds = 0
        self.window = SQL_WINDOW if isinstance(backend, SqlLogBackend) else 1
        self._cache = LimitedCache[bytes](cache_bytes)

    def read(self, key: str) -> bytes | None:
        """All bytes of `key`, None when absent."""
        return self.read_many([key])[key]

    def read_many(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Values of `keys`, None for the absent, read side by side."""
        wanted = list(dict.fromkeys(keys))
        self.rounds += 1
        if isinstance(self.backend, SqlLogBackend):
            elsewhere = [key for key in wanted if not key.startswith(LOG_PREFIX)]
            if not elsewhere:
                return self.backend.read_many(wanted)
        return dict(zip(wanted, self.side_by_side(self._read_one, wanted), strict=True))

    def read_row(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """As `read_many`, of slots in a row."""
        if not isinstance(self.backend, SqlLogBackend):
            return self.read_many(keys)
        self.rounds += 1
        return self.backend.read_slots(keys)

    def side_by_side(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` of each item, in order; several at once where answers come from far away."""
        workers = min(self.workers, len(items))
        # Threads for each call: nothing to close, to fork or to pickle, and starting them costs
        # less than one round trip to where more than one of them is of use.
        threads = workers if workers > 1 else 0
        return list(ordered_map(items, work, threads=threads, name="log"))

    def run(
        self, start: int, stop: int, known: Mapping[str, bytes | None] | None = None
    ) -> list[bytes]:
        """Bytes of slots ``[start, stop)`` up to the first that is absent.

        `known` holds what was read already.

        Raises:
            CorruptError: a slot is absent although a later one exists.
        """
        found: list[bytes] = []
        known = known or {}
        while (first := start + len(found)) < stop:
            values = self._values(first, stop, known)
            present = list(takewhile(lambda value: value is not None, values))
            found += [value for value in present if value is not None]
            if not any(value is not None for value in values[len(present) :]):
                break
            # A later slot was seen, so by now the absent one was created, or never will be.
            missing = first + len(present)
            if self.read(slot_key(missing)) is None:
                raise CorruptError(
                    f"{self.backend.url}: log record {missing} is missing although a later one "
                    "exists. Nothing but a mirror can replace it: `tensorrepo fsck --repair --from "
                    "URL` puts it back."
                )
            known = {}
        return found

    def parse(
        self, gen: int, previous: Digest | None, data: bytes, *, is_copy: bool = False
    ) -> LogSlot:
        """The slot whose bytes are `data`.

        Args:
            gen: its number.
            previous: digest of the bytes before it; None when the caller cannot know.
            data: what the store gave; a slot that is damaged is read once more, past all caches.
            is_copy: the data comes from elsewhere than the slot: that is not read.

        Raises:
            CorruptError: no record of this place in the chain, and no marker stands in.
        """
        try:
            return self._slot(gen, previous, data)
        except CorruptError:
            pass  # the second look says what is wrong
        if not is_copy:
            data = self._read_again(gen, previous, data)
        try:
            return self._slot(gen, previous, data)
        except CorruptError as error:
            digest = record_digest(data)
            if previous is None or not self._is_marked(gen, previous, digest):
                raise CorruptError(
                    f"{error}. `tensorrepo fsck --repair --from URL` puts it back from a mirror. "
                    f"If none has it, `tensorrepo doctor --void {gen}` counts the slot as empty."
                ) from error
        return LogSlot(LogRecord(gen, previous, None, ()), digest, data, void=True)

    def _slot(self, gen: int, previous: Digest | None, data: bytes) -> LogSlot:
        return LogSlot(self._checked(gen, previous, data), record_digest(data), data)

    def _read_again(self, gen: int, previous: Digest | None, data: bytes) -> bytes:
        """The slot as a second read gives it: a network may have damaged the first answer.

        Raises:
            StorageError: the second read gives the same, and of the slot before it something else
                than the caller has, which is what this one follows.
        """
        self._cache.drop(gen - 1)
        self._cache.drop(gen)
        again = self.read(slot_key(gen))
        if again is None or again != data or previous is None or gen < 2:
            return data if again is None else again
        before = self.read(slot_key(gen - 1))
        if before is None or record_digest(before) == previous:
            return data
        with suppress(CorruptError):
            self._checked(gen, record_digest(before), data)
            raise StorageError(
                f"{self.backend.url}: log record {gen - 1} came damaged from the store, and whole "
                "when it was read again. Nothing is wrong with what is stored: try again.",
                transient=True,
            )
        return data

    def chain(
        self, start: int, previous: Digest, values: Iterable[bytes], *, is_copy: bool = False
    ) -> list[LogSlot]:
        """Parse slots that follow each other from `start`; see `parse`."""
        slots: list[LogSlot] = []
        for gen, data in enumerate(values, start):
            slots.append(self.parse(gen, previous, data, is_copy=is_copy))
            previous = slots[-1].digest
        return slots

    def slot_bytes(self, gen: int) -> bytes:
        """Bytes of a slot that must exist, from memory when they are there."""
        data = self._cache.get(gen) or self.read(slot_key(gen))
        if data is None:
            raise NotFoundError(f"{self.backend.url} has no log record {gen}")
        self._keep(gen, data)
        return data

    def note_created(self, slot: LogSlot) -> None:
        """Keep the bytes of a slot that was just created with them."""
        self._keep(slot.record.gen, slot.data)

    def forget(self, gen: int) -> None:
        """Read a slot anew next time: it was repaired."""
        self._cache.drop(gen)

    def _values(
        self, start: int, stop: int, known: Mapping[str, bytes | None]
    ) -> list[bytes | None]:
        if self.workers == 1 and not known:
            return self._values_in_turn(start, stop)
        wanted = {slot_key(gen): gen for gen in range(start, stop)}
        have = {key: known[key] for key in wanted if key in known}
        for key, gen in wanted.items():
            if key not in have and (data := self._cache.get(gen)):
                have[key] = data
        missing = [key for key in wanted if key not in have]
        read = self.read_many(missing) if missing else {}
        for key, data in read.items():
            self._keep(wanted[key], data)
        return [have[key] if key in have else read[key] for key in wanted]

    def _values_in_turn(self, start: int, stop: int) -> list[bytes | None]:
        """As `_values` where a read costs little: ends with the first absent slot."""
        self.rounds += 1
        values: list[bytes | None] = []
        for gen in range(start, stop):
            values.append(self._cache.get(gen) or self._read_one(slot_key(gen)))
            self._keep(gen, values[-1])
            if values[-1] is None:
                break
        return values

    def _read_one(self, key: str) -> bytes | None:
        try:
            return self.backend.read(key)
        except NotFoundError:
            return None

    def _checked(self, gen: int, previous: Digest | None, data: bytes) -> LogRecord:
        where = f"{self.backend.url}: log record {gen}"
        record = decode_record(data, where)
        if record.gen != gen:
            raise CorruptError(f"{where}: says that it is number {record.gen}")
        if previous is not None and record.previous != previous:
            raise CorruptError(
                f"{where}: does not follow the record before it: expected previous "
                f"{previous:.12}, found {record.previous:.12}"
            )
        return record

    def _is_marked(self, gen: int, previous: Digest, found: Digest) -> bool:
        marker = self.read(void_key(gen))
        return marker is not None and marker_holds(marker, gen, previous, found)

    def _keep(self, gen: int, data: bytes | None) -> None:
        if data is not None:
            self._cache.put(gen, data, len(data))
