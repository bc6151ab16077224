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
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from tensorrepo.api.huggingface.upload_spool import UploadSpool
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.repo.backends.base import PART_PREFIX, Backend, KeepsParts, SignsRequests
from tensorrepo.repo.backends.disk import STALE_PART_SECONDS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error
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
        """Forget what is to be forgotten by now."""
        self._directory.expire()
        for core in self._directory.opened():
            if isinstance(core.backend, SignsRequests):
                self._drop_incoming(core.backend)
        for folder in (self._data / UPLOADS, *self._part_folders()):
            self._drop_parts(folder)
        self._spool.expire()
        self._forget_purged()

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

    def _part_folders(self) -> list[Path]:
        backends = [core.backend for core in self._directory.opened()]
        return [one.part_folder for one in backends if isinstance(one, KeepsParts)]

    def _drop_parts(self, folder: Path) -> None:
        before = self._clock() - STALE_PART_SECONDS
        for part in folder.glob(f"{PART_PREFIX}*"):
            with suppress(OSError):
                if part.lstat().st_mtime < before:
                    _remove_unless_held(part)

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            try:
                self.turn()
            except (Error, OSError) as error:  # the next turn may do it
                _LOGGER.warning("housekeeping: %s", error)


def _remove_unless_held(part: Path) -> None:
    """Remove an unfinished upload, but for one that a request is at."""
    with closing(os.fdopen(os.open(part, os.O_RDONLY | os.O_NOFOLLOW))) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()
