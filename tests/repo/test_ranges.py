from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects.cache import DiskCache
from tensorrepo.repo.objects.envelope import CheckedSpan, Kind, ObjectLink, read_spans
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.ranges import join_ranges, split_range
from tests.support.builders.objects import MemoryObjects

RANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300)), max_size=30)
DATA = np.random.default_rng(1).integers(0, 256, 300_000, "u1").tobytes()
SPANS = st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 90_000)), max_size=12)


def span(start: int, stop: int) -> CheckedSpan:
    return CheckedSpan(start, stop, content_tag(DATA[start:stop]))


class CountingStore(ObjectStore):
    """Counts the ranges that are asked of the backend."""

    def __init__(self, backend: Any, cache: DiskCache | None = None) -> None:
        super().__init__(backend, cache=cache)
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Any:
        self.ranges.append((start, stop))
        return super().read_range(link, start, stop)


def a_store(cache: DiskCache | None = None) -> tuple[CountingStore, ObjectLink]:
    backend = MemoryBackend("memory://spans")
    writer = ObjectWriter(ObjectStore(backend), ())
    link = writer.put(Kind.PACK, DATA)
    writer.flush()
    return CountingStore(backend, cache), link


@given(SPANS)
def test_every_span_is_what_lies_there(places: list[tuple[int, int]]) -> None:
    store, link = a_store()
    spans = [span(start, min(start + size, len(DATA))) for start, size in places]
    assert [bytes(data) for data in store.read_spans(link, spans)] == [
        DATA[one.start : one.stop] for one in spans
    ]


def test_spans_side_by_side_are_one_request() -> None:
    store, link = a_store()
    store.read_spans(link, [span(at, at + 1000) for at in range(0, 20_000, 1000)])
    assert store.ranges == [(0, 20_000)]


def test_a_small_gap_is_read_along_and_a_large_one_is_not() -> None:
    store, link = a_store()
    store.read_spans(link, [span(0, 10), span(60_000, 60_010), span(200_000, 200_010)])
    assert store.ranges == [(0, 60_010), (200_000, 200_010)]


@given(RANGES, st.integers(0, 200), st.integers(1, 1000))
def test_every_range_lies_in_the_one_joined_range_that_names_it(
    sizes: list[tuple[int, int]], gap: int, most: int
) -> None:
    ranges = [(start, start + size) for start, size in sizes]
    joined = join_ranges(ranges, gap_bytes=gap, most_bytes=most)
    assert sorted(at for one in joined for at in one.members) == list(range(len(ranges)))
    assert all(
        one.start <= ranges[at][0] and ranges[at][1] <= one.stop
        for one in joined
        for at in one.members
    )
    assert all(one.stop - one.start <= most or (one.start, one.stop) in ranges for one in joined)
    assert [one.start for one in joined] == sorted(one.start for one in joined)


def test_near_ranges_are_joined_and_far_ones_are_not() -> None:
    joined = join_ranges([(500, 510), (0, 100), (110, 120)], gap_bytes=50)
    assert joined == [(0, 120, [1, 2]), (500, 510, [0])]


def test_joined_ranges_are_bounded() -> None:
    joined = join_ranges([(at, at + 10) for at in range(0, 100, 10)], most_bytes=30)
    assert [one.members for one in joined] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_range_that_is_larger_than_a_request_is_read_alone() -> None:
    joined = join_ranges([(0, 100), (100, 110)], most_bytes=30)
    assert [one.members for one in joined] == [[0], [1]]


@given(st.integers(0, 10_000), st.integers(0, 5000), st.integers(1, 700))
def test_a_large_range_is_split_without_a_gap(start: int, size: int, most: int) -> None:
    parts = split_range(start, start + size, most)
    assert all(0 < stop - begin <= most for begin, stop in parts)
    assert [stop for _, stop in parts[:-1]] == [begin for begin, _ in parts[1:]]
    assert sum(stop - begin for begin, stop in parts) == size


def test_each_span_is_cached_by_itself(tmp_path: Path) -> None:
    store, link = a_store(DiskCache(tmp_path, 1 << 20))
    store.read_spans(link, [span(0, 1000), span(1000, 2000)])
    store.ranges.clear()
    assert bytes(store.read_checked(link, *span(1000, 2000))) == DATA[1000:2000]
    store.read_spans(link, [span(0, 1000), span(2000, 3000)])
    assert store.ranges == [(2000, 3000)]


def test_a_span_of_other_bytes_is_damage() -> None:
    store, link = a_store()
    with pytest.raises(CorruptError, match="1000 to 2000"):
        store.read_spans(link, [span(0, 1000), CheckedSpan(1000, 2000, bytes(16))])


def test_a_source_that_cannot_join_is_asked_for_each() -> None:
    objects = MemoryObjects()
    link = objects.put(Kind.PACK, DATA)
    found = read_spans(objects, link, [span(0, 10), span(10, 20)])
    assert b"".join(map(bytes, found)) == DATA[:20]
    assert len(objects.reads) == 2
