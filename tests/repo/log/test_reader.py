from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.repo.backends.base import LogTail
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    RepositoryRewound,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.hashing.digests import record_digest, state_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.checkpoints import Hint, decode_hint, encode_hint
from tensorrepo.repo.log.log_check import LogCheck
from tensorrepo.repo.log.log_slots import (
    HINT_KEY,
    Marker,
    checkpoint_key,
    encode_marker,
    marker_holds,
    marker_is_right,
    slot_key,
    void_key,
)
from tensorrepo.repo.log.reader import LogView, RepositoryLog, read_opening
from tensorrepo.repo.log.records import (
    LogRecord,
    Update,
    canonical_json,
    encode_ref_updates,
    genesis_digest,
    parse_canonical,
)
from tensorrepo.repo.log.repair import rewrite_hint, void_slot
from tensorrepo.repo.log.state import State, encode_state
from tests.support.builders.log import (
    IDENTITY,
    MAIN,
    Bulks,
    Faulty,
    append_many,
    append_one,
    digest,
    encode_record,
    entry,
    new_backend,
    open_log,
)
from tests.support.effort import check_each
from tests.support.faults.backends import FlippingBackend
from tests.support.faults.damage import flipped, survivors


def filled(count: int) -> MemoryBackend:
    backend = new_backend()
    append_many(open_log(backend), count)
    return backend


@pytest.fixture(scope="module")
def long() -> MemoryBackend:
    """A log of 200 records, with checkpoints at 64, 128 and 192; tests must not change it."""
    return filled(200)


def copy_of(backend: MemoryBackend, *, records: int | None = None) -> MemoryBackend:
    """The same log, or its first `records` alone."""
    copy = new_backend()
    wanted = None if records is None else {slot_key(gen) for gen in range(1, records + 1)}
    for stored in backend.list("log/"):
        if wanted is None or stored.key in wanted:
            copy.create(stored.key, [backend.read(stored.key)])
    return copy


def stored_records(backend: MemoryBackend, start: int, stop: int) -> list[bytes]:
    return [backend.read(slot_key(gen)) for gen in range(start, stop)]


@pytest.mark.parametrize("seen", [4, 5, 7, 9])
def test_records_told_to_whoever_saw_others_meanwhile_are_followed(seen: int) -> None:
    backend = filled(10)
    log = open_log(copy_of(backend, records=seen))
    assert log.refresh().generation == seen
    view = log.follow(stored_records(backend, 5, 9), after=4, generation=8)
    assert view == open_log(copy_of(backend, records=max(seen, 8))).refresh()


@pytest.mark.parametrize(("after", "generation"), [(5, 9), (3, 9), (2, 10)])
def test_where_the_told_records_do_not_reach_the_log_is_read(after: int, generation: int) -> None:
    backend = filled(10)
    shorter = copy_of(backend, records=4)
    log = open_log(shorter)
    log.refresh()
    for gen, data in enumerate(stored_records(backend, 5, 11), 5):
        shorter.create(slot_key(gen), [data])
    told = stored_records(backend, after + 1, after + 3)
    assert log.follow(told, after=after, generation=generation).generation == 10


def test_a_log_without_records_is_at_generation_0() -> None:
    view = open_log(new_backend()).refresh()
    assert (view.generation, view.digest) == (0, genesis_digest(IDENTITY))
    assert view.state == State()


def test_every_reader_sees_what_was_appended(long: MemoryBackend) -> None:
    view = open_log(long).refresh()
    assert view.generation == 200
    assert view.state.refs == {MAIN: digest(200)}
    assert view.digest == record_digest(long.read(slot_key(200)))


def test_a_known_view_follows_what_others_append() -> None:
    backend = new_backend()
    reader, writer = open_log(backend), open_log(backend)
    assert reader.refresh().generation == 0
    append_many(writer, 20)
    assert reader.refresh() == writer.refresh()
    assert reader.latest is not None
    assert reader.latest.generation == 20


def test_a_refresh_without_news_asks_for_two_slots_and_lists_nothing(long: MemoryBackend) -> None:
    backend = Faulty(long)
    log = open_log(backend)
    log.refresh()
    backend.requests.clear()
    log.refresh()
    assert backend.requests == [("read", slot_key(200)), ("read", slot_key(201))]


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 71, 72, 130, 200])
def test_a_remote_log_opens_in_two_round_trips(count: int) -> None:
    backend = filled(count)
    identity, hint, _ = read_opening(backend)
    log = RepositoryLog(backend, identity, Bulks(), hint=hint, workers=32)
    assert log.refresh().generation == count
    assert log.slots.rounds == 1
    alone = open_log(backend, workers=32)
    assert alone.refresh().generation == count
    assert alone.slots.rounds == 2


class Telling(Faulty):
    """A store whose service tells records, as far as it has seen them; `asked` are its calls."""

    def __init__(self, inner: MemoryBackend, seen: int) -> None:
        super().__init__(inner)
        self.told = copy_of(inner, records=seen)
        self.asked: list[int] = []

    def log_tail(self, generation: int) -> LogTail:
        self.asked.append(generation)
        log = open_log(self.told)
        newest = log.refresh().generation
        return LogTail(log.digest_of(generation), tuple(stored_records(self.told, 1, newest + 1)))


@pytest.mark.parametrize("seen", [10, 7, 1])
def test_a_short_log_opens_by_what_a_service_tells_and_by_the_slots_behind(seen: int) -> None:
    backend = Telling(filled(10), seen)
    identity, hint, _ = read_opening(backend)
    backend.requests.clear()
    log = RepositoryLog(backend, identity, Bulks(), hint=hint)
    assert log.refresh() == open_log(filled(10)).refresh()
    assert backend.asked == [0]
    assert not {("read", slot_key(gen)) for gen in range(1, seen + 1)} & set(backend.requests)


def test_a_service_that_tells_of_another_past_is_a_rewind(tmp_path: Path) -> None:
    backend = filled(10)
    reader = RepositoryLog(backend, IDENTITY, Bulks(), memory=tmp_path)
    reader.refresh()
    shorter = Telling(copy_of(backend, records=4), 4)
    with pytest.raises(RepositoryRewound):
        RepositoryLog(shorter, IDENTITY, Bulks(), memory=tmp_path).refresh()


@pytest.mark.parametrize("workers", [1, 32])
@pytest.mark.parametrize(
    "hint",
    [
        None,
        b"",
        b"\xff\x00",
        b"[]",
        b'"7"',
        b"{}",
        b'{"gen":null}',
        b'{"gen":true}',
        b'{"gen":-1}',
        b'{"gen":0}',
        b'{"gen":1.5}',
        b'{"gen":201}',
        b'{"gen":999999999999999999999999}',
        b'{"gen":99999999999999999}',
        b'{"gen":1}',
        b'{"gen":70}',
        b'{"gen":150,"checkpoint":64}',
        b'{"gen":150,"checkpoint":128}',
        b'{"gen":200,"checkpoint":64}',
        b'{"gen":200,"checkpoint":192}',
        b'{"gen":200,"checkpoint":193}',
        b'{"gen":200,"checkpoint":-64}',
        b'{"gen":200,"checkpoint":"192"}',
        b'{"gen":128,"checkpoint":192}',
        b'{"checkpoint":192}',
        b'{"gen":200}' + b" " * 300,
        b"[" * 200,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_any_hint_leads_to_the_same_view(
    long: MemoryBackend, hint: bytes | None, workers: int
) -> None:
    backend = copy_of(long)
    backend.delete(HINT_KEY)
    backend.overwrite(HINT_KEY, [hint]) if hint is not None else None
    assert open_log(backend, workers=workers).refresh() == open_log(long).refresh()


def test_a_wild_hint_makes_a_reader_ask_for_few_slots(long: MemoryBackend) -> None:
    backend = Faulty(copy_of(long))
    backend.inner.overwrite(HINT_KEY, [b'{"gen":99999999999999999}'])
    open_log(backend, workers=4).refresh()
    assert len(backend.requests) < 100


def test_a_stale_hint_leaves_for_the_newest_checkpoint() -> None:
    backend = filled(700)
    backend.overwrite(HINT_KEY, [encode_hint(Hint(8, 0))])
    counting = Faulty(backend)
    assert open_log(counting).refresh().generation == 700
    assert len(counting.requests) < 350


@pytest.mark.parametrize("gen", [64, 128, 192])
def test_a_checkpoint_is_the_fold_of_the_records_before_it(long: MemoryBackend, gen: int) -> None:
    data = long.read(checkpoint_key(gen))
    assert data == encode_state(open_log(long).view_at(gen - 1).state)
    assert next(open_log(long).records(gen, gen + 1)).state == state_digest(data)


@pytest.mark.parametrize("gen", [64, 192])
def test_a_damaged_checkpoint_is_reported_and_skipped(long: MemoryBackend, gen: int) -> None:
    backend, whole = copy_of(long), long.read(checkpoint_key(gen))
    backend.overwrite(HINT_KEY, [encode_hint(Hint(200, gen))])

    def seen_and_reported(at: int) -> tuple[LogView, bool]:
        backend.overwrite(checkpoint_key(gen), [flipped(whole, at % len(whole), 0x01)])
        reports: list[str] = []
        seen = open_log(backend, report=reports.append).refresh()
        return seen, any(f"checkpoint {gen}" in report for report in reports)

    expected = open_log(long).refresh(), True
    places = range(0, 300, 7)
    assert list(map(seen_and_reported, places)) == [expected] * len(places)


@pytest.mark.parametrize("hinted", [True, False])
def test_without_any_good_checkpoint_the_log_is_folded_from_its_start(
    long: MemoryBackend, hinted: bool
) -> None:
    backend = copy_of(long)
    for gen in (64, 128, 192):
        backend.overwrite(checkpoint_key(gen), [b"{}"])
    backend.overwrite("log/checkpoint/foreign.txt", [b"what is this"])
    backend.overwrite(checkpoint_key(6400), [b"{}"])
    if not hinted:
        backend.delete(HINT_KEY)
    reports: list[str] = []
    assert open_log(backend, report=reports.append).refresh() == open_log(long).refresh()
    assert len(reports) >= 3


def test_checkpoints_come_when_the_records_since_exceed_a_quarter_of_the_last() -> None:
    backend = new_backend()
    log = open_log(backend)
    bulks = log.read_bulk
    assert isinstance(bulks, Bulks)
    many = [Update(f"heads/b{number:05d}", None, digest(1)) for number in range(4000)]
    name = bulks.put(encode_ref_updates(many))
    append(log, lambda _: (entry("commit", bulk=name),))
    append_many(log, 399, start=2)
    gens = [int(stored.key[-25:-5]) for stored in backend.list("log/checkpoint/")]
    size = len(backend.read(checkpoint_key(64)))
    since = [len(backend.read(slot_key(gen))) for gen in range(64, 400)]
    due = [gen for gen in range(128, 400, 64) if sum(since[: gen - 64]) * 4 > size]
    assert gens[:2] == [64, due[0]]
    assert due[0] > 128
    assert open_log(backend, read_bulk=bulks).refresh() == log.refresh()


@pytest.mark.parametrize("gen", [0, 1, 63, 64, 65, 100, 199, 200])
def test_a_view_of_the_past_is_what_was_seen_then(long: MemoryBackend, gen: int) -> None:
    view = open_log(long).view_at(gen)
    assert view.generation == gen == view.state.generation
    assert view.state.refs == ({MAIN: digest(gen)} if gen else {})


@pytest.mark.parametrize(("start", "stop"), [(1, 201), (1, 1), (64, 65), (150, 180), (200, 201)])
def test_records_come_in_order(long: MemoryBackend, start: int, stop: int) -> None:
    assert [record.gen for record in open_log(long).records(start, stop)] == list(
        range(start, stop)
    )


def test_records_that_are_not_there_are_not_found(long: MemoryBackend) -> None:
    log = open_log(long)
    for read in (
        lambda: list(log.records(190, 202)),
        lambda: list(log.records(0, 2)),
        lambda: log.view_at(201),
    ):
        with pytest.raises(NotFoundError):
            read()


def test_verdicts_can_be_asked_for_later() -> None:
    backend = new_backend()
    log = open_log(backend)
    append_one(log, "first", 1)
    late = entry("ref-create", (MAIN, None, 2), txn="late")
    append(log, lambda _: (late,), allow_void=True)
    judged = list(open_log(backend).judged(1, 3))
    assert [verdict.applied for _, (verdict,) in judged] == [True, False]


SHORT = filled(5)


def with_record(gen: int, data: bytes) -> MemoryBackend:
    """`SHORT` with other bytes for one record."""
    backend = copy_of(SHORT)
    backend.overwrite(slot_key(gen), (data,))
    return backend


@pytest.mark.parametrize(
    "read", [lambda log: list(log.records(1, 6)), lambda log: log.refresh()], ids=["all", "head"]
)
def test_no_flipped_byte_of_a_record_goes_unnoticed(
    read: Callable[[RepositoryLog], object],
) -> None:
    found = survivors(
        SHORT.read(slot_key(3)),
        0xFF,
        lambda damaged: read(open_log(with_record(3, damaged))),
        (CorruptError,),
        match=r"log record (3|4)",
    )
    assert found == {}


def test_no_flipped_byte_of_the_newest_record_goes_unnoticed_by_who_saw_it(tmp_path: Path) -> None:
    newest = SHORT.read(slot_key(5))
    backend = copy_of(SHORT)
    known = open_log(backend, memory=tmp_path)
    known.refresh()

    def refresh_known(damaged: bytes) -> object:
        backend.overwrite(slot_key(5), (damaged,))
        return known.refresh()

    def refresh_another(damaged: bytes) -> object:
        return open_log(with_record(5, damaged), memory=tmp_path).refresh()

    assert survivors(newest, 0xFF, refresh_known, (RepositoryRewound,)) == {}
    assert survivors(newest, 0xFF, refresh_another, (RepositoryRewound,)) == {}


@pytest.mark.parametrize("workers", [1, 32])
@pytest.mark.parametrize("gap", [1, 3, 66, 130, 195, 199])
def test_a_missing_slot_before_the_hint_is_corrupt_and_named(
    long: MemoryBackend, gap: int, workers: int
) -> None:
    backend = copy_of(long)
    backend.delete(slot_key(gap))
    for gen in (64, 128, 192):
        backend.delete(checkpoint_key(gen))
    backend.overwrite(HINT_KEY, [encode_hint(Hint(200, 0))])
    with pytest.raises(CorruptError, match=f"log record {gap} is missing"):
        open_log(backend, workers=workers).refresh()


def test_a_slot_that_appears_between_two_reads_is_no_gap() -> None:
    backend = filled(8)
    hidden = {slot_key(7)}

    def appears(request: Any) -> Any:
        if request.operation == "read" and request.key in hidden:
            hidden.discard(request.key)
            raise NotFoundError(request.key)
        return request.perform()

    log = open_log(Faulty(backend, appears), workers=8)
    assert log.refresh().generation == 8


def damage_shorter(backend: MemoryBackend) -> None:
    backend.delete(slot_key(5))


def damage_other(backend: MemoryBackend) -> None:
    for gen in (4, 5):
        backend.delete(slot_key(gen))
    append_one(open_log(backend), "other-4", 40)
    append_one(open_log(backend), "other-5", 50)


def damage_longer(backend: MemoryBackend) -> None:
    damage_other(backend)
    append_one(open_log(backend), "other-6", 60)


@pytest.mark.parametrize("damage", [damage_shorter, damage_other, damage_longer])
def test_a_shorter_or_different_past_is_a_rewind(
    tmp_path: Path, damage: Callable[[MemoryBackend], None]
) -> None:
    backend = filled(5)
    known = open_log(backend, memory=tmp_path)
    known.refresh()
    damage(backend)
    with pytest.raises(RepositoryRewound, match="log record 5"):
        known.refresh()
    with pytest.raises(RepositoryRewound, match=f"log record 5.*delete {tmp_path}"):
        open_log(backend, memory=tmp_path).refresh()
    assert open_log(backend).refresh().generation >= 4


def test_a_rewind_that_was_meant_can_be_accepted(tmp_path: Path) -> None:
    backend = filled(5)
    known = open_log(backend, memory=tmp_path)
    known.refresh()
    damage_shorter(backend)
    assert known.memory is not None
    known.memory.forget(IDENTITY)
    assert open_log(backend, memory=tmp_path).refresh().generation == 4


def test_a_memory_that_cannot_be_written_is_reported_and_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    reports: list[str] = []
    log = open_log(filled(3), memory=blocked, report=reports.append)
    assert log.refresh().generation == 3
    assert len(reports) == 1


def test_a_log_survives_pickling_without_what_it_read(long: MemoryBackend) -> None:
    log = open_log(long)
    view = log.refresh()
    again = pickle.loads(pickle.dumps(log))
    assert again.latest is None
    assert again.refresh() == view


def test_records_in_memory_are_bounded_in_bytes(long: MemoryBackend) -> None:
    log = open_log(long, cache_bytes=1000)
    list(log.records(1, 201))
    assert sum(size for _, size in log.slots._cache._items.values()) <= 1000


def test_a_store_that_fails_is_no_end_of_the_log(long: MemoryBackend) -> None:
    def fails(request: Any) -> Any:
        if request.key == slot_key(198):
            raise StorageError("no route to host", transient=True)
        return request.perform()

    with pytest.raises(StorageError):
        open_log(Faulty(long, fails)).refresh()


def test_no_repository_is_not_found_with_what_to_do() -> None:
    backend = new_backend()
    backend.delete("repo.json")
    with pytest.raises(NotFoundError, match="tensorrepo init"):
        read_opening(backend)


def test_a_fold_that_differs_from_what_a_record_states_is_corrupt() -> None:
    backend = filled(63)
    view = open_log(backend).refresh()
    backend.create(
        slot_key(64), [encode_record(LogRecord(64, view.digest, digest(1), (entry("noop"),)))]
    )
    with pytest.raises(CorruptError, match="log record 64 states"):
        open_log(backend).refresh()


def test_a_log_with_entries_from_the_future_can_be_read_but_not_written() -> None:
    backend = filled(62)
    view = open_log(backend).refresh()
    future = LogRecord(63, view.digest, None, (entry("from-the-future"),))
    backend.create(slot_key(63), [encode_record(future)])
    newer_fold = digest(77)  # a version that knows the kind folds otherwise
    after = LogRecord(64, record_digest(encode_record(future)), newer_fold, (entry("noop"),))
    backend.create(slot_key(64), [encode_record(after)])
    log = open_log(backend)
    assert log.refresh().generation == 64
    with pytest.raises(UnsupportedError, match="from-the-future"):
        append_one(log, "new", 1)


def test_a_lost_bulk_names_the_record_that_needs_it() -> None:
    backend = new_backend()
    log = open_log(backend)
    assert isinstance(log.read_bulk, Bulks)
    name = log.read_bulk.put(encode_ref_updates([Update(MAIN, None, digest(1))]))
    append(log, lambda _: (entry("commit", bulk=name),))

    def lost(_: object) -> tuple[Update, ...]:
        raise NotFoundError("no such object")

    with pytest.raises(CorruptError, match="log record 1 names ref updates"):
        open_log(backend, read_bulk=lost).refresh()


def test_an_object_store_may_look_at_the_log_while_it_is_folded() -> None:
    backend = new_backend()
    log = open_log(backend)
    append_many(log, 2)
    assert isinstance(log.read_bulk, Bulks)
    bulks = log.read_bulk
    name = bulks.put(encode_ref_updates([Update("heads/b", None, digest(1))]))
    append(log, lambda _: (entry("commit", bulk=name),))
    seen: list[int] = []

    def looks(wanted: Digest) -> tuple[Update, ...]:
        assert reader.latest is not None
        seen.extend([reader.latest.generation, reader.refresh().generation])
        return bulks(wanted)

    reader = open_log(backend, read_bulk=looks)
    assert reader.refresh() == log.refresh()
    assert seen == [2, 2]
    assert reader.latest == log.latest


GARBAGE = [
    b"",
    b"not a record",
    b"\x00" * 100_000,
    encode_record(LogRecord(6, digest(1), None, ())),
    encode_record(LogRecord(7, record_digest(SHORT.read(slot_key(5))), None, ())),
]


@pytest.mark.parametrize("at", range(1, 9))
def test_a_bit_that_flips_on_the_wire_is_no_damage_of_the_log(at: int, tmp_path: Path) -> None:
    inner = filled(6)
    expected = open_log(inner, memory=tmp_path).refresh()
    log = open_log(FlippingBackend(inner, at), memory=tmp_path)
    with suppress(StorageError):  # which says that it may be tried again
        log.refresh()
    assert log.refresh() == expected


@pytest.mark.parametrize("knows", [False, True], ids=["new", "follows"])
@pytest.mark.parametrize("garbage", GARBAGE, ids=["empty", "text", "large", "chain", "number"])
def test_a_slot_that_is_no_record_is_corrupt_until_it_is_marked_void(
    garbage: bytes, knows: bool
) -> None:
    backend = copy_of(SHORT)
    log = open_log(backend)
    if knows:
        assert log.refresh().generation == 5
    backend.create(slot_key(6), [garbage])
    with pytest.raises(CorruptError, match=r"log record 6.*tensorrepo doctor --void 6"):
        log.refresh()
    void_slot(log, 6, actor="Ann", time_ns=1, note="a disk died")
    assert log.refresh().generation == 6
    assert [record.entries for record in log.records(6, 7)] == [()]
    append_one(log, "after", 7)
    assert backend.read(slot_key(6)) == garbage
    assert open_log(backend).refresh() == log.refresh()
    assert [record.gen for record in open_log(backend).records(1, 8)] == list(range(1, 8))


def test_a_writer_that_meets_garbage_in_its_slot_did_not_write() -> None:
    backend = copy_of(SHORT)

    def meets(request: Any) -> Any:
        if (request.operation, request.key) == ("create", slot_key(6)):
            backend.create(slot_key(6), [b"garbage"])
        return request.perform()

    with pytest.raises(CorruptError, match="doctor --void 6"):
        append_one(open_log(Faulty(backend, meets)), "mine", 9)


@pytest.mark.parametrize("gen", [1, 3, 5])
def test_a_record_cannot_be_voided(gen: int) -> None:
    backend = copy_of(SHORT)
    with pytest.raises(InvalidInputError, match="in order"):
        void_slot(open_log(backend), gen, actor="Ann", time_ns=1)
    assert backend.size(void_key(gen)) is None


def test_a_marker_beside_a_record_has_no_effect() -> None:
    backend = copy_of(SHORT)
    view = open_log(backend).refresh()
    marked = copy_of(SHORT)
    marked.overwrite(slot_key(3), [b"garbage"])
    void_slot(open_log(marked), 3, actor="Ann", time_ns=1)
    backend.create(void_key(3), [marked.read(void_key(3))])
    assert open_log(backend).refresh() == view


@pytest.mark.parametrize("marker", [b"", b"{}", b"[]", b'{"gen":6}'])
def test_a_damaged_marker_has_no_effect_and_is_replaced(marker: bytes) -> None:
    backend = copy_of(SHORT)
    backend.create(slot_key(6), [b"garbage"])
    backend.create(void_key(6), [marker])
    log = open_log(backend)
    with pytest.raises(CorruptError, match="doctor --void 6"):
        log.refresh()
    void_slot(log, 6, actor="Ann", time_ns=1)
    assert log.refresh().generation == 6


@pytest.mark.parametrize("note", ["", "a disk died", f"as {'ab' * 16} says\n", "a\nb\nc"])
def test_no_flipped_bit_of_a_marker_goes_unnoticed(note: str) -> None:
    right = Marker(6, digest(1), digest(2), "Ann", 1, note)
    data = encode_marker(right)
    assert marker_holds(data, 6, digest(1), digest(2))
    assert marker_is_right(data)
    before = canonical_json(parse_canonical(data, "marker") | {"note": "a disk died"})
    assert marker_is_right(before) is None  # one of an older version

    def check(bit: int) -> None:
        broken = flipped(data, bit // 8, 1 << bit % 8)
        holds = marker_holds(broken, 6, digest(1), digest(2))
        assert not holds or marker_is_right(broken) is False

    check_each(range(8 * len(data)), check)


def test_a_marker_whose_text_is_damaged_holds_and_is_said_anew() -> None:
    backend = copy_of(SHORT)
    backend.create(slot_key(6), [b"garbage"])
    void_slot(open_log(backend), 6, actor="Ann", time_ns=1, note="a disk died")
    whole = backend.read(void_key(6))
    with pytest.raises(InvalidInputError, match="marked as void already"):
        void_slot(open_log(backend), 6, actor="Bob", time_ns=2)
    backend.overwrite(void_key(6), [whole.replace(b"Ann", b"Ian")])
    assert open_log(backend).refresh().generation == 6
    (fault,) = LogCheck(open_log(backend)).faults()
    assert (fault.key, fault.kind) == (void_key(6), "text of a void marker")
    assert "doctor --void 6" in fault.problem
    void_slot(open_log(backend), 6, actor="Ann", time_ns=1, note="a disk died")
    assert backend.read(void_key(6)) == whole
    assert list(LogCheck(open_log(backend)).faults()) == []


@pytest.mark.parametrize("name", ["gen", "previous", "found"])
def test_a_marker_for_other_bytes_or_another_place_has_no_effect(name: str) -> None:
    backend = copy_of(SHORT)
    backend.create(slot_key(6), [b"garbage"])
    right = Marker(6, record_digest(SHORT.read(slot_key(5))), record_digest(b"garbage"), "", 1, "")
    other = replace(right, **{name: 7 if name == "gen" else digest(1)})
    backend.create(void_key(6), [encode_marker(other)])
    with pytest.raises(CorruptError, match="doctor --void 6"):
        open_log(backend).refresh()
    backend.overwrite(void_key(6), [encode_marker(right)])
    assert open_log(backend).refresh().generation == 6


def test_a_void_slot_where_a_checkpoint_was_due_only_costs_the_checkpoint() -> None:
    backend = filled(63)
    backend.create(slot_key(64), [b"garbage"])
    log = open_log(backend)
    void_slot(log, 64, actor="Ann", time_ns=1)
    append_many(log, 80, start=65)
    assert backend.size(checkpoint_key(64)) is None
    assert backend.size(checkpoint_key(128)) is not None
    assert open_log(backend).refresh() == log.refresh()


def test_the_hint_can_be_written_anew(long: MemoryBackend) -> None:
    backend = copy_of(long)
    backend.overwrite(HINT_KEY, [b"garbage"])
    assert rewrite_hint(open_log(backend)) == Hint(200, 192)
    assert decode_hint(backend.read(HINT_KEY)) == Hint(200, 192)


def test_losing_every_race_is_a_conflict_and_writes_nothing() -> None:
    backend = new_backend()
    other = open_log(backend)

    def always_late(request: Any) -> Any:
        if request.operation == "create":
            append_one(other, f"other-{request.number}", 5)
        return request.perform()

    with pytest.raises(ConflictError, match="4 times"):
        append_one(open_log(Faulty(backend, always_late)), "mine", 9, attempts=4)
    assert "mine" not in {e.txn for r in open_log(backend).records(1, 5) for e in r.entries}
