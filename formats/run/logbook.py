"""What was logged since the last write, and what became of each metric?

Logging appends to three arrays, which costs a microsecond. One thread logs, or several; another
drains: it takes what is there, and puts it back when it could not be stored.
"""

from __future__ import annotations

import math
import threading
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.run.document import MAX_METRICS, At, Metric, check_metric_name
from tensorrepo.formats.run.points import CHUNK_POINTS, Points, join_points
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(slots=True)
class _Series:
    """One metric: what became of it, and the points that are not stored yet."""

    name: str
    points: int = 0
    not_finite: int = 0
    last: tuple[int, float] = (0, 0.0)
    min: tuple[int, float] | None = None
    max: tuple[int, float] | None = None
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times_ms: array[int] = field(default_factory=lambda: array("q"))

    def add(self, step: int, value: float, time_ms: int) -> None:
        self.steps.append(step)  # first: it refuses what is no integer of 64 bits
        self.values.append(value)
        self.times_ms.append(time_ms)
        self.points += 1
        self.last = (step, value)
        if not math.isfinite(value):
            self.not_finite += 1
            return
        if self.min is None or value < self.min[1]:
            self.min = (step, value)
        if self.max is None or value > self.max[1]:
            self.max = (step, value)

    def taken(self) -> Points:
        """The points, which are then no longer here."""
        taken = Points(
            np.frombuffer(self.steps, np.int64),
            np.frombuffer(self.values, np.float64),
            np.frombuffer(self.times_ms, np.int64),
        )
        self.steps, self.values, self.times_ms = array("q"), array("d"), array("q")
        return taken

    def summary(self) -> Metric:
        return Metric(
            self.name,
            self.points,
            self.not_finite,
            At(*self.last),
            None if self.min is None else At(*self.min),
            None if self.max is None else At(*self.max),
        )


class Logbook:
    """The metrics of a run."""

    def __init__(self, earlier: tuple[Metric, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._series: dict[str, _Series] = {one.name: _resumed(one) for one in earlier}
        self.waiting = 0  # points that are not taken

    def add(self, values: Mapping[str, float], step: int | None, time_ms: int) -> int:
        """Log values of one step; without `step`, of as many as each metric has points.

        Returns:
            How many points wait to be taken.

        Raises:
            InvalidInputError: a name that no metric may have, a step outside of 64 bits, or more
                metrics than a run may have. Nothing was logged.
        """
        if step is not None and not -(1 << 63) <= step < 1 << 63:
            raise InvalidInputError(f"step {step}: expected a whole number of 64 bits")
        with self._lock:
            series = [self._of(name) for name in values]
            for one, value in zip(series, values.values(), strict=True):
                one.add(one.points if step is None else step, value, time_ms)
            self.waiting += len(series)
            return self.waiting

    def take(self) -> tuple[dict[str, Points], tuple[Metric, ...]]:
        """The points that wait, and what became of all metrics, these points included."""
        with self._lock:
            taken = {name: one.taken() for name, one in self._series.items() if one.steps}
            self.waiting = 0
            summaries = [self._series[name].summary() for name in sorted(self._series)]
            return taken, tuple(one for one in summaries if one.points)

    def _of(self, name: str) -> _Series:
        found = self._series.get(name)
        if found is None:
            check_metric_name(name)
            if len(self._series) >= MAX_METRICS:
                raise InvalidInputError(
                    f"metric {name!r}: a run has {MAX_METRICS} metrics at most. Log what belongs "
                    "together as steps of one metric."
                )
            found = self._series[name] = _Series(name)
        return found


def cut(by_name: Mapping[str, Points], most: int = CHUNK_POINTS) -> Iterator[dict[str, Points]]:
    """Points in parts of exactly `most`, but for the last one."""
    part: dict[str, Points] = {}
    room = most
    for name, points in by_name.items():
        start = 0
        while start < len(points):
            piece = points[start : start + room]
            part[name] = piece
            start += len(piece)
            room -= len(piece)
            if not room:
                yield part
                part, room = {}, most
    if part:
        yield part


def joined(first: Mapping[str, Points], then: Mapping[str, Points]) -> dict[str, Points]:
    """The points of both, metric by metric."""
    names = [*first, *(name for name in then if name not in first)]
    return {
        name: join_points([part[name] for part in (first, then) if name in part]) for name in names
    }


def _resumed(metric: Metric) -> _Series:
    return _Series(
        metric.name,
        metric.points,
        metric.not_finite,
        (metric.last.step, metric.last.value),
        None if metric.min is None else (metric.min.step, metric.min.value),
        None if metric.max is None else (metric.max.step, metric.max.value),
    )
