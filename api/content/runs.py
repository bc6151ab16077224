"""Runs of a repository, for one caller: lists, one run, points of its metrics, comparisons.

A run is read by who may read the ref ``runs/NAME/record``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.formats.common.provenance import ProvenanceEdge, relation_of
from tensorrepo.formats.runs.metrics import MetricPoints, thinned
from tensorrepo.formats.runs.run_record import (
    RUNS,
    SYSTEM,
    Metric,
    MetricPoint,
    check_run_name,
)
from tensorrepo.formats.runs.run_tags import tags_of
from tensorrepo.formats.runs.stored_run import StoredRun, read_run, recorded_runs, ref_of_record
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache

MOST_POINTS: Final = 10_000  # of one metric in an answer
MOST_SERIES: Final = 64  # metrics in an answer
_RUNS_BYTES: Final = 64 << 20

# JSON has no NaN and no infinities: they are texts.
JsonFloat = Annotated[float, Field(description='A number, or "NaN", "Infinity", "-Infinity".')]
_STRINGS: Final = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class PointInfo(BaseModel):
    """A value of a metric, and its step."""

    model_config = _STRINGS

    step: int
    value: JsonFloat

    @classmethod
    def of(cls, point: MetricPoint | None) -> PointInfo | None:
        return None if point is None else cls(step=point.step, value=point.value)


class MetricInfo(BaseModel):
    """A metric in short. `min` and `max` are of finite values; null where none is."""

    model_config = _STRINGS

    name: str
    points: int
    last: PointInfo
    min: PointInfo | None
    max: PointInfo | None

    @classmethod
    def of(cls, metric: Metric) -> MetricInfo:
        return cls(
            name=metric.name,
            points=metric.points,
            last=PointInfo(step=metric.last.step, value=metric.last.value),
            min=PointInfo.of(metric.min),
            max=PointInfo.of(metric.max),
        )


class RunInfo(BaseModel):
    """A run in a list."""

    model_config = _STRINGS

    name: str
    id: str = Field(description="What lineage names it by.")
    state: str = Field(description="running, stale, finished, failed or interrupted.")
    author: str
    started_ns: int
    written_ns: int
    ended_ns: int | None
    metrics: dict[str, JsonFloat] = Field(description="Last value of each metric.")


class RunDetails(RunInfo):
    """A run, but for the points of its metrics."""

    commit: str
    error: str | None
    params: dict[str, Any]
    tags: dict[str, str] = Field(default={}, description="Texts by which people sort runs.")
    inputs: list[dict[str, Any]] = Field(description="What it read, as edges of lineage.")
    outputs: list[dict[str, str]] = Field(description="What it wrote: path, digest, commit.")
    attempts: list[dict[str, Any]]
    summaries: list[MetricInfo] = Field(description="Metrics, those of the machine included.")


class SeriesInfo(BaseModel):
    """Points of a metric, thinned to so many as were asked for: extremes stay."""

    model_config = _STRINGS

    metric: str
    points: int = Field(description="Number of points there are.")
    steps: list[int]
    values: list[JsonFloat]
    times_ms: list[int]


def _new_memory(_: ServedRepository) -> LimitedCache[StoredRun]:
    """Runs that were read, by their commits, which never change."""
    return LimitedCache(_RUNS_BYTES)


def list_runs(access: RepositoryAccess, *, prefix: str = "") -> list[str]:
    """Names of the runs that the caller may read, in order."""
    return [
        name
        for name in recorded_runs(access.view)
        if name.startswith(prefix) and _may_read(access, name)
    ]


def get_run(access: RepositoryAccess, name: str) -> RunDetails:
    """One run. Raises NotFoundError."""
    return details_of(find_run(access, name))


def find_run(access: RepositoryAccess, name: str) -> StoredRun:
    """A run as it was last written to the repository. Raises NotFoundError."""
    check_run_name(name)
    commit = access.view.state.refs.get(ref_of_record(name))
    if commit is None or not _may_read(access, name):
        raise NotFoundError(f"no run {name!r} that you may read; GET .../-/runs lists them")
    return read_cached(access, name, commit)


def read_cached(access: RepositoryAccess, name: str, commit: Digest) -> StoredRun:
    """The run whose document `commit` holds."""

    def load() -> tuple[StoredRun, int]:
        run = read_run(access.core, commit, name)
        document = run.document
        return run, 2000 + 200 * len(document.metrics) + 32 * len(document.chunks)

    return access.served.kept(_new_memory).get_or_load(commit, load)


def info_of(run: StoredRun) -> RunInfo:
    document = run.document
    return RunInfo(
        name=run.name,
        id=run.id,
        state=run.state(),
        author=document.author,
        started_ns=document.started_ns,
        written_ns=document.written_ns,
        ended_ns=document.ended_ns,
        metrics=run.metrics,
    )


def details_of(run: StoredRun) -> RunDetails:
    document = run.document
    return RunDetails(
        **info_of(run).model_dump(),
        commit=run.commit,
        error=document.error,
        params=dict(document.params),
        tags=tags_of(document),
        inputs=[_edge(edge) for edge in document.inputs],
        outputs=[
            {"path": one.path, "digest": one.digest, "commit": one.commit}
            for one in document.outputs
        ],
        attempts=[
            {
                "started_ns": one.started_ns,
                "code": None
                if one.code is None
                else {
                    "commit": one.code.commit,
                    "dirty": one.code.dirty,
                    "script": one.code.script,
                },
                "environment": one.environment,
            }
            for one in document.attempts
        ],
        summaries=[MetricInfo.of(metric) for metric in document.metrics],
    )


def series_of(points: Mapping[str, MetricPoints], most: int) -> list[SeriesInfo]:
    """These metrics, each thinned to `most` points."""
    return [_series(name, one, most) for name, one in points.items()]


def metric_names(run: StoredRun, wanted: Iterable[str], *, system: bool | None) -> list[str]:
    """Metrics of a run: those wanted, or the first `MOST_SERIES` of all.

    Args:
        run: the run.
        wanted: names; none: all.
        system: only those of the machine, or only the others; None: both.

    Raises:
        InvalidInputError: too many are wanted.
        NotFoundError: one was never logged.
    """
    names = [*wanted]
    if len(names) > MOST_SERIES:
        raise InvalidInputError(f"{len(names)} metrics, at most {MOST_SERIES} are given at once")
    for name in names:
        run.summary(name)
    every = names or [one.name for one in run.document.metrics]
    kept = [one for one in every if system is None or one.startswith(SYSTEM) is system]
    return kept[:MOST_SERIES]


def compare_runs(runs: Iterable[StoredRun]) -> dict[str, Any]:
    """Parameters and last values of metrics side by side, and which parameters differ."""
    some = list(runs)
    params = sorted({name for run in some for name in run.params})
    metrics = sorted({name for run in some for name in run.metrics})
    by_param = {name: [run.params.get(name) for run in some] for name in params}
    return {
        "runs": [run.name for run in some],
        "params": by_param,
        "different": [
            name for name, values in by_param.items() if any(one != values[0] for one in values)
        ],
        "metrics": {name: [_text(run.metrics.get(name)) for run in some] for name in metrics},
    }


def _series(name: str, points: MetricPoints, most: int) -> SeriesInfo:
    at = thinned(points.values, most)
    return SeriesInfo(
        metric=name,
        points=len(points),
        steps=points.steps[at].tolist(),
        values=points.values[at].tolist(),
        times_ms=points.times_ms[at].tolist(),
    )


def _text(value: float | None) -> float | str | None:
    if value is None or np.isfinite(value):
        return value
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _edge(edge: ProvenanceEdge) -> dict[str, Any]:
    return edge.to_json() | {"relation": relation_of(edge.relation)}


def _may_read(access: RepositoryAccess, name: str) -> bool:
    return access.reads_all or access.may(Action.READ, f"{RUNS}{name}/record")
