from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.cache import DiskCache
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import content_tag
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.spans import Span, joined, read_spans
from tensorrepo.repo.store import ObjectStore
from tensorrepo.repo.writer import ObjectWriter
from tests.support.objects import MemoryObjects

if TYPE_CHECKING:
    from pathlib import Path

    from tensorrepo.repo.objects import Link

DATA = np.random.default_rng(1).integers(0, 256, 300_000, "u1").tobytes()
SPANS = st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 90_000)), max_size=12)


def span(start: int, stop: int) -> Span:
    return Span(start, stop, content_tag(DATA[start:stop]))


class CountingStore(ObjectStore):
    """Counts the ranges that are asked of the backend."""

    def __init__(self, backend: Any, cache: DiskCache | None = None) -> None:
        super().__init__(backend, cache=cache)
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, link: Link, start: int, stop: int) -> Any:
        self.ranges.append((start, stop))
        return super().read_range(link, start, stop)


def a_store(cache: DiskCache | None = None) -> tuple[CountingStore, Link]:
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


def test_requests_are_bounded() -> None:
    runs = joined([Span(at, at + 10, b"") for at in range(0, 100, 10)], most_bytes=30)
    assert [[one.start for one in run] for run in runs] == [
        [0, 10, 20], [30, 40, 50], [60, 70, 80], [90]
    ]  # fmt: skip


def test_a_span_that_is_larger_than_a_request_is_read_alone() -> None:
    runs = joined([Span(0, 100, b""), Span(100, 110, b"")], most_bytes=30)
    assert [len(run) for run in runs] == [1, 1]


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
        store.read_spans(link, [span(0, 1000), Span(1000, 2000, bytes(16))])


def test_a_source_that_cannot_join_is_asked_for_each() -> None:
    objects = MemoryObjects()
    link = objects.put(Kind.PACK, DATA)
    found = read_spans(objects, link, [span(0, 10), span(10, 20)])
    assert b"".join(map(bytes, found)) == DATA[:20]
    assert len(objects.reads) == 2
