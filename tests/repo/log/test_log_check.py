"""Every record is read from its slot: a damaged one of long ago is told, though nobody opens it."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.log.log_check import check_log
from tensorrepo.repo.log.log_slots import slot_key
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
    assert list(check_log(open_log(filled))) == []


@pytest.mark.parametrize("gen", sampled(range(1, 64), 4))
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_flipped_byte_of_any_older_record_is_told(
    filled: MemoryBackend, gen: int, at: float
) -> None:
    data = filled.read(slot_key(gen))
    filled.overwrite(slot_key(gen), [flipped(data, int(at * len(data)), 1)])
    told = {fault.generation for fault in check_log(open_log(filled))}
    assert told & {gen, gen + 1}


def test_a_missing_record_is_told(filled: MemoryBackend) -> None:
    filled.delete(slot_key(9))
    (fault,) = check_log(open_log(filled))
    assert "log record 9 is missing" in fault.problem
