"""Runs of a repository, by a client: read, and told by a training as it goes on.

`LoggedRun.log` appends to memory; a thread sends what is there every second, in batches that count
once however often they are sent.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from tensorrepo.client.answers import RunAnswer, RunDetailsAnswer, SeriesAnswer
from tensorrepo.client.connection import Connection, one_segment
from tensorrepo.formats.runs.run_record import check_metric_name, check_run_name
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, StorageError

SEND_SECONDS: Final = 1.0
BATCH_POINTS: Final = 10_000
MOST_WAITING: Final = 1 << 20
_TRIES: Final = 8
_FIRST_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunsClient:
    """See `RepositoryClient.runs`."""

    connection: Connection
    base: str

    def list_runs(self, *, prefix: str = "") -> Iterator[RunAnswer]:
        """Runs by name."""
        return self.connection.pages(self.base, RunAnswer, prefix=prefix)

    def get(self, name: str) -> RunDetailsAnswer:
        return self.connection.get(self._path(name), RunDetailsAnswer)

    def metrics(
        self, name: str, metrics: Iterable[str] = (), *, points: int = 1000
    ) -> list[SeriesAnswer]:
        """Points of metrics, each thinned to so many; none are named: the first 64."""
        path = f"{self._path(name)}/metrics"
        return self.connection.get(path, list[SeriesAnswer], metric=[*metrics], points=points)

    def compare(self, names: Iterable[str]) -> dict[str, Any]:
        """Parameters and last values of metrics side by side."""
        found: dict[str, Any] = self.connection.get(f"{self.base}/-/compare", dict, run=[*names])
        return found

    def begin(
        self,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> LoggedRun:
        """Begin a run, or go on with one. Raises ConflictError for a taken name."""
        body = {
            "name": check_run_name(name),
            "params": dict(params or {}),
            "environment": dict(environment or {}),
            "resume": resume,
        }
        self.connection.send("POST", self.base, RunDetailsAnswer, body)
        return LoggedRun(self.connection, self._path(name), name)

    def follow(
        self, name: str, *, after: str | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events as they happen, (event, data), until the run ends: "points", "reset", "end"."""
        headers = {} if after is None else {"Last-Event-ID": after}
        with self.connection.stream(f"{self._path(name)}/events", headers=headers) as answer:
            event = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    event = value
                elif field == "data":
                    yield event, self.connection.decoded(value, dict[str, Any])
                    if event == "end":
                        return

    def _path(self, name: str) -> str:
        return f"{self.base}/{one_segment(name)}"


class LoggedRun:
    """A run that this process tells a service of. Any thread may log."""

    def __init__(self, connection: Connection, path: str, name: str) -> None:
        """Made by `RunsClient.begin`."""
        self.name = name
        self._connection, self._path = connection, path
        self._points: list[tuple[str, int, float, int]] = []
        self._batch: tuple[str, int] | None = None  # name and points of the one not answered yet
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._counts: dict[str, int] = {}
        self._ended = threading.Event()
        self._failure: Error | None = None
        self._thread = threading.Thread(target=self._flush, name="tensorrepo-run", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values of one step; without `step`, of as many as this process logged before.

        Raises:
            Error: a million points wait, and the service does not take them.
        """
        if self._ended.is_set():
            raise InvalidInputError(f"run {self.name!r} has ended: this would be lost")
        now = time.time_ns() // 1_000_000
        values = {check_metric_name(name): float(value) for name, value in metrics.items()}
        with self._lock:
            if len(self._points) >= MOST_WAITING:
                raise self._failure or StorageError(f"{MOST_WAITING:,} points wait to be sent")
            for name, value in values.items():
                count = self._counts.get(name, 0)
                self._counts[name] = count + 1
                self._points.append((name, count if step is None else step, value, now))

    def change(
        self, *, params: Mapping[str, Any] | None = None, inputs: Iterable[Mapping[str, Any]] = ()
    ) -> RunDetailsAnswer:
        """Note parameters, and inputs as edges of lineage."""
        body = {"params": dict(params or {}), "inputs": [dict(one) for one in inputs]}
        return self._connection.send("PATCH", self._path, RunDetailsAnswer, body)

    def flush(self) -> None:
        """Send what was logged until now: durable when this returns. Raises Error."""
        with self._sending:
            while True:
                with self._lock:
                    # One that no answer came to may have arrived: it is sent again as it was.
                    count = min(len(self._points), BATCH_POINTS)
                    name, count = self._batch or (secrets.token_hex(16), count)
                    some = self._points[:count]
                if not some:
                    return
                self._batch = name, count
                self._send(name, some)
                with self._lock:
                    del self._points[:count]
                    self._batch = None

    def end(self, status: str = "finished", error: str | None = None) -> RunDetailsAnswer:
        """Send all, and say how it ended: "finished", "failed" or "interrupted"."""
        self._ended.set()
        self._thread.join()
        self.flush()
        body = {"status": status, "error": error}
        return self._connection.send("POST", f"{self._path}/end", RunDetailsAnswer, body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        if kind is None:
            self.end()
        elif issubclass(kind, KeyboardInterrupt):
            self.end("interrupted")
        else:
            self.end("failed", f"{kind.__name__}: {error}"[:1000])

    def _send(self, batch: str, points: list[tuple[str, int, float, int]]) -> None:
        told = [
            {"metric": name, "step": step, "value": _number(value), "time_ms": time_ms}
            for name, step, value, time_ms in points
        ]
        body = {"points": told, "batch": batch}
        for left in reversed(range(_TRIES)):
            try:
                self._connection.call("POST", f"{self._path}/points", body)
            except StorageError as error:
                self._failure = error
                if not error.transient or not left:
                    raise
                time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (_TRIES - 1 - left))
            else:
                self._failure = None
                return

    def _flush(self) -> None:
        while not self._ended.wait(SEND_SECONDS):
            try:
                self.flush()
            except Error as error:  # points wait; `log` and `end` tell of it
                self._failure = error


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
