"""Read-ahead over the end of an epoch: the next one is planned, its first runs are on their way.

When all that is left of an epoch is read or being read, the link has nothing to do until the next
epoch begins: it would then plan, ask a store for the first pages, and wait for them. So a thread
plans the next epoch by then, and expects the runs of its first steps; no more is loaded than a
stream may load ahead, and nothing is gathered. Whoever begins that epoch goes on from there. Order
and positions do not know of it: it is the reading that the epoch would have begun with anyway.

    last runs of epoch e loaded -> plan e + 1, expect its first runs | the loop ends | e + 1 begins
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, current_thread
from typing import Any, Final, NamedTuple

from tensorrepo.formats.dataset.streaming.collate.assemble import BatchReading
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.repo.threads import JOIN_SECONDS

Key = tuple[Any, ...]  # what reading depends on: data and their order, the epoch, and the share
_NAME: Final = "tensorrepo-next-epoch"


class EpochReading(NamedTuple):
    """The reading of an epoch, and the statistics that it counts in."""

    reading: BatchReading
    stats: StreamStats


class NextEpoch:
    """At most one epoch that is prepared. Thread-safe."""

    def __init__(self) -> None:
        """With none."""
        self._lock = Lock()
        self._prepared: _Prepared | None = None

    def prepare(self, key: Key, make: Callable[[], EpochReading]) -> None:
        """Begin with the epoch of `key`, whose reading `make` gives, unless one is prepared."""
        with self._lock:
            if self._prepared is None:
                self._prepared = _Prepared(key, make)

    def take(self, key: Key) -> EpochReading | None:
        """The reading of `key`, if it was prepared; one of anything else is closed."""
        with self._lock:
            prepared, self._prepared = self._prepared, None
        if prepared is None:
            return None
        if prepared.key == key:
            return prepared.take()
        prepared.close()
        return None

    def close(self) -> None:
        """Let go of what is prepared."""
        self.take(())


class _Prepared:
    """One epoch on its way, prepared by a thread of its own."""

    def __init__(self, key: Key, make: Callable[[], EpochReading]) -> None:
        self.key = key
        self._make: Callable[[], EpochReading] | None = make
        self._made: EpochReading | None = None
        self._closed = False
        self._lock = Lock()
        self._thread = Thread(target=self._prepare, name=_NAME, daemon=True)
        self._thread.start()

    def take(self) -> EpochReading | None:
        """The reading, as soon as it expects its first runs; None: that failed.

        Whatever failed, the epoch meets again when it begins, and says so.
        """
        self._thread.join()
        return self._made

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._made is not None:
                self._made.reading.stop()
        # The thread itself may be the last to let go of the stream: then it has begun nothing yet.
        if current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            if self._made is not None:
                self._made.reading.groups.close()

    def _prepare(self) -> None:
        make, self._make = self._make, None
        assert make is not None, "it is called once"
        with suppress(Exception):
            made = make()
            del make  # it may hold the stream
            with self._lock:
                if self._closed:
                    return
                self._made = made
            try:
                next(made.reading.groups, None)  # expects the first runs, and gives nothing yet
            except BaseException:
                self._made = None
                raise
