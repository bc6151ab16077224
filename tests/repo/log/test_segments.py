from __future__ import annotations

from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.log.log_slots import LogSlot, segment_key, slot_key
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tensorrepo.repo.log.repair import void_slot
from tensorrepo.repo.log.segments import (
    HEADER,
    SEGMENT_LENGTHS,
    Segment,
    SegmentCommit,
    changed_filter,
    decode_segment,
    encode_segment,
    read_segment,
    segment_length,
    short_ends,
    write_segment,
)
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tests.support.builders.log import Faulty, append_many, append_one, new_backend, open_log
from tests.support.faults.damage import short_survivors, survivors

LENGTH = 16


def commit_of(slot: LogSlot) -> list[SegmentCommit]:
    """A stand-in for the commit that a record introduced."""
    encoded = encode_object(Kind.COMMIT, f"commit {slot.record.gen}".encode())
    envelope = b"".join(encoded.parts)
    paths = changed_filter([f"datasets/d{slot.record.gen}"])
    return [SegmentCommit(slot.record.gen, encoded.link.digest, envelope, paths)]


def filled(count: int) -> Any:
    backend = new_backend()
    log = open_log(backend, form=Form(segment_lengths=(LENGTH,)))
    for number in range(1, count + 1):
        append_one(log, f"t{number}", number, commits=commit_of)
    return backend


def short_log(backend: Any, **options: Any) -> RepositoryLog:
    return open_log(backend, form=Form(segment_lengths=(LENGTH,)), **options)


BACKEND = filled(40)
STORED = BACKEND.read(segment_key(16))
DATA = zstandard.decompress(STORED)
SMALL = encode_segment(Segment(1, (b"one", b""), tuple(commit_of(next(
    short_log(BACKEND).slots_between(1, 2))))))  # fmt: skip


def damaged_copy(key: str, data: bytes | None) -> Any:
    copy = new_backend()
    for stored in BACKEND.list("log/"):
        if stored.key != key:
            copy.create(stored.key, [BACKEND.read(stored.key)])
    if data is not None:
        copy.create(key, [data])
    return copy


def test_whoever_completes_a_segment_writes_it() -> None:
    keys = [stored.key for stored in BACKEND.list("log/segment/")]
    assert keys == [segment_key(16), segment_key(32)]


def test_a_segment_holds_its_records_verbatim_and_their_commits() -> None:
    segment = decode_segment(DATA)
    assert segment.first == 1
    assert segment.records == tuple(BACKEND.read(slot_key(gen)) for gen in range(1, 17))
    assert [commit.generation for commit in segment.commits] == list(range(1, 17))
    assert encode_segment(segment) == DATA


def test_no_commits_to_give_means_no_segment() -> None:
    backend = new_backend()
    append_many(short_log(backend), LENGTH)
    assert list(backend.list("log/segment/")) == []


def test_a_cold_reader_reads_a_segment_instead_of_its_records() -> None:
    backend = Faulty(BACKEND)
    records = list(short_log(backend).records(1, 33))
    assert [record.gen for record in records] == list(range(1, 33))
    slots_read = {key for operation, key in backend.requests if key.endswith(".json")}
    assert slots_read == {slot_key(16), slot_key(32)}  # the ends, which tie them to the log


@pytest.mark.parametrize(("start", "stop"), [(1, 41), (5, 12), (16, 18), (17, 33), (30, 41)])
def test_records_are_the_same_with_and_without_segments(start: int, stop: int) -> None:
    plain = damaged_copy(segment_key(16), None)
    plain.delete(segment_key(32))
    with_segments = list(short_log(BACKEND).records(start, stop))
    assert with_segments == list(short_log(plain).records(start, stop))
    assert [record.gen for record in with_segments] == list(range(start, stop))


def test_no_flipped_byte_of_a_segment_goes_unnoticed() -> None:
    assert survivors(SMALL, 0xFF, decode_segment) == {}


def test_a_segment_that_is_cut_short_is_corrupt() -> None:
    assert short_survivors(SMALL, decode_segment) == {}


def sealed(data: bytes) -> bytes:
    """`data` with a right tag: only what it says is wrong."""
    return data + content_tag(data)


@pytest.mark.parametrize(
    "counts",
    [(3, 1), (2, 2), (2, 0), (0xFFFFFFFF, 0), (0, 0xFFFFFFFF)],
)
def test_a_segment_that_promises_other_than_it_holds_is_corrupt(counts: tuple[int, int]) -> None:
    magic, version, first, _, _, body_bytes = HEADER.unpack_from(SMALL)
    head = HEADER.pack(magic, version, first, *counts, body_bytes)
    with pytest.raises(CorruptError):
        decode_segment(sealed(head + SMALL[HEADER.size : -16]))


def test_a_segment_whose_commit_has_other_bytes_is_corrupt() -> None:
    (commit,) = decode_segment(SMALL).commits
    forged = SegmentCommit(commit.generation, commit.digest, b"other bytes", commit.paths)
    with pytest.raises(CorruptError, match="has other bytes"):
        decode_segment(encode_segment(Segment(1, (), (forged,))))


def test_who_reads_the_log_passes_over_the_commits() -> None:
    segment = decode_segment(DATA, commits=False)
    assert segment.commits == ()
    assert segment.records == decode_segment(DATA).records


def test_a_segment_of_a_newer_version_asks_for_an_update() -> None:
    with pytest.raises(UnsupportedError):
        decode_segment(sealed(SMALL[:4] + b"\x02" + SMALL[5:-16]))


FORGED = [
    ("garbage", b"garbage"),
    ("of elsewhere", BACKEND.read(segment_key(32))),
    ("other records", encode_segment(Segment(1, (b"{}",) * 16, ()))),
    ("last record changed", None),
]


def with_last_record_changed() -> bytes:
    """A segment whose records chain to each other, but whose last is not the log's."""
    other = filled(15)
    append_one(short_log(other), "forged", 99)
    records = tuple(other.read(slot_key(gen)) for gen in range(1, 17))
    return encode_segment(Segment(1, records, ()))


@pytest.mark.parametrize(("name", "data"), FORGED, ids=[name for name, _ in FORGED])
def test_a_segment_that_the_chain_does_not_agree_with_is_reported_and_skipped(
    name: str, data: bytes | None
) -> None:
    backend = damaged_copy(segment_key(16), data or with_last_record_changed())
    reports: list[str] = []
    log = short_log(backend, report=reports.append)
    assert list(log.records(1, 41)) == list(short_log(BACKEND).records(1, 41))
    assert any("skipping a segment" in report for report in reports), name


def test_a_void_slot_in_a_segment_stays_void() -> None:
    backend = filled(5)
    backend.create(slot_key(6), [b"garbage"])
    log = short_log(backend)
    void_slot(log, 6, actor="Ann", time_ns=1)
    for number in range(7, 20):
        append_one(log, f"t{number}", number, commits=commit_of)
    counting = Faulty(backend)
    records = list(short_log(counting).records(1, 17))
    assert records[5].entries == ()
    assert ("read", segment_key(16)) in counting.requests
    assert ("read", slot_key(6)) not in counting.requests


LENGTHS = (4, 16, 32)


def tiered(count: int, backend: Any = None) -> Any:
    backend = backend or new_backend()
    log = open_log(backend, form=Form(segment_lengths=LENGTHS))
    for number in range(1, count + 1):
        append_one(log, f"t{number}", number, commits=commit_of)
    return backend


TIERED = tiered(50)


@pytest.mark.parametrize(
    ("gen", "length"), [(1, 0), (63, 0), (64, 64), (448, 64), (512, 512), (4096, 4096), (8256, 64)]
)
def test_a_segment_is_as_long_as_its_last_generation_admits(gen: int, length: int) -> None:
    assert segment_length(gen, SEGMENT_LENGTHS) == length


@pytest.mark.parametrize(
    ("head", "ends"),
    [
        (0, []), (63, []), (64, [64]), (200, [64, 128, 192]), (640, [512, 576, 640]),
        (4096, []), (4159, []), (4160, [4160]), (8192 + 1100, [8704, 9216, 9280]),
    ],
)  # fmt: skip
def test_the_fewest_segments_hold_what_comes_after_the_long_ones(
    head: int, ends: list[int]
) -> None:
    assert short_ends(head, SEGMENT_LENGTHS) == ends


def test_every_record_but_the_newest_is_in_a_segment_of_each_length_that_ended() -> None:
    slots = open_log(TIERED).slots
    gens = [int(stored.key[-20:]) for stored in TIERED.list("log/segment/")]
    found = {gen: read_segment(slots, gen) for gen in gens}
    ranges = {gen: (segment.first, gen + 1) for gen, segment in found.items() if segment}
    assert ranges == {
        gen: (gen - segment_length(gen, LENGTHS) + 1, gen + 1) for gen in range(4, 50, 4)
    }


@pytest.mark.parametrize(("start", "stop"), [(1, 51), (1, 5), (2, 50), (15, 34), (33, 51)])
def test_records_are_the_same_out_of_short_segments_and_long(start: int, stop: int) -> None:
    backend = Faulty(TIERED)
    log = open_log(backend, form=Form(segment_lengths=LENGTHS))
    found = list(log.records(start, stop))
    assert found == list(open_log(TIERED).records(start, stop))
    assert len(backend.requests) < 25


def test_a_long_segment_takes_its_commits_from_short_ones() -> None:
    backend = tiered(32)
    log = open_log(backend, form=Form(segment_lengths=LENGTHS))
    whole = read_segment(log.slots, 32)
    assert whole is not None
    backend.delete(segment_key(32))
    asked: list[int] = []

    def commits(slot: LogSlot) -> list[SegmentCommit]:
        asked.append(slot.record.gen)
        return commit_of(slot)

    write_segment(log.slots, list(log.slots_between(1, 33)), commits, lengths=LENGTHS)
    assert read_segment(log.slots, 32) == whole
    assert asked == [29, 30, 31, 32]


def test_a_short_segment_that_is_damaged_or_forged_does_not_get_into_a_long_one() -> None:
    backend = tiered(32)
    log = open_log(backend, form=Form(segment_lengths=LENGTHS), report=lambda _: None)
    whole = read_segment(log.slots, 32)
    backend.delete(segment_key(32))
    backend.overwrite(segment_key(16), [b"garbage"])
    backend.overwrite(segment_key(20), [encode_segment(Segment(17, (b"{}",) * 4, ()))])
    write_segment(log.slots, list(log.slots_between(1, 33)), commit_of, lengths=LENGTHS)
    assert read_segment(log.slots, 32) == whole


def read_again(stored: bytes) -> Segment | None:
    return read_segment(short_log(damaged_copy(segment_key(16), stored)).slots, 16)


def test_a_flipped_byte_of_the_compressed_form_never_changes_what_is_read() -> None:
    found = survivors(STORED, 0xFF, read_again)
    assert set(found.values()) <= {None, decode_segment(DATA)}


@pytest.mark.parametrize("length", [4, 5, len(STORED) // 2, len(STORED) - 1])
def test_a_compressed_segment_that_is_cut_short_is_corrupt(length: int) -> None:
    slots = short_log(damaged_copy(segment_key(16), STORED[:length])).slots
    with pytest.raises(CorruptError, match="segment 16"):
        read_segment(slots, 16)


def test_a_segment_above_the_limit_is_not_expanded() -> None:
    slots = short_log(BACKEND).slots
    assert read_segment(slots, 16, len(DATA)) is not None
    assert read_segment(slots, 16, len(DATA) - 1) is None
    assert read_segment(slots, 16, len(STORED) - 1) is None


def test_a_segment_without_compression_is_read_too() -> None:
    assert read_segment(short_log(damaged_copy(segment_key(16), DATA)).slots, 16) == (
        decode_segment(DATA)
    )


def test_an_absent_segment_is_none() -> None:
    assert read_segment(short_log(BACKEND).slots, 48) is None


PATHS = st.lists(
    st.lists(st.text("ab/", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join),
    max_size=20,
)


@given(PATHS)
def test_a_filter_never_denies_a_path_or_a_folder_that_was_changed(paths: list[str]) -> None:
    commit = SegmentCommit(1, commit_digest(), b"", changed_filter(paths))
    assert all(commit.may_touch(path) for path in paths)
    assert all(commit.may_touch(path.split("/")[0]) for path in paths)


def commit_digest() -> Any:
    return decode_segment(SMALL).commits[0].digest


def test_a_filter_denies_most_of_what_was_not_changed() -> None:
    commit = SegmentCommit(
        1, commit_digest(), b"", changed_filter([f"datasets/d{number}" for number in range(256)])
    )
    wrong = sum(commit.may_touch(f"datasets/other{number}") for number in range(2000))
    assert wrong < 2000 * 0.03


def test_unknown_changes_may_touch_everything() -> None:
    commit = SegmentCommit(1, commit_digest(), b"", changed_filter(None))
    assert commit.may_touch("datasets/any")


def test_no_changes_touch_nothing() -> None:
    commit = SegmentCommit(1, commit_digest(), b"", changed_filter([]))
    assert not commit.may_touch("datasets/any")
