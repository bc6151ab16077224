"""Read-ahead over the end of an epoch: the same rows, begun earlier, and nothing that stays."""

from __future__ import annotations

import threading
import time
from itertools import chain
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    MappedObjects,
    lasting_stream_threads,
    row_numbers,
    stream,
)
from tests.support.effort import sampled_product

ROWS = 600
SCHEMA = Schema((Column("x", Tensor("float32", (1024,))),))
ROW_LIST = [{"x": np.full(1024, at, "f4")} for at in range(ROWS)]
AHEAD = "tensorrepo-next-epoch"


def dataset(objects: MemoryObjects) -> StoredDataset:
    return stored(objects, SCHEMA, [ROW_LIST], page_bytes=64 << 10)


def opened(objects: MemoryObjects, **options: Any) -> BatchStream:
    return stream(dataset(objects), **({"batch_size": 32, "window": 600_000} | options))


def waited_for(condition: Any) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def test_the_next_epoch_is_on_its_way_when_this_one_ends() -> None:
    objects = MemoryObjects()
    found = opened(objects, next_epoch=True)
    list(found)
    assert waited_for(lambda: len(objects.reads) > 40)  # 38 pages, and some of the next epoch
    objects.reads.clear()
    first = next(iter(found))
    assert found.epoch == 1
    assert len(first.rows) == 32
    found.close()
    assert lasting_stream_threads() == []


@sampled_product(
    "objects,shuffle", [MemoryObjects, MappedObjects], ["pages", "buffer", "global", False], dev=3
)
def test_order_and_positions_are_those_of_epochs_read_alone(objects: Any, shuffle: Any) -> None:
    together = opened(objects(), next_epoch=True, shuffle=shuffle)
    alone = opened(objects(), next_epoch=False, shuffle=shuffle)
    for epoch in range(4):
        batches = list(together)
        alone.set_epoch(epoch)
        expected = list(alone)
        assert row_numbers(batches) == row_numbers(expected)
        assert [b.position for b in batches] == [b.position for b in expected]
        assert together.stats().rows == ROWS
        assert together.stats().runs == alone.stats().runs
    together.close()


def test_a_state_is_the_same_with_and_without() -> None:
    together, alone = (opened(MemoryObjects(), next_epoch=ahead) for ahead in (True, False))
    states = []
    for found in (together, alone):
        list(found)
        batches = iter(found)
        next(batches)
        states.append(found.state_dict())
        found.close()
    assert states[0] == states[1]
    resumed = opened(MemoryObjects(), next_epoch=True)
    resumed.load_state_dict(states[0])
    whole = opened(MemoryObjects(), next_epoch=False)
    whole.set_epoch(1)
    assert row_numbers(list(resumed)) == row_numbers(list(whole))[1:]
    assert row_numbers(list(resumed))  # epoch 2, which was begun before
    resumed.close()


def test_another_epoch_than_the_next_one_is_read_all_the_same() -> None:
    found, plain = opened(MemoryObjects(), next_epoch=True), opened(MemoryObjects())
    list(found)
    found.set_epoch(7)
    plain.set_epoch(7)
    assert row_numbers(list(found)) == row_numbers(list(plain))
    found.close()
    assert lasting_stream_threads() == []


def test_a_single_epoch_fetches_nothing_that_nobody_asked_for() -> None:
    objects = MemoryObjects()
    list(opened(objects))
    assert waited_for(lambda: lasting_stream_threads() == [])
    assert len(objects.reads) <= 38 + 2 + 4  # pages, hedged requests, and metadata


def test_by_itself_it_begins_with_the_second_epoch() -> None:
    objects = MemoryObjects()
    found = opened(objects)
    list(found)
    assert lasting_stream_threads() == []
    list(found)
    found.set_epoch(9)
    assert found._next_epoch._prepared is not None
    found.close()


def test_no_more_is_loaded_than_may_be_ahead() -> None:
    objects = MemoryObjects()
    page = 64 << 10
    found = opened(objects, next_epoch=True, ahead=4 * page)
    list(found)
    prepared = found._next_epoch
    assert waited_for(lambda: prepared._prepared is not None)
    time.sleep(0.2)
    begun = len(objects.reads) - 38
    assert begun <= 8
    found.close()


def test_a_dropped_stream_leaves_no_thread() -> None:
    found = opened(MemoryObjects(), next_epoch=True)
    list(found)
    del found
    assert waited_for(lambda: AHEAD not in {each.name for each in threading.enumerate()})
    assert lasting_stream_threads() == []


def test_what_fails_ahead_is_met_by_the_epoch_that_reads_it() -> None:
    objects = MemoryObjects()
    found = opened(objects, next_epoch=True)
    read, broken = objects.read_range, [False]

    def failing(link: Any, start: int, stop: int) -> Any:
        if broken[0]:
            raise OSError("gone")
        return read(link, start, stop)

    objects.read_range = failing  # type: ignore[method-assign]
    batches = iter(found)
    for _ in range(5):
        next(batches)
    broken[0] = True
    with pytest.raises(OSError, match="gone"):
        list(chain(batches, found))
    broken[0] = False
    found.set_epoch(1)
    assert len(list(found)) == 19
    found.close()
