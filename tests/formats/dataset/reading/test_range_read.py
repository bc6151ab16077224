"""Ranges come in few requests of bounded size, whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.pages.tile_io import ByteRange
from tensorrepo.formats.dataset.reading.range_read import fetch
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.ranges import REQUEST_BYTES
from tests.support.builders.objects import MemoryObjects


def test_ranges_of_several_chunks_are_given_in_the_order_asked_for() -> None:
    objects = MemoryObjects()
    data = [np.random.default_rng(seed).bytes(300_000) for seed in range(2)]
    links = [objects.put(Kind.CHUNK, each) for each in data]
    wanted = [(1, 250_000, 250_100), (0, 7, 9), (1, 0, 10), (1, 10, 20), (0, 5, 5), (0, 8, 200)]
    found = fetch(objects, links, [ByteRange(*each) for each in wanted])
    assert found == [data[chunk][start:stop] for chunk, start, stop in wanted]
    assert len(objects.reads) == 3


def test_ranges_apart_are_read_apart_where_nothing_may_be_wasted() -> None:
    objects = MemoryObjects()
    link = objects.put(Kind.CHUNK, bytes(1000))
    fetch(objects, [link], [ByteRange(0, 0, 10), ByteRange(0, 11, 20)], gap_bytes=0)
    assert sorted((start, stop) for _, start, stop in objects.reads) == [(0, 10), (11, 20)]


def test_a_large_range_is_read_in_parts_side_by_side() -> None:
    class Parts(MemoryObjects):
        def read_into(self, link: Any, start: int, buffer: memoryview) -> None:
            assert buffer.nbytes <= REQUEST_BYTES
            super().read_into(link, start, buffer)

    objects = Parts()
    data = np.random.default_rng(0).bytes(2 * REQUEST_BYTES + 100)
    link = objects.put(Kind.CHUNK, data)
    wanted = [ByteRange(0, 7, 2 * REQUEST_BYTES + 90), ByteRange(0, 0, 0), ByteRange(0, 3, 9)]
    found = fetch(objects, [link], wanted)
    assert found[0] == data[7 : 2 * REQUEST_BYTES + 90]
    assert found[1:] == [b"", data[3:9]]
    assert len(objects.reads) == 4


def test_a_range_cut_short_is_corrupt_and_ends_the_round() -> None:
    class Short(MemoryObjects):
        def read_range(self, link: Any, start: int, stop: int) -> Any:
            return super().read_range(link, start, stop - 1)

    objects = Short()
    link = objects.put(Kind.CHUNK, bytes(1000))
    with pytest.raises(CorruptError, match="expected 10 bytes of a chunk, got 9"):
        fetch(objects, [link], [ByteRange(0, 0, 10)])
