"""How does a run's document reach the repository while the training goes on?

    log: append to arrays -> one thread, now and then: points, document, one record of the log

Points that were not stored stay, and are tried again. A write finds the run as this process left
it, or gives it up: so a run that somebody else went on with is not overwritten.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorrepo.atend import before_pools_end
from tensorrepo.formats.run.document import (
    RUNNING,
    Attempt,
    Metric,
    RunDocument,
    chunk_names,
    encode_run,
)
from tensorrepo.formats.run.logbook import Logbook, cut, joined
from tensorrepo.formats.run.points import CHUNK_POINTS, Points, decode_points, encode_points
from tensorrepo.repo.errors import ConflictError, Error, StorageError
from tensorrepo.repo.objects import Kind, encode_object
from tensorrepo.repo.series import begin_beside, commit_beside
from tensorrepo.repo.trees import Entry
from tensorrepo.repo.waiting import Waiting
from tensorrepo.runrecord import RUNS, read_record, ref_of_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.context import Context
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.objects import Link

FIRST_SECONDS: Final = 10.0  # between writes at first; later they come less often,
MOST_SECONDS: Final = 300.0  # so that a run of days leaves hundreds of records, and not many more
_AGE_SHARE: Final = 1 / 20
_GRACE_NS: Final = 60 * 10**9
MOST_WAITING: Final = 1 << 20  # points in memory, of 24 bytes
_NS: Final = 10**9
_MOST_ATTEMPTS: Final = 50


class RunWriter:
    """Writes one run. `log` may be called by any thread."""

    def __init__(
        self,
        context: Context,
        document: RunDocument,
        before: Digest | None,
        told: Callable[[], dict[str, Any]],
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Go on with `document`.

        Args:
            context: repository that it is written to.
            document: what to begin with; its last attempt is this one.
            before: the commit that holds the run now; None: it is a new one.
            told: gives the members of the document that have changed: inputs, outputs, params.
            clock: UTC in ns.
        """
        self.document = document
        self.logbook = Logbook(document.metrics)
        self._context = context
        self._before = before
        self._told = told
        self._clock = clock
        self._writing = threading.Lock()
        self._full, self._held = _kept(context, document)
        self._held_points = 0
        self._lock = threading.Lock()
        self._drained = Waiting()
        self._wake, self._ended = threading.Event(), False
        self._failure: Exception | None = None
        self._process = os.getpid()
        self._outcome: tuple[str, str | None] = (RUNNING, None)
        self._is_over = False
        self._thread = threading.Thread(target=self._flush, name="tensorrepo-run", daemon=True)

    def start(self) -> None:
        """Write the run for the first time, and then now and then; and when the program ends."""
        self.write()
        self._thread.start()
        before_pools_end(self._finish)

    def log(self, values: dict[str, float], step: int | None) -> None:
        """Log values of one step. Waits only where a million points wait to be stored.

        Raises:
            Error: so many wait, and storing fails.
        """
        waiting = self.logbook.add(values, step, self._clock() // 1_000_000)
        if waiting >= CHUNK_POINTS:
            self._wake.set()
            if waiting + self._held_points >= MOST_WAITING:
                self._wait_for_room()

    def write(self, status: str = RUNNING, error: str | None = None) -> None:
        """Store what was logged and told.

        Raises:
            ConflictError: another process has the run now. Nothing was written.
            Error: it could not be stored; the next write tries again.
        """
        with self._writing:
            taken, metrics = self.logbook.take()
            self._held = joined(self._held, taken)
            try:
                self._store(status, error, metrics)
            except ConflictError:
                self._is_over = True
                raise
            finally:
                self._held_points = sum(map(len, self._held.values()))
        self._say(None)

    def end(self, status: str, error: str | None) -> None:
        """Write the run for the last time."""
        self._ended = True
        self._wake.set()
        self._thread.join()
        self._outcome = (status, error)
        self.write(status, error)
        self._is_over = True

    def _finish(self) -> None:
        """The program ends: write what was logged since, of a run that is still going on as such.

        Nothing in a fork, and of a run that has ended or is another's.
        """
        if os.getpid() == self._process and not self._is_over:
            self.write(*self._outcome)

    def _store(self, status: str, error: str | None, metrics: tuple[Metric, ...]) -> None:
        ref, name = ref_of_record(self.document.name), self.document.name
        parts = list(cut(self._held))
        with begin_beside(self._context.core, ref) as transaction:
            objects = transaction.objects
            stored = [objects.put(Kind.METRICS, encode_points(part)) for part in parts]
            document = self._document(status, error, metrics, [*self._full, *stored])
            # Not `put` with digests: it would ask the store for each of them, at every write.
            links = {one.digest: one for one in (*self._full, *stored)}
            encoded = encode_object(Kind.RUN, encode_run(document), list(links.values()))
            link = objects.put_encoded(encoded)
            transaction.stage(f"{RUNS}{name}", Entry(Kind.RUN, link.digest))
            made = commit_beside(
                transaction,
                None,
                f"Run {name}: {status}",
                author=self._context.author,
                metadata={"run": name},
                drops=self._refuse_others,
            )
        self._before, self.document = made.digest, document
        last = sum(map(len, parts[-1].values())) if parts else 0
        whole = len(parts) if last in {0, CHUNK_POINTS} else len(parts) - 1
        self._full += stored[:whole]
        self._held = parts[whole] if whole < len(parts) else {}

    def _document(
        self, status: str, error: str | None, metrics: tuple[Metric, ...], chunks: list[Link]
    ) -> RunDocument:
        now = self._clock()
        running = status == RUNNING
        return msgspec.structs.replace(
            self.document,
            **self._told(),
            status=status,
            written_ns=now,
            due_ns=now + 2 * self._interval_ns(now) + _GRACE_NS if running else now,
            ended_ns=None if running else now,
            error=error,
            metrics=metrics,
            chunks=chunk_names(chunk.digest for chunk in chunks),
        )

    def _refuse_others(self, view: View) -> tuple[str, ...]:
        """No ref goes with the record; but it is made only where the run is as this left it."""
        ref = ref_of_record(self.document.name)
        found = view.state.refs.get(ref)
        if found != self._before and not (found is not None and self._is_own(found)):
            raise ConflictError(
                f"run {self.document.name!r} was {'deleted' if found is None else 'taken over'} "
                "by another process: this one writes it no more. Give runs that go on at the same "
                "time different names."
            )
        return ()

    def _is_own(self, commit: Digest) -> bool:
        """Whether this attempt wrote it: a commit whose outcome was unknown had landed."""
        attempts = read_record(self._context, commit, self.document.name).document.attempts
        return attempts[-1] == self.document.attempts[-1]

    def _interval_ns(self, now: int) -> int:
        age = (now - self.document.attempts[-1].started_ns) / _NS
        return int(min(max(age * _AGE_SHARE, FIRST_SECONDS), MOST_SECONDS) * _NS)

    def _flush(self) -> None:
        """On a thread of its own: write now and then, until the run ends or is another's."""
        while not self._ended:
            self._wake.wait(self._interval_ns(self._clock()) / _NS)
            self._wake.clear()
            if self._ended or not self._tried():
                return

    def _tried(self) -> bool:
        """Write once; False when it makes no sense to try again."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001 - the thread lives on, and `log` tells of it
            if self._failure is None:
                warnings.warn(f"run {self.document.name!r} was not stored: {error}", stacklevel=2)
            self._say(error)
            return not isinstance(error, ConflictError)
        return True

    def _say(self, failure: Exception | None) -> None:
        """To who waits for room: there is some, or why there is none."""
        with self._lock:
            self._failure = failure
            self._drained.wake()

    def _wait_for_room(self) -> None:
        while True:
            with self._lock:
                if self.logbook.waiting + self._held_points < MOST_WAITING:
                    return
                if self._failure is not None or not self._thread.is_alive():
                    raise self._told_failure()
                wait = self._drained.add()
            self._wake.set()
            wait(timeout=1)

    def _told_failure(self) -> Error:
        if isinstance(self._failure, Error):
            return self._failure
        why = "its thread has ended" if self._failure is None else repr(self._failure)
        made = StorageError(
            f"run {self.document.name!r} is not stored, {why}, and {MOST_WAITING:,} points wait"
        )
        made.__cause__ = self._failure
        return made


def new_attempt(
    started_ns: int, code: Any, environment: dict[str, Any], earlier: tuple[Attempt, ...] = ()
) -> tuple[Attempt, ...]:
    """The attempts of a run that starts now; of many earlier ones the first and the newest."""
    if len(earlier) >= _MOST_ATTEMPTS:
        earlier = (earlier[0], *earlier[2 - _MOST_ATTEMPTS :])
    return (*earlier, Attempt(started_ns, code, environment))


def _kept(context: Context, document: RunDocument) -> tuple[list[Link], dict[str, Points]]:
    """Objects of points that stay as they are, and the points of the last, if it has room."""
    objects = context.core.objects
    chunks = [objects.describe(digest) for digest in document.points_in()]
    if not chunks:
        return [], {}
    last = decode_points(objects.get(chunks[-1].digest).payload, chunks[-1].digest)
    if sum(map(len, last.values())) >= CHUNK_POINTS:
        return chunks, {}
    return chunks[:-1], last
