"""What a loop waits for: three passes over the same steps, and what follows from them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Semaphore
from typing import Any

import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.profile import Observed, Phase, Profile, profile
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    COUNT,
    ROWS,
    SCHEMA,
    MappedObjects,
    stream,
    stream_threads,
)

OPENED = partial(stream, batch_size=64, shuffle=False)


@pytest.fixture(scope="module")
def remote() -> StoredDataset:
    return stored(MemoryObjects(), SCHEMA, [ROWS], page_bytes=8192)


def phase(seconds: float) -> Phase:
    return Phase(10, 640, seconds, 0.0, 0.0)


def profiled(*, cold: float, cached: float, synthetic: float) -> Profile:
    return Profile(phase(cold), phase(cached), phase(synthetic))


def test_a_stall_is_what_a_pass_takes_longer_than_the_one_below_it() -> None:
    found = profiled(cold=6.0, cached=3.0, synthetic=2.0)
    assert found.stalls == pytest.approx({"step": 0.2, "prepare": 0.1, "storage": 0.3})


def test_a_faster_part_brings_its_share_of_the_whole() -> None:
    found = profiled(cold=6.0, cached=3.0, synthetic=2.0)
    assert found.faster == pytest.approx({"step": 1.5, "prepare": 1.2, "storage": 2.0})


def test_noise_makes_no_stall_negative() -> None:
    found = profiled(cold=1.0, cached=3.0, synthetic=2.0)
    assert found.stalls == pytest.approx({"step": 0.2, "prepare": 0.1, "storage": 0.0})


def test_the_text_shows_every_part_with_its_share() -> None:
    text = str(profiled(cold=6.0, cached=3.0, synthetic=2.0))
    assert "33%" in text
    assert "50%" in text
    assert "without it 2.00x as fast" in text


def test_all_passes_run_the_same_steps(remote: StoredDataset) -> None:
    seen: list[int] = []
    found = profile(remote, OPENED, step=lambda batch: seen.append(batch.position))
    steps = -(-COUNT // 64)
    assert [found.cold.steps, found.cached.steps, found.synthetic.steps] == [steps] * 3
    assert seen[:steps] == seen[steps : 2 * steps]
    assert seen[2 * steps :] == [COUNT] * steps
    assert stream_threads() == []


def test_the_second_pass_reads_nothing_from_storage(remote: StoredDataset) -> None:
    found = profile(remote, OPENED)
    assert found.cold.reads > 0
    assert found.cold.read_bytes > 0
    assert found.cached.reads == 0


def test_a_pass_ends_when_as_much_was_read_as_is_kept(remote: StoredDataset) -> None:
    whole = profile(remote, OPENED).cold
    cut = profile(remote, partial(OPENED, ahead=1, prefetch=0), kept_bytes=20_000).cold
    assert 0 < cut.steps < whole.steps


def test_a_pass_ends_after_the_given_seconds(remote: StoredDataset) -> None:
    ticks = iter(range(10_000))
    found = profile(
        remote,
        partial(OPENED, prefetch=0, fetch_threads=1),
        seconds=1,
        clock=lambda: float(next(ticks)),
    )
    assert found.cold.steps == 1


def test_data_in_place_is_profiled_too() -> None:
    mapped = stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)
    assert profile(mapped, OPENED).cached.steps > 0


def test_a_step_that_fails_ends_the_threads(remote: StoredDataset) -> None:
    def step(batch: Any) -> None:
        raise KeyError(len(batch))

    with pytest.raises(KeyError):
        profile(remote, OPENED, step=step)
    assert stream_threads() == []


def test_what_was_read_before_is_answered_from_memory(remote: StoredDataset) -> None:
    source = Observed(remote.objects, 1 << 20, lambda: 0.0)
    link = remote.objects.describe(remote.digest)
    direct = bytes(source.read_range(link, 0, 16))
    assert source.counts()["reads"] == 1
    source.answer_from_memory()
    into = bytearray(16)
    source.read_into(link, 0, memoryview(into))
    assert bytes(source.read_range(link, 0, 16)) == bytes(into) == direct
    assert source.counts()["reads"] == 0


SLOW_ROWS = {100: 0.2, 7: 0.3, 300: 0.25}  # longer than a busy machine makes another wait


def slow_transform(batch: Batch) -> Batch:
    time.sleep(sum(SLOW_ROWS.get(row, 0.0) for row in batch.rows.tolist()))
    return batch


@pytest.mark.soak
@pytest.mark.parametrize("batch_size", [1, 32])
def test_the_slowest_rows_are_named(remote: StoredDataset, batch_size: int) -> None:
    opened = partial(OPENED, batch_size=batch_size, transform=slow_transform)
    found = profile(remote, opened)
    rows = [each.row for each in found.slowest[:3]]
    assert sorted(rows) == [7, 100, 300]
    assert [each.row_id for each in found.slowest[:3]] == ids_of_rows(remote, rows)
    assert all(each.seconds >= SLOW_ROWS[each.row] for each in found.slowest[:3])
    text = str(found)
    assert "slowest rows, one by one" in text
    assert f"{rows[0]} ({found.slowest[0].row_id})" in text


def test_a_transform_that_needs_whole_batches_names_no_rows(remote: StoredDataset) -> None:
    def whole(batch: Batch) -> Batch:
        if len(batch.rows) == 1:
            raise ValueError("needs two rows")
        return batch

    found = profile(remote, partial(OPENED, batch_size=32, transform=whole, last="drop"))
    assert found.slowest == ()
    assert found.cold.parts["transform"] > 0


def test_without_a_transform_no_row_is_named(remote: StoredDataset) -> None:
    assert profile(remote, OPENED).slowest == ()


@pytest.mark.parametrize("threads", [2, 4])
def test_a_slow_batch_does_not_hold_up_the_others(remote: StoredDataset, threads: int) -> None:
    """While one is transformed, the other threads make all that may be ready behind it."""
    ahead = 8
    made, first_ends = Semaphore(0), Event()

    def transform(batch: Batch) -> int:
        if batch.position == 4:
            assert first_ends.wait(30)
        made.release()
        return batch.position

    opened = OPENED(remote, batch_size=4, transform=transform, work_threads=threads, prefetch=ahead)
    with opened, ThreadPoolExecutor(1) as consumer:
        batches = iter(opened)
        first = consumer.submit(next, batches)
        behind = [made.acquire(timeout=30) for _ in range(ahead - 1)]
        first_ends.set()
        assert all(behind)
        assert [first.result(), next(batches), next(batches)] == [4, 8, 12]
