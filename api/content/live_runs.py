"""Runs that trainings tell the service of: begun, logged, changed and ended, for one caller.

A run is written by who may write the ref ``runs/NAME/record``; its author is the caller.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.runs import find_run
from tensorrepo.api.live.store import LivePoints, RunKey
from tensorrepo.api.live.writer import STALE_SECONDS, LiveWriter
from tensorrepo.formats.common.provenance import ProvenanceEdge, check_edge
from tensorrepo.formats.runs.metrics import MetricPoints
from tensorrepo.formats.runs.run_record import (
    MAX_EDGES,
    MAX_METRICS,
    RUNNING,
    STATUSES,
    RunDocument,
    check_metric_name,
    new_attempt,
)
from tensorrepo.formats.runs.stored_run import (
    PointChunks,
    StoredRun,
    read_run,
    ref_of_record,
    store_run,
)
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.cache import LimitedCache

_MOST_ERROR: Final = 1000  # characters
_NAMES_BYTES: Final = 16 << 20
_NS: Final = 10**9


class LiveRuns:
    """Live runs of a service, of which `points` and `writer` know."""

    def __init__(self, points: LivePoints, writer: LiveWriter) -> None:
        self.points, self.writer = points, writer
        self._names: LimitedCache[set[str]] = LimitedCache(_NAMES_BYTES)

    def begin(
        self,
        access: RepositoryAccess,
        name: str,
        *,
        params: Mapping[str, Any],
        environment: Mapping[str, Any],
        resume: bool = False,
    ) -> StoredRun:
        """Begin a run, or go on with one.

        Raises:
            ConflictError: there is one of that name, and `resume` is False.
        """
        ref = ref_of_record(name)
        access.require(Action.WRITE, ref)
        checked = checked_params(params)
        here = dict(environment)
        check_json(here, "environment")
        now = time.time_ns()
        key = RunKey(access.name, name)
        if ref in access.view.state.refs:
            if not resume:
                raise ConflictError(
                    f"run {name!r} is there already: go on with it by resume, or take another name"
                )
            self.points.begin(key, access.caller.author)
            return self.writer.write(key, lambda run: _resumed(run, now, here, checked))
        due, author = now + STALE_SECONDS * _NS, access.caller.author
        document = RunDocument(
            name, secrets.token_hex(32), RUNNING, author, now, now, due, params=checked,
            attempts=new_attempt(now, None, here),
        )  # fmt: skip

        def refuse(view: LogView) -> None:
            if ref in view.state.refs:
                raise ConflictError(f"run {name!r} was begun by somebody else just now")

        made, written, _ = store_run(
            access.core, document, PointChunks(), author=author, refuse=refuse
        )
        # Only now nobody else has begun one of this name: what is there is of an older one.
        self.points.forget(key)
        self.points.begin(key, author)
        return StoredRun(access.core, made.digest, written)

    def log(
        self,
        access: RepositoryAccess,
        name: str,
        points: Mapping[str, MetricPoints],
        *,
        batch: str | None = None,
    ) -> int:
        """Keep points: durable when this returns, and seen at once. Gives how many wait.

        Raises:
            NotFoundError: the run does not go on here.
            InvalidInputError: a name that no metric may have, or too many metrics.
            RateLimitedError: too many points wait to be written.
        """
        access.require(Action.WRITE, ref_of_record(name))
        key = RunKey(access.name, name)
        self._check_names(access, key, points)
        waiting = self.points.add(key, points, batch)
        self.writer.added(waiting)
        return waiting

    def change(
        self,
        access: RepositoryAccess,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Iterable[ProvenanceEdge] = (),
    ) -> StoredRun:
        """Note parameters and inputs; what is not named stays. Written at once."""
        access.require(Action.WRITE, ref_of_record(name))
        checked = checked_params(params or {})
        edges = [check_edge(edge) for edge in inputs]

        def changed(run: RunDocument) -> RunDocument:
            every = tuple(dict.fromkeys(map(_Hashed, (*run.inputs, *edges))))
            if len(every) > MAX_EDGES:
                raise InvalidInputError(f"{len(every)} inputs, a run has {MAX_EDGES} at most")
            joined = tuple(one.edge for one in every)
            return msgspec.structs.replace(run, params={**run.params, **checked}, inputs=joined)

        return self.writer.write(RunKey(access.name, name), changed)

    def end(
        self, access: RepositoryAccess, name: str, status: str, error: str | None = None
    ) -> StoredRun:
        """Write all points, and say how the run ended."""
        access.require(Action.WRITE, ref_of_record(name))
        if status not in STATUSES or status == RUNNING:
            raise InvalidInputError(
                f"status {status!r:.40}: expected one of {', '.join(STATUSES[1:])}"
            )
        check_json(error, "the error of a run")

        def ended(run: RunDocument) -> RunDocument:
            at = run.written_ns
            told = None if error is None else error[:_MOST_ERROR]
            return msgspec.structs.replace(run, status=status, ended_ns=at, due_ns=at, error=told)

        return self.writer.write(RunKey(access.name, name), ended)

    def find(self, access: RepositoryAccess, name: str) -> StoredRun:
        """A run as it is now, with points that wait. Raises NotFoundError."""
        return self.writer.overlaid(find_run(access, name), access.name)

    def _check_names(
        self, access: RepositoryAccess, key: RunKey, points: Mapping[str, MetricPoints]
    ) -> None:
        """Raises InvalidInputError for names that would be refused when the run is written."""
        known = self._names.get_or_load(key, lambda: self._known_names(access, key))
        new = [name for name in points if name not in known]
        for name in new:
            check_metric_name(name)
        if len(known) + len(new) > MAX_METRICS:
            raise InvalidInputError(
                f"run {key.run!r} would have {len(known) + len(new)} metrics, at most "
                f"{MAX_METRICS} are kept. Log what belongs together as steps of one metric."
            )
        known.update(new)

    def _known_names(self, access: RepositoryAccess, key: RunKey) -> tuple[set[str], int]:
        commit = access.view.state.refs.get(ref_of_record(key.run))
        names: set[str] = set()
        if commit is not None:
            run = self.writer.overlaid(read_run(access.core, commit, key.run), access.name)
            names = {one.name for one in run.document.metrics}
        return names, 1000 + 100 * len(names)


class _Hashed:
    """An edge by what it says, so that each is noted once."""

    def __init__(self, edge: ProvenanceEdge) -> None:
        self.edge = edge
        self._key = (edge.relation, edge.path, edge.digest, edge.commit)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._key == other._key


def checked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that a run may have. Raises InvalidInputError."""
    found = {check_metric_name(name): value for name, value in params.items()}
    check_json(found, "params")
    return found


def points_of(told: Iterable[tuple[str, int, float, int]]) -> dict[str, MetricPoints]:
    """Points by metric, of (metric, step, value, time in ms), each metric in its order."""
    columns: dict[str, tuple[list[int], list[float], list[int]]] = {}
    for metric, step, value, time_ms in told:
        steps, values, times = columns.setdefault(metric, ([], [], []))
        steps.append(step)
        values.append(value)
        times.append(time_ms)
    return {
        metric: MetricPoints(
            np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.int64)
        )
        for metric, (steps, values, times) in columns.items()
    }


def _resumed(
    run: RunDocument, now: int, environment: dict[str, Any], params: dict[str, Any]
) -> RunDocument:
    return msgspec.structs.replace(
        run,
        status=RUNNING,
        ended_ns=None,
        error=None,
        attempts=new_attempt(now, None, environment, run.attempts),
        params={**run.params, **params},
    )
