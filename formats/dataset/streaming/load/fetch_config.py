"""Configuration of downloads: how a store is read, how often, how many requests at once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.streaming.load.requests import RequestLimits
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource, ReadsOnce

if TYPE_CHECKING:
    from tensorrepo.repo.objects.cache import PageDiskCache

TRIES = 8  # of a request, when the store fails for a moment
BOUNDS = RequestLimits(start=32, least=2, most=128)
_LEAST_LOCAL_THREADS = 4  # some wait for the cache's disk


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """What downloads work with.

    Attributes:
        read: payload bytes ``[start, stop)`` of a chunk, not proved, by one request.
        tries: how often a request is made when the store fails for a moment.
        cache: of pages on this machine's disk.
        bounds: of the number of requests in flight.
        local_threads: how many look into the cache and decode at once.
        clock: seconds.
        chance: numbers in [0, 1), by which pauses differ.
    """

    read: Callable[[ObjectLink, int, int], Buffer]
    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    tries: int = TRIES
    cache: PageDiskCache | None = None
    bounds: RequestLimits = BOUNDS
    local_threads: int = _LEAST_LOCAL_THREADS


def means_of(
    objects: ObjectSource | ReadsOnce,
    *,
    clock: Callable[[], float],
    cache: PageDiskCache | None = None,
    threads: int | None = None,
) -> FetchConfig:
    """The usual means to read `objects`, with at most `threads` requests in flight."""
    # A source that repeats by itself is asked once: the tries would multiply.
    once = isinstance(objects, ReadsOnce)
    most = threads or BOUNDS.most
    return FetchConfig(
        read=objects.read_once if isinstance(objects, ReadsOnce) else objects.read_range,
        clock=clock,
        tries=TRIES if once else 1,
        cache=cache,
        bounds=RequestLimits(min(BOUNDS.start, most), min(BOUNDS.least, most), most),
        local_threads=max(_LEAST_LOCAL_THREADS, os.cpu_count() or 1),
    )
