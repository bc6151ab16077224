"""Opening of the repositories that are served: with nothing outside of them allowed.

A repository's links and adopted files may name ``file:///etc/...`` or an address of the network.
The service reads nobody's addresses: whatever its user's configuration says, nothing is allowed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from tensorrepo.formats.dataset.external.outside import Nothing
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes.repository import (
    IDENTITY_KEY,
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.errors import Error
from tensorrepo.repo.history.merge_trees import Drivers
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.cache import DiskCache
from tensorrepo.repo.objects.envelope import Kind

T = TypeVar("T")
FRESH_SECONDS: Final = 1.0  # in which writes past the service, to the bucket, are seen
_RENEW_SECONDS: Final = 0.4  # after which who asks has it read anew, and waits for nothing
_CACHE_BYTES: Final = 20 << 30


class ServedRepository:
    """One open repository of the service, and a view of it that is never older than a second.

    Thread-safe. The service's own writes are in the view as soon as they are in the log. While
    somebody asks, the log is read ahead of need: else each second all would wait for the store.
    """

    def __init__(
        self,
        name: str,
        core: RepositoryCore,
        *,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.core = name, core
        self._timer = timer
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._renewing = threading.Lock()  # held while a thread of its own reads the log
        self._kept: dict[object, Any] = {}
        self._making = threading.Lock()  # not the one above: a store may give no answer for long

    @property
    def known_view(self) -> LogView | None:
        """The view, where it needs no reading: for who must not wait. None: `view` reads."""
        age = self._timer() - self._read_at
        if age >= FRESH_SECONDS:
            return None
        if age >= _RENEW_SECONDS and self._renewing.acquire(blocking=False):
            thread = threading.Thread(target=self._renew, name=f"renew-{self.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there can be no more threads now: who needs it reads
                self._renewing.release()
        return self.core.log.latest

    @property
    def view(self) -> LogView:
        """The repository as it was at most a second ago, its own writes included."""
        known = self.known_view
        if known is not None:
            return known
        with self._lock:  # one reads, the others wait for what it read
            known = self.known_view
            return self._read() if known is None else known

    def _read(self) -> LogView:
        at = self._timer()
        found = self.core.log.refresh()
        self._read_at = max(self._read_at, at)
        return found

    def _renew(self) -> None:
        try:
            with suppress(Error):  # who needs it asks again, and is told
                self._read()
        finally:
            self._renewing.release()

    def kept(self, make: Callable[[ServedRepository], T]) -> T:
        """What `make` makes for this repository, made once in this process."""
        known: T | None = self._kept.get(make)
        if known is None:
            with self._making:
                known = self._kept.get(make)
                if known is None:
                    known = self._kept[make] = make(self)
        return known


def erase(url: str, *, environment: Mapping[str, str]) -> None:
    """Delete all that a repository at `url` has stored, its identity first."""
    backend = open_backend(url, environment=environment)
    try:
        backend.delete(IDENTITY_KEY)
        for stored in backend.list(""):
            backend.delete(stored.key)
    finally:
        backend.close()


def drivers() -> Drivers:
    """How the service merges: with nothing outside of the repository."""
    return {Kind.DATASET: DatasetMergeDriver(Nothing()), Kind.MODEL: ModelMergeDriver()}


def open_served(
    url: str, *, data: Path, environment: Mapping[str, str], create: bool = False
) -> RepositoryCore:
    """Open the repository at `url`, or make it.

    Args:
        url: where it is.
        data: the service's own folder.
        environment: credentials and endpoints of stores.
        create: whether to make one, which must not exist.
    """
    backend = open_backend(url, environment=environment)
    # No notes of appends whose outcome is unknown: clients keep those of their transactions, and
    # ask the log. Here nobody would read them.
    local = LocalState(cache=DiskCache(data / "cache" / "objects", _CACHE_BYTES))
    if create:
        return create_repository(backend, drivers=drivers(), local=local)
    return open_repository(backend, drivers=drivers(), local=local)
