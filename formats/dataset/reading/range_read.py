"""Many byte ranges of chunks in one round of parallel requests.

Ranges that lie close together are read in one request, because a request costs more than the bytes
between them. The bytes are NOT verified here: the caller holds the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.pages.tile_io import ByteRange
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource
from tensorrepo.repo.ranges import GAP_BYTES, REQUEST_BYTES, join_ranges, split_range
from tensorrepo.repo.threads import ordered_map

RANGE_THREADS = 64  # with latency the number of requests in flight decides


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
    requests = [(read, *part) for read in reads for part in split_range(read.start, read.stop)]

    def request(part: tuple[_Read, int, int]) -> memoryview:
        read, start, stop = part
        link = chunks[read.chunk]
        assert isinstance(link, ObjectLink), "inline pages are in memory, others have a chunk"
        if read.whole is None:
            return memoryview(objects.read_range(link, start, stop))
        objects.read_into(link, start, read.whole.data[start - read.start : stop - read.start])
        return read.whole.data

    threads = min(RANGE_THREADS, len(requests)) if len(requests) > 1 else 0
    views = ordered_map(requests, request, threads=threads, ahead=len(requests), name="range")
    for (read, _, _), view in zip(requests, views, strict=True):
        if view.nbytes != read.stop - read.start:
            raise CorruptError(
                f"expected {read.stop - read.start} bytes of a chunk, got {view.nbytes}"
            )
        for place in read.places:
            wanted = ranges[place]
            data[place] = view[wanted.start - read.start : wanted.stop - read.start]
    return data


@dataclass(frozen=True, slots=True)
class _Read:
    """One merged range, and the places of those that lie in it.

    One that takes several requests has an array for all of it, which they fill.
    """

    chunk: int
    start: int
    stop: int
    places: list[int]
    whole: NDArray[np.uint8] | None


def _plan_reads(ranges: Sequence[ByteRange], gap_bytes: int) -> list[_Read]:
    places_of: dict[int, list[int]] = {}
    for place, wanted in enumerate(ranges):
        if wanted.start < wanted.stop:
            places_of.setdefault(wanted.chunk, []).append(place)
    reads = []
    for chunk, places in sorted(places_of.items()):
        bounds = [(ranges[place].start, ranges[place].stop) for place in places]
        for start, stop, members in join_ranges(bounds, gap_bytes=gap_bytes):
            whole = np.empty(stop - start, np.uint8) if stop - start > REQUEST_BYTES else None
            reads.append(_Read(chunk, start, stop, [places[at] for at in members], whole))
    return reads
