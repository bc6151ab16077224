"""Runs that trainings tell the service of: begun, logged, changed and ended, for one caller.

A run is written by who may write the ref ``runs/NAME/record``; its author is the caller.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    RunOutput,
    check_metric_name,
    new_attempt,
)
from tensorrepo.formats.runs.run_tags import TAGS, tags_of, with_tags
from tensorrepo.formats.runs.stored_run import (
    PointChunks,
    StoredRun,
    read_run,
    ref_of_record,
    store_run,
)
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
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
        started_ns: int | None = None,
    ) -> StoredRun:
        """Begin a run, or go on with one.

        Args:
            access: repository of the run.
            name: its name.
            params: JSON values by name.
            environment: JSON: Python, packages, machine.
            resume: go on with the one of that name.
            started_ns: when it began, UTC; None: now.

        Raises:
            ConflictError: there is one of that name, and `resume` is False.
        """
        ref = ref_of_record(name)
        access.require(Action.WRITE, ref)
        checked = checked_params(params)
        here = dict(environment)
        check_json(here, "environment")
        now = time.time_ns()
        began = now if started_ns is None else started_ns
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
            name, secrets.token_hex(32), RUNNING, author, began, now, due, params=checked,
            attempts=new_attempt(began, None, here),
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
        late: bool = False,
    ) -> int:
        """Keep points: durable when this returns, and seen at once. Gives how many wait.

        Args:
            access: repository of the run.
            name: name of the run.
            points: points by metric, of each in the order of time.
            batch: a name of these points, which count once, however often they come.
            late: whether a run that has ended takes them too, and stays as it ended.

        Raises:
            NotFoundError: the run does not go on here.
            InvalidInputError: a name that no metric may have, or too many metrics.
            RateLimitedError: too many points wait to be written.
        """
        access.require(Action.WRITE, ref_of_record(name))
        key = RunKey(access.name, name)
        self._check_names(access, key, points)
        try:
            waiting = self.points.add(key, points, batch)
        except NotFoundError:
            if not late:
                raise
            with self._taken_on(access, key):
                self.points.add(key, points, batch)
                self.writer.write(key)
            return 0
        self.writer.added(waiting)
        return waiting

    def change(
        self,
        access: RepositoryAccess,
        name: str,
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Iterable[ProvenanceEdge] = (),
        outputs: Iterable[RunOutput] = (),
        tags: Mapping[str, str | None] | None = None,
        check: Callable[[RunDocument], None] = lambda _: None,
    ) -> StoredRun:
        """Note parameters, tags (None removes one), inputs and outputs. Written at once.

        What is not named stays. A run that has ended stays ended.

        Raises:
            NotFoundError: there is no such run.
            ConflictError: another process records it, or writes it just now.
            Error: what `check` raises for the run as it is.
        """
        access.require(Action.WRITE, ref_of_record(name))
        checked = checked_params(params or {})
        edges = [check_edge(edge) for edge in inputs]
        made = list(outputs)

        def changed(run: RunDocument) -> RunDocument:
            every = tuple(dict.fromkeys(map(_Hashed, (*run.inputs, *edges))))
            if len(every) > MAX_EDGES:
                raise InvalidInputError(f"{len(every)} inputs, a run has {MAX_EDGES} at most")
            check(run)
            noted = msgspec.structs.replace(
                run,
                params={**run.params, **checked},
                inputs=tuple(one.edge for one in every),
                outputs=tuple(dict.fromkeys((*run.outputs, *made))),
            )
            return with_tags(noted, tags) if tags else noted

        key = RunKey(access.name, name)
        with self._taken_on(access, key):
            return self.writer.write(key, changed)

    def end(
        self,
        access: RepositoryAccess,
        name: str,
        status: str,
        error: str | None = None,
        *,
        ended_ns: int | None = None,
    ) -> StoredRun:
        """Write all points, and say how the run ended, and when; None: now."""
        access.require(Action.WRITE, ref_of_record(name))
        if status not in STATUSES or status == RUNNING:
            raise InvalidInputError(
                f"status {status!r:.40}: expected one of {', '.join(STATUSES[1:])}"
            )
        check_json(error, "the error of a run")

        def ended(run: RunDocument) -> RunDocument:
            at = run.written_ns if ended_ns is None else ended_ns
            told = None if error is None else error[:_MOST_ERROR]
            return msgspec.structs.replace(run, status=status, ended_ns=at, due_ns=at, error=told)

        key = RunKey(access.name, name)
        with self._taken_on(access, key):
            return self.writer.write(key, ended)

    def find(self, access: RepositoryAccess, name: str) -> StoredRun:
        """A run as it is now, with points that wait. Raises NotFoundError."""
        return self.writer.overlaid(find_run(access, name), access.name)

    @contextmanager
    def _taken_on(self, access: RepositoryAccess, key: RunKey) -> Iterator[None]:
        """A time in which the run can be written here, though it has ended.

        Raises:
            ConflictError: it goes on, and another process records it.
        """
        row = self.points.find(key)
        if row is not None and row.ended_ns is None:
            yield
            return
        run = find_run(access, key.run)
        if run.status == RUNNING and row is None:
            raise ConflictError(
                f"run {key.run!r} is recorded by another process, not through this service: tell "
                "it there, or when it has ended"
            )
        self.points.begin(key, run.document.author)
        try:
            yield
        except BaseException:
            if run.status != RUNNING:
                self.points.leave(key)
            raise

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
    told = {TAGS: tags, **environment} if (tags := tags_of(run)) else environment
    return msgspec.structs.replace(
        run,
        status=RUNNING,
        ended_ns=None,
        error=None,
        attempts=new_attempt(now, None, told, run.attempts),
        params={**run.params, **params},
    )
