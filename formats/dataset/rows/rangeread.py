"""Many byte ranges of chunks in one round of parallel requests.

They are NOT verified here: the caller holds the sums.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.rows.ranges import GAP_BYTES, MOST_BYTES, merge_ranges, split_range
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.repo.objects import ObjectSource

RANGE_THREADS = 64  # with latency the number of requests in flight decides


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, stop)`` of the payload of chunk number `chunk` of a column."""

    chunk: int
    start: int
    stop: int


def fetch(
    objects: ObjectSource,
    chunks: Sequence[Link | memoryview | None],
    ranges: Sequence[ByteRange],
    gap_bytes: int = GAP_BYTES,
) -> list[memoryview]:
    """The bytes of each range, NOT verified, from as few requests as pay.

    Args:
        objects: where the chunks are.
        chunks: of the column; those of `ranges` are links.
        ranges: in any order; empty ones are not asked for.
        gap_bytes: ranges with fewer bytes between them are read together.
    """
    data = [memoryview(b"")] * len(ranges)
    reads = _plan_reads(ranges, gap_bytes)
    threads = ThreadPoolExecutor(min(RANGE_THREADS, max(1, len(reads))), "range")
    try:
        begun = [_begin(threads, objects, chunks[read.chunk], read) for read in reads]
        for read, (parts, whole) in zip(reads, begun, strict=True):
            view = _finish(read, parts, whole)
            for place in read.places:
                one = ranges[place]
                data[place] = view[one.start - read.start : one.stop - read.start]
    finally:
        threads.shutdown(cancel_futures=True)  # after a failure the others need not begin
    return data


def _finish(
    read: _Read, parts: Sequence[Future[Any]], whole: NDArray[np.uint8] | None
) -> memoryview:
    results = [part.result() for part in parts]
    view = memoryview(results[0]) if whole is None else whole.data
    if view.nbytes != read.stop - read.start:
        raise CorruptError(f"expected {read.stop - read.start} bytes of a chunk, got {view.nbytes}")
    return view


@dataclass(frozen=True, slots=True)
class _Read:
    """One merged range, and the places of those that lie in it."""

    chunk: int
    start: int
    stop: int
    places: list[int]


def _plan_reads(ranges: Sequence[ByteRange], gap_bytes: int) -> list[_Read]:
    reads = []
    fields = [(each.chunk, each.start, each.stop) for each in ranges]
    table = np.array(fields, np.int64).reshape(-1, 3)
    filled = table[:, 1] < table[:, 2]
    for chunk in np.unique(table[filled, 0]).tolist():
        places = np.flatnonzero(filled & (table[:, 0] == chunk))
        begins, ends, of = merge_ranges(table[places, 1], table[places, 2], gap_bytes=gap_bytes)
        groups: list[list[int]] = [[] for _ in begins]
        for place, group in zip(places.tolist(), of.tolist(), strict=True):
            groups[group].append(place)
        reads += [
            _Read(chunk, begin, end, group)
            for begin, end, group in zip(begins.tolist(), ends.tolist(), groups, strict=True)
        ]
    return reads


def _begin(
    threads: ThreadPoolExecutor,
    objects: ObjectSource,
    link: Link | memoryview | None,
    read: _Read,
) -> tuple[list[Future[Any]], NDArray[np.uint8] | None]:
    """The requests of one read; a large one is several, which fill the array given back."""
    assert isinstance(link, Link), "inline pages are in memory, others have a chunk"
    if read.stop - read.start <= MOST_BYTES:
        return [threads.submit(objects.read_range, link, read.start, read.stop)], None
    whole = np.empty(read.stop - read.start, np.uint8)
    parts = [
        threads.submit(
            objects.read_into, link, start, whole.data[start - read.start : stop - read.start]
        )
        for start, stop in split_range(read.start, read.stop)
    ]
    return parts, whole
