"""Which pages of a stream are worth keeping on this machine's disk?

An epoch reads every page once, so no policy can hit more often than the share of the pages that the
cache holds, and one that lets go of a page before its next use hits less: the least recently used
go just before they would be read again. So a fixed part is kept. Every page has a number in [0, 1)
made of its name, and pages below a threshold are kept: what the stream reads, times the threshold,
fits the limit. Nothing needs to be agreed upon. Processes that stream the same data choose the same
pages, and those that stream several datasets through one folder meet at a common threshold: when
there is too much, the pages with the highest numbers go, whoever brought them, and are not taken
again. Only what nobody has used for days goes before them.
"""

from __future__ import annotations

import os
import random
import re
import time
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from tensorrepo.repo.cache import DiskCache, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tensorrepo.repo.ids import Buffer

# Chunk, payload bytes, and the tag that proved them. Pages kept before tags were in names have
# none: nobody asks for those any more, and they go like others.
_PAGE_NAME = re.compile(r"[0-9a-f]{64}\.\d{1,20}-\d{1,20}(\.[0-9a-f]{32})?")
_SURE = 1.1  # times the limit is admitted, so that chance does not leave room; eviction cuts it
_FORGOTTEN_SECONDS = 2 * 86400.0  # longer than nearly every epoch
_CUT_SECONDS = 3600.0  # a threshold learned by evicting holds for so long
_SPARE = 0.05  # of the disk is left to others


class PageCache(DiskCache):
    """A `DiskCache` that keeps a fixed part of what is streamed.

    Args:
        root: a folder of its own.
        limit_bytes: how much of the disk it may take.
        wanted_bytes: what all readers of one stream read in an epoch; None: everything is taken
            that may stay.
        clock: seconds since the epoch.
        chance: numbers in [0, 1).
        spare: share of the disk that must stay free.
    """

    _kept = 0.95
    _names = _PAGE_NAME

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        *,
        wanted_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        spare: float = _SPARE,
    ) -> None:
        super().__init__(root, limit_bytes, clock=clock, chance=chance)
        self._spare = spare
        self._threshold = _SURE * limit_bytes / wanted_bytes if wanted_bytes else 1.0
        self._cut, self._cut_until = 1.0, 0.0

    def for_stream(self, wanted_bytes: int) -> PageCache:
        """The same folder, for a stream that reads so many bytes an epoch."""
        return PageCache(
            self.root,
            self.limit_bytes,
            wanted_bytes=wanted_bytes,
            clock=self._clock,
            chance=self._chance,
            spare=self._spare,
        )

    def admits(self, name: str) -> bool:
        """Whether a page is one of those that are kept."""
        cut = self._cut if self._clock() < self._cut_until else 1.0
        return _number(name) < min(self._threshold, cut)

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        if self.admits(name) and not self._is_full():
            super().put(name, parts)

    def evict(self) -> list[Stored]:
        gone = super().evict()
        now = self._clock()
        numbers = [_number(file.name) for file in gone if not self._is_forgotten(file, now)]
        if numbers:
            self._cut, self._cut_until = min(numbers), now + _CUT_SECONDS
        return gone

    def _worth(self, file: Stored, now: float) -> tuple[float, float]:
        if self._is_forgotten(file, now):
            return (0.0, file.used)
        return (1.0, -_number(file.name))

    def _is_forgotten(self, file: Stored, now: float) -> bool:
        return now - file.used > _FORGOTTEN_SECONDS

    def _is_full(self) -> bool:
        """Whether others need the rest of the disk more."""
        try:
            disk = os.statvfs(self.root)
        except OSError:
            return False  # the folder is not there yet
        return disk.f_bavail < self._spare * disk.f_blocks


def _number(name: str) -> float:
    """In [0, 1), evenly spread and the same everywhere."""
    return xxh3_64_intdigest(name.encode()) / 2**64
