"""Stored records of runs: reading them, and the thread that writes one during a training.

    log: append to arrays -> one thread, now and then: points, document, one record of the log

Points that were not stored stay, and are tried again. A write finds the run as this process left
it, or gives it up: so a run that another process went on with is not overwritten.

The environment of a process (code, packages, machine) is found out without failing: what cannot be
found out is left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import counted, listed, text
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.runs.metrics import (
    CHUNK_POINTS,
    Logbook,
    joined,
)
from tensorrepo.formats.runs.process import this_process
from tensorrepo.formats.runs.run_record import (
    RUNNING,
    SYSTEM,
    Code,
    Metric,
    RunDocument,
)
from tensorrepo.formats.runs.stored_run import (
    StoredRun,
    read_run,
    recorded_runs,
    ref_of_record,
    store_run,
    stored_points,
)
from tensorrepo.models.checkpointer import before_pools_end
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import Cell, RecordTable, Shown, moment_text
from tensorrepo.repo.threads import Waiting
from tensorrepo.runs.files import files_of, read_file_of
from tensorrepo.runs.plots import plot_metrics
from tensorrepo.runs.summary import common_metrics, run_table, took_text

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GIT_SECONDS: Final = 5.0
_PLAIN: Final = (bool, int, float, str, datetime)  # types of Arrow columns
_MOST_WHOLE: Final = 1 << 63
_MOST_PACKAGES: Final = 500
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PROC = Path("/proc")


def code_version(cwd: Path, *, timeout_seconds: float = _GIT_SECONDS) -> Code | None:
    """The git commit of the script that runs, or of the folder where there is none.

    `dirty` says that tracked files differ from it. None outside of a checkout, and without git.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = cwd if script is None else (cwd / script).parent
    commit = _git(folder, timeout_seconds, "rev-parse", "--verify", "HEAD")
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    changed = _git(folder, timeout_seconds, "status", "--porcelain", "--untracked-files=no")
    # No answer is no proof that the files are those of the commit.
    return Code(commit, changed != "", None if script is None else _stored_text(Path(script).name))


def environment() -> dict[str, Any]:
    """Python, packages that are imported, and machine, as JSON."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": imported_packages(),
        "machine": _machine(),
    }
    process = this_process()
    return found if process is None else found | {"process": process}


def imported_packages() -> dict[str, str]:
    """Versions by name of what is imported and is not Python's own."""
    names = {name for name in tuple(sys.modules) if "." not in name}
    names -= set(sys.stdlib_module_names) | set(sys.builtin_module_names)
    found = {name: _version(name) for name in sorted(names) if not name.startswith("_")}
    told = [(name, version) for name, version in found.items() if version is not None]
    return dict(told[:_MOST_PACKAGES])


def _git(folder: Path, timeout_seconds: float, *arguments: str) -> str | None:
    # A checkout may say in its own configuration which program watches files: none is started.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        told = subprocess.run(  # noqa: S603 - of words of ours
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return told.stdout.decode(errors="replace").strip()


def _version(name: str) -> str | None:
    # Not getattr: some packages import more of themselves when an attribute is asked for.
    # A module may be None, which says that it must not be imported, or any object.
    version = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
    if isinstance(version, str):
        return _stored_text(version)
    with suppress(metadata.PackageNotFoundError, ValueError, OSError):
        return metadata.version(name)
    return None


def _stored_text(text: str) -> str:
    """`text` as UTF-8 can say it, and no text of a class of its own, as torch's version is one."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"host": platform.node(), "cores": os.cpu_count()}
    processor = _line(_PROC / "cpuinfo", "model name") or platform.processor()
    if processor:
        found["processor"] = processor
    memory = re.match(r"\d+", _line(_PROC / "meminfo", "MemTotal") or "")
    if memory:
        found["memory_bytes"] = int(memory.group()) << 10
    # The driver's own files: asking torch would start the device in this process.
    gpus = sorted((_PROC / "driver" / "nvidia" / "gpus").glob("*/information"))
    models = [model for gpu in gpus if (model := _line(gpu, "Model"))]
    return found | {"gpus": models} if models else found


def _line(file: Path, key: str) -> str | None:
    """What follows ``key :`` in a file."""
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
    return None


SHOWN_RUNS: Final = 40  # that are printed
MOST_PLOTTED: Final = 12  # panels of one run, runs in one panel


class RunRecord(StoredRun, Shown):
    """A run as it was last written. Points of metrics are read when they are asked for."""

    __slots__ = ()

    def files(self) -> dict[str, int]:
        """Bytes of each file that it left, by name; those that became a model, too."""
        return files_of(self.core, self.name)

    def read_file(self, name: str) -> bytes:
        """The bytes of a file that it left. Raises NotFoundError."""
        return read_file_of(self.core, self.name, text("the name of a file", name))

    def to_table(self) -> RecordTable:
        """Its facts, above its metrics."""
        return run_table(self.document, self.state(), self.points)

    def plot(
        self, *metrics: str, x: str = "step", log: bool = False, axes: Axes | None = None
    ) -> Figure:
        """A panel for each of these metrics, or of the first `MOST_PLOTTED`: a matplotlib figure.

        Args:
            metrics: names of metrics; none: all but those of the machine, up to `MOST_PLOTTED`.
            x: what is counted to the right: "step", or "seconds" or "hours" since the first point.
            log: whether values are on a logarithmic scale.
            axes: axes of matplotlib to draw one metric into; None: a new figure.

        Raises:
            NotFoundError: a metric was never logged; says which were.
            InvalidInputError: no metric was logged.
            UnsupportedError: matplotlib, of the extra `plots`, is not installed.
        """
        logged = [one.name for one in self.document.metrics]
        own = [name for name in logged if not name.startswith(SYSTEM)]
        names = metrics or (own or logged)[:MOST_PLOTTED]
        courses = {name: {self.name: self.points(name)} for name in names}
        return plot_metrics(courses, x=x, log=log, axes=axes)

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.4g}" for name, value in [*self.metrics.items()][:4])
        return f"<run {self.name}: {self.state()}{f', {told}' if told else ''}>"


def read_record(context: Context, commit: Digest, name: str) -> RunRecord:
    """The run whose document `commit` holds."""
    return RunRecord(context.core, commit, read_run(context.core, commit, name).document)


def find_record(context: Context, name: str) -> RunRecord | None:
    """The run of that name, None where there is none."""
    commit = context.core.log.refresh().state.refs.get(ref_of_record(name))
    return None if commit is None else read_record(context, commit, name)


class Runs(Shown, Mapping[str, RunRecord]):
    """The runs that a repository has now, by name. Each is read when it is asked for."""

    def __init__(self, context: Context) -> None:
        """Made by `Repository.runs`."""
        self._context = context
        self._read: dict[str, RunRecord] = {}
        self._commits = recorded_runs(context.core.log.refresh())

    def __getitem__(self, name: str) -> RunRecord:
        if isinstance(cast("object", name), int | slice):
            raise InvalidInputError(
                f"runs are found by name, got {name!r}: `runs.newest()` is the one that began "
                f"last, `list(runs.values())` has all. {there_are(self._commits, 'There is none.')}"
            )
        if text("the name of a run", name) not in self._commits:
            listed = there_are(self._commits, "There is none.")
            hint = did_you_mean(name, self._commits.keys(), listed)
            raise NotFoundError(f"no run {name!r}.{hint}")
        if name not in self._read:
            self._read[name] = read_record(self._context, self._commits[name], name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commits)

    def __len__(self) -> int:
        return len(self._commits)

    def newest(self) -> RunRecord | None:
        """The run that began last, None where there is none."""
        return max(self.values(), key=lambda run: run.document.started_ns, default=None)

    def best(self, metric: str, mode: str = "min") -> RunRecord | None:
        """The run with the smallest finite value of a metric, or the largest with mode "max"."""
        values = [(run.best(metric, mode), run) for run in self.values()]
        sign = 1 if mode == "min" else -1
        found = [(sign * value, run.name) for value, run in values if value is not None]
        return self[min(found)[1]] if found else None

    def to_arrow(self) -> pa.Table:
        """A row for each run: name, state, times, author, code, parameters, last values of metrics.

        A parameter is the column ``param.NAME``, a metric ``metric.NAME``; parameters that are of
        several types, or no plain values, are JSON text.
        """
        return _table_of([_row_of(run) for run in self.values()])

    def to_pandas(self) -> Any:
        """`to_arrow` as a pandas DataFrame."""
        missing = "pandas is not installed: `pip install 'tensorrepo[sql]'`, or use runs.to_arrow()"
        import_library("pandas", missing)
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """`to_arrow` as a polars DataFrame."""
        missing = "polars is not installed: `pip install 'tensorrepo[sql]'`, or use runs.to_arrow()"
        return import_library("polars", missing).from_arrow(self.to_arrow())

    def plot(
        self,
        metric: str,
        *,
        names: Iterable[str] | None = None,
        x: str = "step",
        log: bool = False,
        axes: Axes | None = None,
    ) -> Figure:
        """One metric of several runs in one panel: a matplotlib figure. See `RunRecord.plot`.

        Args:
            metric: name of the metric.
            names: names of runs; None: the newest `MOST_PLOTTED` that logged the metric.
            x: what is counted to the right: "step", or "seconds" or "hours" since the first point.
            log: whether values are on a logarithmic scale.
            axes: axes of matplotlib to draw into; None: a new figure.

        Raises:
            NotFoundError: no such run, or none that logged the metric.
        """
        if names is None:
            newest = sorted(self.values(), key=lambda run: -run.document.started_ns)
            logged = [run for run in newest if run.document.metric(text("metric", metric))]
            if not logged:
                there = common_metrics((run.document for run in newest), most=8)
                listed_names = f"; there are {', '.join(there)}" if there else ""
                raise NotFoundError(f"no run has a metric {metric!r:.80}{listed_names}")
            runs = logged[:MOST_PLOTTED]
        else:
            runs = [self[name] for name in listed("names", names)]
        return plot_metrics(
            {metric: {run.name: run.points(metric) for run in runs}}, x=x, log=log, axes=axes
        )

    def to_table(self) -> RecordTable:
        """The newest runs, with the metrics that most of them have."""
        newest = sorted(self.values(), key=lambda run: (-run.document.started_ns, run.name))
        shown = newest[:SHOWN_RUNS]
        columns: dict[str, Cell] = {
            "run": "name",
            "state": lambda run: run.state(),
            "began": lambda run: moment_text(run.document.started_ns),
            ">took": lambda run: took_text(run.document),
        }
        for name in common_metrics(run.document for run in shown):
            columns[f">{name}"] = partial(_last_text, name=name)
        table = RecordTable.of(shown, columns, counted(len(self), "run"))
        return replace(table, more=len(newest) - len(shown))

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'run')}: {', '.join([*self][:8])}>"


def _last_text(run: RunRecord, name: str) -> str:
    value = run.metrics.get(name)
    return "-" if value is None else f"{value:.6g}"


def _row_of(run: RunRecord) -> dict[str, Any]:
    document, code = run.document, run.document.attempts[-1].code
    return {
        "name": run.name,
        "state": run.state(),
        "started": datetime.fromtimestamp(document.started_ns / _NS, UTC),
        "seconds": run.seconds,
        "author": document.author,
        "code": None if code is None else code.commit,
        **{f"param.{name}": value for name, value in run.params.items()},
        **{f"metric.{name}": value for name, value in run.metrics.items()},
    }


FIRST_SECONDS: Final = 10.0  # between writes at first; later they come less often,
MOST_SECONDS: Final = 300.0  # so that a run of days leaves hundreds of records, and not many more
REST_SECONDS: Final = 1.0  # at least between those that saved models and checkpoints ask for
_AGE_SHARE: Final = 1 / 20
_GRACE_NS: Final = 60 * 10**9
MOST_WAITING: Final = 1 << 20  # points in memory, of 24 bytes
_NS: Final = 10**9


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
        # What is to be stored, and what was taken of the logbook for it: one value, since Ctrl-C
        # may come between any two calls.
        self._taken = stored_points(context.core.objects, document), self.logbook.take()
        self._held_points = 0
        self._lock = threading.Lock()
        self._drained = Waiting()
        self._wake, self._hurry, self._ended = threading.Event(), threading.Event(), False
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

    def log(
        self, values: dict[str, float], step: int | None, *, of_checkpoint: bool = False
    ) -> None:
        """Log values of one step. Waits only where a million points wait to be stored.

        Raises:
            Error: so many wait, and storing fails.
        """
        waiting = self.logbook.add(
            values, step, self._clock() // 1_000_000, of_checkpoint=of_checkpoint
        )
        if waiting >= CHUNK_POINTS:
            self._at_once()
            if waiting + self._held_points >= MOST_WAITING:
                self._wait_for_room()

    def store_soon(self) -> None:
        """Let the thread store what was logged and told: within `REST_SECONDS`, if it can."""
        if os.getpid() == self._process:  # in a fork it has no thread, and its events may be held
            self._wake.set()

    def write(self, status: str = RUNNING, error: str | None = None) -> None:
        """Store what was logged and told.

        Raises:
            ConflictError: another process has the run now. Nothing was written.
            Error: it could not be stored; the next write tries again.
        """
        with self._writing:
            points, before = self._taken
            taken = self.logbook.take(before)
            points = replace(points, held=joined(points.held, taken.points))
            self._taken = points, replace(taken, points={})
            self.logbook.forget(taken)
            try:
                self._store(status, error)
            except ConflictError:
                self._is_over = True
                raise
            finally:
                self._held_points = sum(map(len, self._taken[0].held.values()))
        self._say(None)

    def end(self, status: str, error: str | None) -> None:
        """Write the run for the last time."""
        self._ended = True
        self._at_once()
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

    def _store(self, status: str, error: str | None) -> None:
        points, taken = self._taken
        made, self.document, stored = store_run(
            self._context.core,
            self._document(status, error, taken.metrics),
            points,
            author=self._context.author,
            refuse=self._refuse_others,
        )
        self._taken = stored, taken
        self._before = made.digest

    def _document(self, status: str, error: str | None, metrics: tuple[Metric, ...]) -> RunDocument:
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
        )

    def _refuse_others(self, view: LogView) -> None:
        """Raises ConflictError unless the run is as this process left it."""
        found = view.state.refs.get(ref_of_record(self.document.name))
        if found != self._before and not (found is not None and self._is_own(found)):
            raise ConflictError(
                f"run {self.document.name!r} was {'deleted' if found is None else 'taken over'} "
                "by another process: this one writes it no more. Give runs that go on at the same "
                "time different names."
            )

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
            self._hurry.wait(REST_SECONDS)
            self._hurry.clear()

    def _at_once(self) -> None:
        self._wake.set()
        self._hurry.set()

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
            self._at_once()
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


def _table_of(documents: Sequence[dict[str, Any]]) -> pa.Table:
    """A row for each document; null where one lacks a name.

    Whole numbers and fractions of one name are float64. Values of several other types, lists and
    objects are JSON text.
    """
    import pyarrow as pa

    names = list(dict.fromkeys(name for document in documents for name in document))
    columns = {name: [document.get(name) for document in documents] for name in names}
    return pa.table({name: pa.array(_alike(values)) for name, values in columns.items()})


def _alike(values: list[Any]) -> list[Any]:
    """Values of one type, as Arrow asks for them."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    large = kinds == {int} and any(abs(value or 0) >= _MOST_WHOLE for value in values)
    if len(kinds) > 1 or large or not kinds <= set(_PLAIN):
        return [None if value is None else json.dumps(value) for value in values]
    return values
