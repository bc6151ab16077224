"""Every record is read from its slot: a damaged one of long ago is told, though nobody opens it."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.log.checkpoints import Hint, encode_hint
from tensorrepo.repo.log.log_check import LogCheck
from tensorrepo.repo.log.log_slots import (
    HINT_KEY,
    checkpoint_key,
    segment_key,
    slot_key,
    void_key,
)
from tensorrepo.repo.log.reader import Form
from tensorrepo.repo.log.repair import restore_checkpoint
from tensorrepo.repo.log.state import Paging
from tests.support.builders.log import append_many, new_backend, open_log
from tests.support.effort import sampled
from tests.support.faults.damage import flipped

RECORDS = 70  # past the first checkpoint, with which opening begins


@pytest.fixture
def filled() -> MemoryBackend:
    backend = new_backend()
    append_many(open_log(backend), RECORDS)
    return backend


def test_a_log_in_order_has_no_check_log(filled: MemoryBackend) -> None:
    assert list(LogCheck(open_log(filled)).faults()) == []


@pytest.mark.parametrize("gen", sampled(range(1, 64), 4))
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_flipped_byte_of_any_older_record_is_told(
    filled: MemoryBackend, gen: int, at: float
) -> None:
    data = filled.read(slot_key(gen))
    filled.overwrite(slot_key(gen), [flipped(data, int(at * len(data)), 1)])
    told = {fault.generation for fault in LogCheck(open_log(filled)).faults()}
    assert told & {gen, gen + 1}


def test_a_missing_record_is_told(filled: MemoryBackend) -> None:
    filled.delete(slot_key(9))
    (fault,) = LogCheck(open_log(filled)).faults()
    assert "log record 9 is missing" in fault.problem


PAGED = Form(paging=Paging(inline_bytes=0, end_mask=0, min_refs=1, max_refs=2))


@pytest.fixture
def paged() -> MemoryBackend:
    """A log whose checkpoint has its refs in pages."""
    backend = new_backend()
    append_many(open_log(backend, form=PAGED), RECORDS)
    return backend


def told(backend: MemoryBackend, **options: Form) -> dict[str, str]:
    return {fault.key: fault.kind for fault in LogCheck(open_log(backend, **options)).faults()}


def test_ref_pages_are_checked_and_made_anew(paged: MemoryBackend) -> None:
    (page,) = [stored.key for stored in paged.list("log/refs/")]
    before = paged.read(page)
    assert told(paged, form=PAGED) == {}
    paged.overwrite(page, [before + b" "])
    assert told(paged, form=PAGED) == {page: "ref page", checkpoint_key(64): "checkpoint"}
    restore_checkpoint(open_log(paged, form=PAGED), 64)
    assert paged.read(page) == before
    assert told(paged, form=PAGED) == {}


@pytest.mark.parametrize(
    ("key", "data", "kind"),
    [
        (checkpoint_key(64), b"{}", "checkpoint"),
        (checkpoint_key(128), b"{}", "checkpoint"),  # of a record that there is not
        (checkpoint_key(7), b"{}", "checkpoint"),
        (segment_key(64), b"TRSG", "segment"),
        (segment_key(5), b"TRSG", "segment"),
        (void_key(3), b"{}", "void marker"),
        (void_key(300), b"{}", "void marker"),
        (HINT_KEY, b"none", "hint"),
        (HINT_KEY, encode_hint(Hint(RECORDS + 1, 0)), "hint"),
        (slot_key(10**15), b"{}", "log record"),
    ],
)
def test_what_lies_beside_the_records_is_compared_with_them(
    filled: MemoryBackend, key: str, data: bytes, kind: str
) -> None:
    filled.overwrite(key, [data])
    assert told(filled) == {key: kind}


def test_behind_a_damaged_record_the_fold_goes_on_from_a_checkpoint(filled: MemoryBackend) -> None:
    expected = open_log(filled).refresh().state
    filled.overwrite(slot_key(9), [b"{}"])
    check = LogCheck(open_log(filled))
    assert [fault.generation for fault in check.faults()] == [9]
    assert check.is_whole
    assert check.state == expected


def test_damage_of_the_newest_records_leaves_the_state_before_them(filled: MemoryBackend) -> None:
    before = open_log(filled).view_at(RECORDS - 2).state
    filled.overwrite(slot_key(RECORDS - 1), [b"{}"])
    check = LogCheck(open_log(filled))
    assert [fault.generation for fault in check.faults()] == [RECORDS - 1]
    assert not check.is_whole
    assert check.state == before


def test_records_that_are_appended_meanwhile_are_no_fault(filled: MemoryBackend) -> None:
    check = LogCheck(open_log(filled))
    append_many(open_log(filled), 70, start=RECORDS + 1)
    assert list(check.faults()) == []
