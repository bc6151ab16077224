"""Writer of live runs: puts points from the service's database into the runs of repositories.

    POST points -> database (durable) -> this thread, at most every 60 s or 65,536 points -> run

The commit that writes a run says up to which id of which database it has points: a process that
dies behind the commit and before it notes so in the database counts none twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from tensorrepo.api.live.store import LivePoints, LiveRunRow, PendingPoints, RunKey
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.formats.runs.metrics import CHUNK_POINTS, Logbook, MetricPoints, joined
from tensorrepo.formats.runs.run_record import RUNNING, RunDocument
from tensorrepo.formats.runs.stored_run import (
    StoredRun,
    read_run,
    ref_of_record,
    store_run,
    stored_points,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, Error, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import MetadataValue, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView

WRITE_SECONDS: Final = 60.0
STALE_SECONDS: Final = 900  # in which a run is heard of, or is stale
_RENEW_SECONDS: Final = 600.0  # a run without points is written anew while it is heard of
_LOOK_SECONDS: Final = 5.0
_SWEEP_SECONDS: Final = 60.0
_CLAIM_TRIES: Final = 50
_CLAIM_PAUSE_SECONDS: Final = 0.1
_LIVE: Final = "live"  # key of the metadata of a run's commit
_NS: Final = 10**9
_LOGGER = logging.getLogger(__name__)

Change = Callable[[RunDocument], RunDocument]


@dataclass(frozen=True, slots=True, eq=False)
class OverlaidRun(StoredRun):
    """A run with the points that are not in its repository yet."""

    pending: Mapping[str, MetricPoints]

    def points(self, metric: str) -> MetricPoints:
        """All points of a metric, in the order in which they were logged."""
        stored = StoredRun.points(self, metric)
        waiting = self.pending.get(metric)
        if waiting is None:
            return stored
        return joined({metric: stored}, {metric: waiting})[metric]


class LiveWriter:
    """Writes live runs to their repositories, by a thread of its own and on request."""

    def __init__(
        self,
        points: LivePoints,
        directory: Directory,
        *,
        clock: Callable[[], int] = time.time_ns,
        write_seconds: float = WRITE_SECONDS,
        most_points: int = CHUNK_POINTS,
    ) -> None:
        self._points, self._directory, self._clock = points, directory, clock
        self._write_seconds, self._most_points = write_seconds, most_points
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write what is due; once in a process."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="live-runs", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop. Points that wait are durable, and written when a service runs again."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def added(self, waiting: int) -> None:
        """So many points of a run wait now."""
        if waiting >= self._most_points:
            self._wake.set()

    def write(
        self, key: RunKey, change: Change | None = None, *, author: str | None = None
    ) -> StoredRun:
        """Write a run now, with all points that wait.

        Args:
            key: the run.
            change: what else is to be changed of the document.
            author: author of the commit; None: who began the run.

        Raises:
            NotFoundError: the run is gone.
            ConflictError: others write it, or took it over.
        """
        for _ in range(_CLAIM_TRIES):
            if self._points.claim(key):
                break
            time.sleep(_CLAIM_PAUSE_SECONDS)
        else:
            raise ConflictError(f"run {key.run!r} is being written: repeat this in a moment")
        try:
            return self._write_claimed(key, change, author)
        except BaseException:
            self._points.release(key)
            raise

    def is_due(self, row: LiveRunRow, now_ns: int) -> bool:
        """Whether a run is to be written now."""
        since = (now_ns - row.written_ns) / _NS
        if row.waiting:
            return since >= self._write_seconds or row.waiting >= self._most_points
        return since >= _RENEW_SECONDS and row.touched_ns > row.written_ns

    def _run(self) -> None:
        swept_at = time.monotonic()
        while not self._ended.is_set():
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            if self._ended.is_set():
                return
            try:
                for row in self._points.going_on():
                    if self.is_due(row, self._clock()):
                        self._tried(row.key)
                if time.monotonic() - swept_at >= _SWEEP_SECONDS:
                    self._points.sweep()
                    swept_at = time.monotonic()
            except Error as error:  # the database does not answer: the next turn may
                _LOGGER.warning("live runs: %s", error)
            except Exception:  # whatever it is, the next turn is taken: nobody starts this again
                _LOGGER.exception("live runs")

    def _tried(self, key: RunKey) -> None:
        try:
            self.write(key)
        except NotFoundError as error:
            if not self._is_served(key.repository):
                return  # it was deleted: points wait until it comes back, or is erased with them
            _LOGGER.warning("live run %s of %s is gone: %s", key.run, key.repository, error)
            self._points.forget(key)
        except Exception:  # the thread lives on; points wait, and are tried again
            _LOGGER.exception("live run %s of %s was not written", key.run, key.repository)

    def _is_served(self, repository: str) -> bool:
        try:
            self._directory.find(repository)
        except NotFoundError:
            return False
        return True

    def _write_claimed(self, key: RunKey, change: Change | None, author: str | None) -> StoredRun:
        row = self._points.find(key)
        if row is None:
            raise NotFoundError(f"run {key.run!r} does not go on in {key.repository}")
        core = self._directory.open(key.repository).core
        ref = ref_of_record(key.run)
        commit = core.log.refresh().state.refs.get(ref)
        if commit is None:
            raise NotFoundError(f"there is no run {key.run!r} in {key.repository}")
        stored = read_run(core, commit, key.run)
        pending = self._points.pending(key, self.done(core, commit, row.done_id))
        document, points = _with_points(stored.document, pending)
        now = self._clock()
        document = msgspec.structs.replace(
            document, written_ns=now, due_ns=now + STALE_SECONDS * _NS
        )
        if change is not None:
            document = change(document)

        def refuse(view: LogView) -> None:
            if view.state.refs.get(ref) != commit:
                raise ConflictError(f"run {key.run!r} was changed meanwhile: repeat this")

        before = stored_points(core.objects, stored.document)
        told: dict[str, MetadataValue] = {
            _LIVE: {"service": self._points.identity, "last": pending.last_id}
        }
        made, document, _ = store_run(
            core,
            document,
            replace(before, held=joined(before.held, points)),
            author=author or row.author,
            refuse=refuse,
            metadata=told,
        )
        self._points.written(key, pending.last_id, ended=document.status != RUNNING)
        return StoredRun(core, made.digest, document)

    def done(self, core: RepositoryCore, commit: Digest, noted: int) -> int:
        """Id up to which a run's commit has points; `noted` is what the database knows of it."""
        told: Any = read_commit(core.objects, commit).metadata.get(_LIVE)
        if isinstance(told, dict) and told.get("service") == self._points.identity:
            last = told.get("last")
            return last if isinstance(last, int) else noted
        return noted

    def overlaid(self, run: StoredRun, repository: str) -> StoredRun:
        """A run with the points that wait, if it goes on here."""
        if run.status != RUNNING:
            return run
        row = self._points.find(RunKey(repository, run.name))
        if row is None:
            return run
        after = self.done(run.core, run.commit, row.done_id)
        pending = self._points.pending(row.key, after)
        document, points = _with_points(run.document, pending)
        alive = max(document.due_ns, row.touched_ns + STALE_SECONDS * _NS)
        document = msgspec.structs.replace(document, due_ns=alive)
        return OverlaidRun(run.core, run.commit, document, points)


def _with_points(
    document: RunDocument, pending: PendingPoints
) -> tuple[RunDocument, dict[str, MetricPoints]]:
    """The document with what became of its metrics, and the points that it counts."""
    logbook = Logbook(document.metrics)
    for name, points in pending.points.items():
        rows = zip(
            points.steps.tolist(), points.values.tolist(), points.times_ms.tolist(), strict=True
        )
        try:
            for step, value, time_ms in rows:
                logbook.add({name: value}, step, time_ms)
        except InvalidInputError as error:  # more metrics than a run has, by several processes
            _LOGGER.warning("run %s: metric %r is left out: %s", document.name, name, error)
    taken = logbook.take()
    return msgspec.structs.replace(document, metrics=taken.metrics), dict(taken.points)
