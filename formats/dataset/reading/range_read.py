"""Many byte ranges of chunks in one round of parallel requests.

Ranges that lie close together are read in one request, because a request costs more than the bytes
between them. The bytes are NOT verified here: the caller holds the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource
from tensorrepo.repo.ranges import GAP_BYTES, REQUEST_BYTES, join_ranges, split_range

RANGE_THREADS = 64  # with latency the number of requests in flight decides


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, stop)`` of the payload of chunk number `chunk` of a column."""

    chunk: int
    start: int
    stop: int


def fetch(
    objects: ObjectSource,
    chunks: Sequence[ObjectLink | memoryview | None],
    ranges: Sequence[ByteRange],
    gap_bytes: int = GAP_BYTES,
) -> list[memoryview]:
    """The bytes of each range, NOT verified, from as few requests as pay.

    Ranges come in any order; those with at most `gap_bytes` between them are read together.
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
    places_of: dict[int, list[int]] = {}
    for place, one in enumerate(ranges):
        if one.start < one.stop:
            places_of.setdefault(one.chunk, []).append(place)
    reads = []
    for chunk, places in sorted(places_of.items()):
        bounds = [(ranges[place].start, ranges[place].stop) for place in places]
        reads += [
            _Read(chunk, joined.start, joined.stop, [places[member] for member in joined.members])
            for joined in join_ranges(bounds, gap_bytes=gap_bytes)
        ]
    return reads


def _begin(
    threads: ThreadPoolExecutor,
    objects: ObjectSource,
    link: ObjectLink | memoryview | None,
    read: _Read,
) -> tuple[list[Future[Any]], NDArray[np.uint8] | None]:
    """The requests of one read; a large one is several, which fill the array given back."""
    assert isinstance(link, ObjectLink), "inline pages are in memory, others have a chunk"
    if read.stop - read.start <= REQUEST_BYTES:
        return [threads.submit(objects.read_range, link, read.start, read.stop)], None
    whole = np.empty(read.stop - read.start, np.uint8)
    parts = [
        threads.submit(
            objects.read_into, link, start, whole.data[start - read.start : stop - read.start]
        )
        for start, stop in split_range(read.start, read.stop)
    ]
    return parts, whole


__all__ = ["GAP_BYTES", "merge_ranges"]


def merge_ranges(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    gap_bytes: int = GAP_BYTES,
    most_bytes: int = REQUEST_BYTES,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Starts and stops of joined ranges, and for each range the number of the one that holds it."""
    bounds = list(zip(starts.tolist(), stops.tolist(), strict=True))
    joined = join_ranges(bounds, gap_bytes=gap_bytes, most_bytes=most_bytes)
    of = np.zeros(len(starts), np.int64)
    for number, one in enumerate(joined):
        of[one.members] = number
    edges = np.array([(one.start, one.stop) for one in joined], np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1], of
