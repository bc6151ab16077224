"""Prefetch of past commits from segments of the log.

Whoever walks back through history far from its store would wait for every single commit. The
segments of the log hold commits by the thousand, and short segments hold the newest: here they are
loaded as a walk gets to them, newest first.

Nothing here is needed for any answer. What is not found is read as any object is.

Source:
    docs/spec/log.md, section "Segment".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from tensorrepo.repo.errors import Error
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import RepositoryLog
from tensorrepo.repo.log.segments import Segment, SegmentCommit, read_segment, segment_length

LIMIT_BYTES: Final = 64 << 20
_FIRST_STEPS: Final = 4  # commits asked for before any segment is loaded
_RECORDS_PER_STEP: Final = 128  # and for each so many records in it, one more
_RECORDS_PER_NEAR_STEP: Final = 16  # where commits are near, to load one is work
_COMMIT_COST: Final = 400  # bytes that a commit takes in memory beside its own
_MAX_WASTED: Final = 16
_MAX_MISSED: Final = 1 << 14


class PastCommits:
    """Commits out of segments, verified. Thread-safe; holds up to `limit_bytes` of them."""

    def __init__(self, log: RepositoryLog, limit_bytes: int = LIMIT_BYTES) -> None:
        self._log = log
        self._limit_bytes = limit_bytes
        lengths, near = log.form.segment_lengths, log.backend.local_root is not None
        # On a local disk only long segments are written: to look for others costs time.
        self._lengths = (max(lengths),) if near else lengths
        self._per_step = _RECORDS_PER_NEAR_STEP if near else _RECORDS_PER_STEP
        self._lock = threading.Lock()
        self._commits: dict[Digest, SegmentCommit] = {}
        self._held: OrderedDict[int, Segment] = OrderedDict()  # by last generation
        self._bytes = 0
        self._dropped = False  # whether this descent let go of segments again
        self._top = 0  # generation of the log when the present descent began
        self._next = 0  # segments that end after this generation were tried in it
        self._steps = 0  # commits asked for since a segment was tried
        self._missed: set[Digest] = set()  # and found in none, since one was found
        self._wasted = 0  # segments tried in a row that had not what was asked for

    def get(self, digest: Digest) -> bytes | None:
        """All bytes of a commit object, None when no segment that is worth loading has it."""
        with self._lock:
            self._steps += 1
            if digest not in self._commits:
                self._search(digest)
            found = self._commits.get(digest)
            if found is None:
                return None
            self._wasted = 0
            self._missed.clear()
            return bytes(found.envelope)  # a view would keep the whole segment in memory

    def may_touch(self, digest: Digest, path: str) -> bool:
        """False only when a segment in memory says that the commit did not change `path`."""
        found = self._commits.get(digest)
        return found is None or found.may_touch(path)

    def _search(self, digest: Digest) -> None:
        """Load the next segment if it may have `digest`; more while the walk is found to be ahead.

        A segment that was no use doubles the steps to the next: commits that are in no segment
        (just made, or pushed by the thousand in one record) cost few vain requests.
        """
        if len(self._missed) >= _MAX_MISSED:
            self._missed.clear()
        self._missed.add(digest)
        behind = False
        while self._find_next() and (behind or self._is_worth_loading()):
            self._steps = 0
            loaded = self._load()
            if digest in loaded:
                return
            behind = not self._missed.isdisjoint(loaded)
            self._wasted = 0 if behind else min(self._wasted + 1, _MAX_WASTED)

    def _is_worth_loading(self) -> bool:
        """Whether the walk has taken so many steps that the next segment is likely to pay."""
        length = segment_length(self._next, self._lengths)
        steps = max(_FIRST_STEPS, length // self._per_step) << self._wasted
        return self._steps >= steps

    def _find_next(self) -> bool:
        """Point `_next` at the newest segment of this descent that was not tried."""
        shortest = min(self._lengths)
        newest = self._log.latest.generation if self._log.latest else 0
        # A longer log has newer segments; and at the end of a descent, some may have been dropped.
        if newest - self._top >= shortest or (self._next <= 0 and self._dropped):
            self._top = self._next = newest
            self._dropped = False
        self._next -= self._next % shortest
        while self._next in self._held:
            self._next = self._held[self._next].first - 1
        return self._next > 0

    def _load(self) -> set[Digest]:
        """Take in the segment that ends with record `_next`: its commits; none if it is no use."""
        last, self._next = self._next, self._next - 1
        try:
            segment = read_segment(self._log.slots, last, self._limit_bytes)
        except Error as error:
            self._log.report(f"skipping a segment: {error}")
            return set()
        if segment is None:
            # A store that lay on a disk has long ones alone: more short ones are hardly there.
            longer = [each for each in self._lengths if each > segment_length(last, self._lengths)]
            if longer:
                self._next = last - last % min(longer)
            return set()
        self._next = segment.first - 1
        self._held[last] = segment
        self._bytes += _cost(segment)
        self._commits.update((commit.digest, commit) for commit in segment.commits)
        while self._bytes > self._limit_bytes:
            self._drop()
        return {commit.digest for commit in segment.commits}

    def _drop(self) -> None:
        """Let go of the segment that was loaded first."""
        self._dropped = True
        _, segment = self._held.popitem(last=False)
        self._bytes -= _cost(segment)
        for commit in segment.commits:
            self._commits.pop(commit.digest, None)


def _cost(segment: Segment) -> int:
    """Bytes in memory: records, and commits whose views keep the whole segment."""
    records = sum(map(len, segment.records))
    commits = sum(len(commit.envelope) + len(commit.paths) for commit in segment.commits)
    return records + commits + _COMMIT_COST * len(segment.commits)
