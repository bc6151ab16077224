"""What is chosen where nobody says."""

from __future__ import annotations

import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.streaming.options import (
    AHEAD_BATCHES,
    batches_ahead,
    steps_at_once,
    usual_work_threads,
)
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import ROWS, SCHEMA, MappedObjects, stream

MIB = 1 << 20


@pytest.mark.parametrize(
    ("batch_bytes", "expected"),
    [(0, AHEAD_BATCHES), (1, AHEAD_BATCHES), (64 * MIB, 4), (100 * MIB, 2), (1 << 40, 2)],
)
def test_fewer_batches_are_made_ahead_where_they_are_large(batch_bytes: int, expected: int) -> None:
    assert batches_ahead(batch_bytes) == expected


@pytest.mark.parametrize(("cores", "expected"), [(None, 1), (1, 1), (2, 2), (64, 8)])
def test_a_thread_a_core_works_on_batches_up_to_eight(cores: int | None, expected: int) -> None:
    assert usual_work_threads(cores) == expected


@pytest.mark.parametrize(
    ("own_rows", "item_bytes", "expected"),
    [(256, 3072, 21), (256, 150_000, 1), (0, 0, 16384), (32768, 1, 1)],
)
def test_small_steps_are_gathered_together(own_rows: int, item_bytes: int, expected: int) -> None:
    assert steps_at_once(own_rows, item_bytes) == expected


@pytest.fixture(scope="module")
def local() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


def test_a_stream_shows_what_was_chosen(local: StoredDataset) -> None:
    chosen = stream(local, batch_size=50, transform=len, work_threads=3, fetch_threads=2).tuning
    assert (chosen.work_threads, chosen.fetch_threads) == (3, 2)
    assert chosen.prefetch == AHEAD_BATCHES
    assert "3 to decode and transform" in str(chosen)


def test_nothing_is_said_of_threads_that_have_nothing_to_do(local: StoredDataset) -> None:
    assert stream(local, batch_size=50).tuning.work_threads == 0


def test_requests_to_a_store_are_found_by_trying() -> None:
    remote = stored(MemoryObjects(), SCHEMA, [ROWS], page_bytes=8192)
    found = stream(remote, batch_size=50)
    assert found.tuning.fetch_threads is None
    assert "as many requests as the store bears" in str(found.explain())


def test_an_explanation_ends_with_what_was_chosen(local: StoredDataset) -> None:
    found = stream(local, batch_size=50)
    assert str(found.explain()).endswith(str(found.tuning))
