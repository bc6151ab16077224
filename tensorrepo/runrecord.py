"""What is known of a run: as its newest document says, wherever it ran?"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.run.document import RUNNING, check_run_name, decode_run
from tensorrepo.formats.run.points import Points, decode_points, join_points
from tensorrepo.given import chosen, text
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.objects import Kind
from tensorrepo.surroundings import is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.context import Context
    from tensorrepo.formats.lineage import Edge
    from tensorrepo.formats.run.document import Made, Metric, RunDocument
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View

RUNS: Final = "runs/"
STALE: Final = "stale"
_RECORD: Final = "/record"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RunRecord:
    """A run as it was last written. Points of metrics are read when they are asked for."""

    context: Context
    commit: Digest
    document: RunDocument

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def id(self) -> str:
        """What lineage names it by."""
        return self.document.id

    @property
    def status(self) -> str:
        """As it was written: "running", "finished", "failed" or "interrupted"."""
        return self.document.status

    @property
    def params(self) -> Mapping[str, Any]:
        return self.document.params

    @property
    def inputs(self) -> tuple[Edge, ...]:
        """What it read."""
        return self.document.inputs

    @property
    def outputs(self) -> tuple[Made, ...]:
        """What it wrote."""
        return self.document.outputs

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric."""
        return {one.name: one.last.value for one in self.document.metrics}

    @property
    def seconds(self) -> float:
        """From its start to its end, or to when it was last written."""
        ended = self.document.ended_ns or self.document.written_ns
        return (ended - self.document.started_ns) / 1e9

    def state(self, now_ns: int | None = None) -> str:
        """`status`, or "stale" where it says "running" and nobody writes it any more: its time to
        be written anew is over, or it ran on this machine and its process is gone.
        """
        process = self.document.attempts[-1].environment.get("process", "")
        return state_of(self.status, self.document.due_ns, process, now_ns)

    def summary(self, metric: str) -> Metric:
        """How many points it has, the last, the smallest and the largest.

        Raises:
            NotFoundError: it was never logged; says which were.
        """
        found = self.document.metric(text("metric", metric))
        if found is None:
            there = ", ".join(one.name for one in self.document.metrics[:8])
            raise NotFoundError(
                f"run {self.name!r} has no metric {metric!r}"
                + (f"; there are {there}" if there else ": none was logged")
            )
        return found

    def best(self, metric: str, mode: str = "min") -> float | None:
        """The smallest finite value of a metric, or the largest with mode "max"; None: no value is
        finite, or it was never logged.
        """
        chosen("mode", mode, ("min", "max"))
        found = self.document.metric(text("metric", metric))
        at = None if found is None else (found.min if mode == "min" else found.max)
        return None if at is None else at.value

    def points(self, metric: str) -> Points:
        """All points of a metric, in the order in which they were logged.

        Raises:
            NotFoundError: it was never logged; says which were.
        """
        self.summary(metric)
        return join_points(part[metric] for part in self._parts(metric) if metric in part)

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.4g}" for name, value in [*self.metrics.items()][:4])
        return f"<run {self.name}: {self.state()}{f', {told}' if told else ''}>"

    def _parts(self, metric: str) -> Iterator[dict[str, Points]]:
        objects = self.context.core.objects
        for digest in self.document.points_in():
            yield decode_points(objects.get(digest).payload, digest, metric)


def state_of(status: str, due_ns: int, process: Any, now_ns: int | None = None) -> str:
    """See `RunRecord.state`. `process` is what the environment of the run says of it."""
    if status != RUNNING:
        return status
    if isinstance(process, str) and is_alive(process) is False:
        return STALE
    late = (time.time_ns() if now_ns is None else now_ns) > due_ns
    return STALE if late else RUNNING


def ref_of_record(run: str) -> str:
    """Where a run's document is to be found."""
    return f"{RUNS}{check_run_name(run)}{_RECORD}"


def read_record(context: Context, commit: Digest, name: str) -> RunRecord:
    """The run whose document `commit` holds."""
    core = context.core
    entry = core.entry(context.resolve(commit).commit.tree, f"{RUNS}{name}")
    if entry is None or entry.kind is not Kind.RUN:
        raise NotFoundError(f"commit {commit:.12} has no document of run {name!r}")
    document = decode_run(core.objects.get(entry.digest).payload, entry.digest)
    return RunRecord(context, commit, document)


def find_record(context: Context, name: str, view: View | None = None) -> RunRecord | None:
    """The run of that name, None where there is none."""
    held = view or context.core.log.refresh()
    commit = held.state.refs.get(ref_of_record(name))
    return None if commit is None else read_record(context, commit, name)


class Runs(Mapping[str, RunRecord]):
    """The runs that a repository has now, by name. Each is read when it is asked for."""

    def __init__(self, context: Context) -> None:
        """Made by `Repository.runs`."""
        self._context = context
        self._read: dict[str, RunRecord] = {}
        self._commits = {
            ref.removeprefix(RUNS).removesuffix(_RECORD): commit
            for ref, commit in sorted(context.core.log.refresh().state.refs.items())
            if ref.startswith(RUNS) and ref.endswith(_RECORD)
        }

    def __getitem__(self, name: str) -> RunRecord:
        if text("the name of a run", name) not in self._commits:
            near = ", ".join(get_close_matches(name, self._commits, 4) or [*self._commits][:4])
            raise NotFoundError(
                f"no run {name!r}" + (f"; there are {near}, ..." if near else ": there is none")
            )
        if name not in self._read:
            self._read[name] = read_record(self._context, self._commits[name], name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commits)

    def __len__(self) -> int:
        return len(self._commits)

    def best(self, metric: str, mode: str = "min") -> RunRecord | None:
        """The run with the smallest finite value of a metric, or the largest with mode "max"."""
        values = [(run.best(metric, mode), run) for run in self.values()]
        sign = 1 if mode == "min" else -1
        found = [(sign * value, run.name) for value, run in values if value is not None]
        return self[min(found)[1]] if found else None

    def __repr__(self) -> str:
        return f"<{len(self)} runs: {', '.join([*self][:8])}>"
