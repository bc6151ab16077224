"""Stored runs: documents and points as they were last written, read and written anew.

A run is the entry ``runs/<name>`` of the commit that the ref ``runs/<name>/record`` names. Each
write makes that commit anew: a document, and objects of points, of which the last one grows until
it is full.

Source:
    docs/spec/run.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.arguments import chosen, text
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.runs.metrics import (
    CHUNK_POINTS,
    MetricPoints,
    cut,
    decode_points,
    encode_points,
    join_points,
)
from tensorrepo.formats.runs.process import is_alive
from tensorrepo.formats.runs.run_record import (
    RUNNING,
    RUNS,
    Metric,
    RunDocument,
    RunOutput,
    check_run_name,
    chunk_names,
    decode_run,
    encode_run,
)
from tensorrepo.formats.runs.run_tags import tags_of
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import LandedCommit, begin_beside, commit_beside
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import MetadataValue, read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSource, encode_object

STALE: Final = "stale"
_RECORD: Final = "/record"


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """A run as it was last written. Points of metrics are read when they are asked for."""

    core: RepositoryCore
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
    def tags(self) -> Mapping[str, str]:
        """Texts by which people sort runs, by name."""
        return tags_of(self.document)

    @property
    def inputs(self) -> tuple[ProvenanceEdge, ...]:
        """What it read."""
        return self.document.inputs

    @property
    def outputs(self) -> tuple[RunOutput, ...]:
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

    def points(self, metric: str) -> MetricPoints:
        """All points of a metric, in the order in which they were logged.

        Raises:
            NotFoundError: it was never logged; says which were.
        """
        self.summary(metric)
        return join_points(part[metric] for part in self._parts(metric) if metric in part)

    def _parts(self, metric: str) -> Iterator[dict[str, MetricPoints]]:
        objects = self.core.objects
        for digest in self.document.points_in():
            yield decode_points(objects.get(digest).payload, digest, metric)


def state_of(status: str, due_ns: int, process: Any, now_ns: int | None = None) -> str:
    """See `StoredRun.state`. `process` is what the environment of the run says of it."""
    if status != RUNNING:
        return status
    if isinstance(process, str) and is_alive(process) is False:
        return STALE
    late = (time.time_ns() if now_ns is None else now_ns) > due_ns
    return STALE if late else RUNNING


def ref_of_record(run: str) -> str:
    """Where a run's document is to be found."""
    return f"{RUNS}{check_run_name(run)}{_RECORD}"


def run_of_ref(ref: str) -> str | None:
    """The run whose document is at `ref`; None where that is none."""
    if not (ref.startswith(RUNS) and ref.endswith(_RECORD)):
        return None
    return ref.removeprefix(RUNS).removesuffix(_RECORD)


def recorded_runs(view: LogView) -> dict[str, Digest]:
    """The commit with the document of each run, by the run's name, in order."""
    refs = view.state.refs.items()
    found = ((run_of_ref(ref), commit) for ref, commit in refs if ref.startswith(RUNS))
    return dict(sorted((name, commit) for name, commit in found if name is not None))


def read_run(core: RepositoryCore, commit: Digest, name: str) -> StoredRun:
    """The run whose document `commit` holds."""
    entry = core.entry(read_commit(core.objects, commit).tree, f"{RUNS}{name}")
    if entry is None or entry.kind is not Kind.RUN:
        raise NotFoundError(f"commit {commit:.12} has no document of run {name!r}")
    document = decode_run(core.objects.get(entry.digest).payload, entry.digest)
    return StoredRun(core, commit, document)


@dataclass(frozen=True, slots=True)
class PointChunks:
    """Points of a run, for its next write.

    Attributes:
        full: objects of points that stay as they are.
        held: points that come behind them, by metric: of the last object, and new ones.
    """

    full: tuple[ObjectLink, ...] = ()
    held: Mapping[str, MetricPoints] = field(default_factory=dict)


def stored_points(objects: ObjectSource, document: RunDocument) -> PointChunks:
    """The points of a run as it was last written."""
    chunks = tuple(objects.describe(digest) for digest in document.points_in())
    if not chunks:
        return PointChunks()
    last = decode_points(objects.get(chunks[-1].digest).payload, chunks[-1].digest)
    if sum(map(len, last.values())) >= CHUNK_POINTS:
        return PointChunks(chunks)
    return PointChunks(chunks[:-1], last)


def store_run(
    core: RepositoryCore,
    document: RunDocument,
    points: PointChunks,
    *,
    author: str,
    refuse: Callable[[LogView], None],
    metadata: Mapping[str, MetadataValue] | None = None,
) -> tuple[LandedCommit, RunDocument, PointChunks]:
    """Write a run anew.

    Args:
        core: repository of the run.
        document: what to write; its chunks are told by `points`.
        points: all points.
        author: author of the commit.
        refuse: raises where the run is another's now, by the newest view; asked on each attempt.
        metadata: metadata of the commit, beside the name of the run.

    Returns:
        The commit, the document as it was written, and the points for the next write.
    """

    def drops(view: LogView) -> tuple[str, ...]:
        refuse(view)
        return ()

    name = document.name
    parts = list(cut(points.held))
    with begin_beside(core, ref_of_record(name)) as transaction:
        objects = transaction.objects
        stored = [objects.put(Kind.METRICS, encode_points(part)) for part in parts]
        # Not `put` with digests: it would ask the store for each of them, at every write.
        links = {one.digest: one for one in (*points.full, *stored)}
        chunks = chunk_names(one.digest for one in (*points.full, *stored))
        written = msgspec.structs.replace(document, chunks=chunks)
        encoded = encode_object(Kind.RUN, encode_run(written), list(links.values()))
        link = objects.put_encoded(encoded)
        transaction.stage(f"{RUNS}{name}", Entry(Kind.RUN, link.digest))
        made = commit_beside(
            transaction,
            None,
            f"Run {name}: {document.status}",
            author=author,
            metadata={**(metadata or {}), "run": name},
            drops=drops,
        )
    last = sum(map(len, parts[-1].values())) if parts else 0
    whole = len(parts) if last in {0, CHUNK_POINTS} else len(parts) - 1
    held = parts[whole] if whole < len(parts) else {}
    return made, written, PointChunks((*points.full, *stored[:whole]), held)
