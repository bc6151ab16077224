"""Housekeeping of a running service: what is to be forgotten some day, by a thread of its own.

Every hour: repositories that were deleted a fortnight ago are erased, uploads that nobody went on
with for as long are dropped, what was put into a store a day ago and not taken in, and what caches
keep of rows that were purged. Processes share it without words, for all of it may be done twice.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from tensorrepo.api.huggingface.upload_spool import UploadSpool
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.repo.backends.base import PART_PREFIX, Backend, KeepsParts, SignsRequests
from tensorrepo.repo.backends.disk import STALE_PART_SECONDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import DiskCache

EVERY_SECONDS: Final = 3600.0
INCOMING: Final = "incoming/"  # where clients put objects straight into a store
INCOMING_SECONDS: Final = 24 * 3600
UPLOADS: Final = "uploads"  # folder of unfinished uploads whose store has no place for them
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caches:
    """What is made of rows, and kept.

    Attributes:
        of_datasets: named by the digest of the dataset.
        of_columns: named by the content of a column.
    """

    of_datasets: DiskCache
    of_columns: DiskCache


class Housekeeping:
    """Does it again and again; `turn` does it once."""

    def __init__(
        self,
        directory: Directory,
        data: Path,
        caches: Caches,
        spool: UploadSpool,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._data, self._clock = directory, data, clock
        self._caches, self._spool = caches, spool
        self._purged: set[Digest] = set()  # what the caches have forgotten
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def turn(self) -> None:
        """Forget what is to be forgotten by now; what fails is logged, and holds up nothing."""
        for work in self._due():
            try:
                work()
            except Exception as error:  # noqa: BLE001  whatever it is, the next turn tries again
                _LOGGER.warning("housekeeping: %s", error)

    def _due(self) -> Iterator[Callable[[], object]]:
        """All that is to be done, what was promised first, what needs stores last."""
        yield self._forget_purged
        yield self._spool.expire
        backends = [core.backend for core in self._directory.opened()]
        own = [one.part_folder for one in backends if isinstance(one, KeepsParts)]
        for folder in (self._data / UPLOADS, *own):
            yield partial(self._drop_parts, folder)
        yield self._directory.expire
        for backend in backends:
            if isinstance(backend, SignsRequests):
                yield partial(self._drop_incoming, backend)

    def _forget_purged(self) -> None:
        """Drop what was made of rows that are purged by now."""
        views = [core.log.latest for core in self._directory.opened()]
        purged = {digest for view in views if view is not None for digest in view.state.purges}
        if purged <= self._purged:
            return
        self._caches.of_datasets.drop_objects(purged)
        # What they are named by does not tell which rows they are of.
        self._caches.of_columns.clear()
        self._purged |= purged

    def _drop_incoming(self, backend: Backend) -> None:
        before = self._clock() - INCOMING_SECONDS
        for stored in backend.list(INCOMING):
            if stored.modified_seconds is not None and stored.modified_seconds < before:
                backend.delete(stored.key)

    def _drop_parts(self, folder: Path) -> None:
        before = self._clock() - STALE_PART_SECONDS
        for part in folder.glob(f"{PART_PREFIX}*"):
            with suppress(OSError):
                if part.lstat().st_mtime < before:
                    _remove_unless_held(part)

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            self.turn()


def _remove_unless_held(part: Path) -> None:
    """Remove an unfinished upload, but for one that a request is at."""
    with closing(os.fdopen(os.open(part, os.O_RDONLY | os.O_NOFOLLOW))) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()
