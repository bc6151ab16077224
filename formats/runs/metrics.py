"""Metrics of a run: log since the last write, and stored points.

Logging appends 24 bytes, which costs a microsecond. One thread logs, or several; another drains: it
takes what came since it took last. What was taken stays here until it is forgotten, and Ctrl-C may
come between any two calls: at no such instant is half a point here, or a point nowhere.

An object holds some points of some metrics: of each metric the steps, the times and the values,
each as eight byte planes. Steps and times are differences from the point before, so that most of
their planes are zeros; values keep every bit, NaN's as well. The store compresses the whole.

Source:
    docs/spec/run.md, section "Metrics".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from struct import Struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.canonical import check_sorted, decode_canonical, encode_canonical
from tensorrepo.formats.runs.run_record import MAX_METRICS, Metric, MetricPoint, check_metric_name
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.tables import RecordTable, Shown, moment_text

VERSION: Final = 1
CHUNK_POINTS: Final = 1 << 16  # of one object
SHOWN_POINTS: Final = 20  # that are printed
_WIDTH: Final = 8  # bytes of a step, a time, a value
_POINT: Final = Struct("<qdq")  # step, value, time in ms
_POINTS: Final = np.dtype([("steps", "<i8"), ("values", "<f8"), ("times_ms", "<i8")])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MetricPoints(Shown):
    """Points of one metric, in the order in which they were logged.

    Attributes:
        steps: int64 ``(n,)``.
        values: float64 ``(n,)``.
        times_ms: int64 ``(n,)``, since 1970 in UTC.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times_ms: NDArray[np.int64]

    def to_table(self) -> RecordTable:
        """The newest points."""
        newest = self[-SHOWN_POINTS:]
        finite = self.values[np.isfinite(self.values)]
        title = f"{counted(len(self), 'point')}"
        if len(finite):
            title += f", from {finite.min():.6g} to {finite.max():.6g}, last {self.values[-1]:.6g}"
        columns = (newest.steps.tolist(), newest.values.tolist(), newest.times_ms.tolist())
        rows = tuple(
            (step, f"{value:.6g}", moment_text(time_ms * 10**6))
            for step, value, time_ms in zip(*columns, strict=True)
        )
        return RecordTable((title,), (">step", ">value", "time"), rows, len(self) - len(newest))

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, rows: slice) -> MetricPoints:
        return MetricPoints(self.steps[rows], self.values[rows], self.times_ms[rows])


class _StoredSeries(msgspec.Struct, frozen=True, array_like=True):
    name: str
    points: int
    steps: bytes
    times: bytes
    values: bytes


class _Chunk(msgspec.Struct, frozen=True):
    series: tuple[_StoredSeries, ...]
    version: int = VERSION


def encode_points(by_name: Mapping[str, MetricPoints]) -> bytes:
    """Payload of an object of metrics."""
    series = tuple(
        _StoredSeries(
            name,
            len(points),
            _planes(_differences(points.steps)),
            _planes(_differences(points.times_ms)),
            _planes(points.values),
        )
        for name, points in sorted(by_name.items())
    )
    return encode_canonical(_Chunk(series), "metrics")


def decode_points(
    payload: Buffer, digest: Digest, only: str | None = None
) -> dict[str, MetricPoints]:
    """What `encode_points` wrote into the payload of object `digest`; `only` one metric of it.

    Errors: `decode_canonical`.
    """
    chunk = decode_canonical(payload, _Chunk, f"metrics {digest:.12}", _check, version=VERSION)
    return {
        one.name: MetricPoints(
            np.cumsum(_words(one.steps, "<i8"), dtype=np.int64),
            _words(one.values, "<f8"),
            np.cumsum(_words(one.times, "<i8"), dtype=np.int64),
        )
        for one in chunk.series
        if only in (None, one.name)
    }


def join_points(parts: Iterable[MetricPoints]) -> MetricPoints:
    """One after the other."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return MetricPoints(
        np.concatenate([np.empty(0, np.int64), *(part.steps for part in found)]),
        np.concatenate([np.empty(0, np.float64), *(part.values for part in found)]),
        np.concatenate([np.empty(0, np.int64), *(part.times_ms for part in found)]),
    )


def _check(chunk: _Chunk) -> None:
    check_sorted("metric", [series.name for series in chunk.series])
    for one in chunk.series:
        sizes = {len(one.steps), len(one.times), len(one.values)}
        if one.points < 1 or sizes != {one.points * _WIDTH}:
            raise InvalidInputError(
                f"metric {one.name!r:.80}: {one.points} points in {sorted(sizes)} bytes"
            )


def _differences(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each from the one before, the first from 0; they wrap around, as their sums do again."""
    return np.diff(numbers, prepend=np.int64(0))


def _planes(numbers: NDArray[Any]) -> bytes:
    """All lowest bytes, then all second lowest, ..."""
    little = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(-1, _WIDTH).T.tobytes()


def _words(planes: bytes, dtype: str) -> NDArray[Any]:
    found = np.frombuffer(planes, np.uint8).reshape(_WIDTH, -1).T
    return np.ascontiguousarray(found).view(dtype).reshape(-1)


@dataclass(slots=True)
class _Series:
    """One metric: its points that are not forgotten yet, and what tells an observation told twice.

    Attributes:
        earlier: points of the run before this logbook.
        waiting: how many points were forgotten, and the bytes of those that are here.
        last: step and value of the newest point.
        last_counted: whether its step is the number of points before it.
    """

    earlier: int = 0
    last: tuple[int, float] = (0, 0.0)
    waiting: tuple[int, bytearray] = field(default_factory=lambda: (0, bytearray()))
    last_counted: bool = False
    last_of_checkpoint: bool = False

    @property
    def logged(self) -> int:
        """Points of this logbook, those that are forgotten included."""
        forgotten, here = self.waiting
        return forgotten + len(here) // _POINT.size

    def is_told(self, step: int | None, value: float, *, of_checkpoint: bool) -> bool:
        """Whether a checkpoint and the run tell of one observation, and this is the second of both.

        Its step is the same; or, where the run counted it, its value.
        """
        is_first = not self.earlier + self.logged
        if is_first or of_checkpoint == self.last_of_checkpoint:
            return False
        last_step, last_value = self.last
        equal = value == last_value or (math.isnan(value) and math.isnan(last_value))
        if self.last_counted or step is None:
            return equal
        return step == last_step and (equal or of_checkpoint)

    def add(self, step: int | None, value: float, time_ms: int, *, of_checkpoint: bool) -> None:
        is_counted = step is None
        step = self.earlier + self.logged if step is None else step
        point, here = _POINT.pack(step, value, time_ms), self.waiting[1]
        # No call from here on: an interrupt comes before all of this, or after it.
        here += point
        self.last, self.last_counted = (step, value), is_counted
        self.last_of_checkpoint = of_checkpoint

    def since(self, logged: int) -> MetricPoints:
        """Points behind the first so many."""
        forgotten, here = self.waiting
        # A copy: while an array lies over the bytes, which a traceback may keep, none can be added.
        found = np.frombuffer(bytes(here[(logged - forgotten) * _POINT.size :]), _POINTS)
        return MetricPoints(*(np.ascontiguousarray(found[name]) for name in _POINTS.names or ()))

    def forget(self, logged: int) -> None:
        forgotten, here = self.waiting
        self.waiting = logged, here[(logged - forgotten) * _POINT.size :]


@dataclass(frozen=True, slots=True)
class TakenPoints:
    """What was taken of a logbook.

    Attributes:
        points: by metric, those that came since the last taking.
        metrics: what became of all metrics, these points included, by name.
        logged: how many points of each metric were taken by now.
    """

    points: Mapping[str, MetricPoints]
    metrics: tuple[Metric, ...]
    logged: Mapping[str, int]


class Logbook:
    """The metrics of a run."""

    def __init__(self, earlier: tuple[Metric, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._series = {
            one.name: _Series(one.points, (one.last.step, one.last.value)) for one in earlier
        }
        self._earlier = TakenPoints({}, earlier, {})
        self.waiting = 0  # points that are not forgotten

    def add(
        self,
        values: Mapping[str, float],
        step: int | None,
        time_ms: int,
        *,
        of_checkpoint: bool = False,
    ) -> int:
        """Log values of one step; without `step`, of as many as each metric has points.

        What a run and a checkpoint of it tell both, one right after the other, is one point.

        Returns:
            How many points wait.

        Raises:
            InvalidInputError: a name that no metric may have, a step outside of 64 bits, or more
                metrics than a run may have. Nothing was logged.
        """
        if step is not None and not -(1 << 63) <= step < 1 << 63:
            raise InvalidInputError(f"step {step}: expected a whole number of 64 bits")
        with self._lock:
            series = [(self._of(name), value) for name, value in values.items()]
            for one, value in series:
                if not one.is_told(step, value, of_checkpoint=of_checkpoint):
                    one.add(step, value, time_ms, of_checkpoint=of_checkpoint)
                    self.waiting += 1
            return self.waiting

    def take(self, after: TakenPoints | None = None) -> TakenPoints:
        """The points that came after what was taken; None: all of this logbook.

        They stay: whoever keeps what is given lets them be forgotten.
        """
        before = self._earlier if after is None else after
        known = {one.name: one for one in before.metrics}
        points: dict[str, MetricPoints] = {}
        logged: dict[str, int] = {}
        with self._lock:
            for name, one in self._series.items():
                new = one.since(before.logged.get(name, 0))
                logged[name] = one.logged
                if len(new):
                    points[name] = new
        known |= {name: _in_short(name, known.get(name), new) for name, new in points.items()}
        return TakenPoints(points, tuple(known[name] for name in sorted(known)), logged)

    def forget(self, taken: TakenPoints) -> None:
        """Give up what was taken. Asked once more, or too late, it does nothing."""
        with self._lock:
            for name, logged in taken.logged.items():
                if logged > self._series[name].waiting[0]:
                    self._series[name].forget(logged)
            self.waiting = sum(len(one.waiting[1]) for one in self._series.values()) // _POINT.size

    def _of(self, name: str) -> _Series:
        found = self._series.get(name)
        if found is None:
            check_metric_name(name)
            if len(self._series) >= MAX_METRICS:
                raise InvalidInputError(
                    f"metric {name!r}: a run has {MAX_METRICS} metrics at most. Log what belongs "
                    "together as steps of one metric."
                )
            found = self._series[name] = _Series()
        return found


def cut(
    by_name: Mapping[str, MetricPoints], most: int = CHUNK_POINTS
) -> Iterator[dict[str, MetricPoints]]:
    """Points in parts of exactly `most`, but for the last one."""
    part: dict[str, MetricPoints] = {}
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


def joined(
    first: Mapping[str, MetricPoints], then: Mapping[str, MetricPoints]
) -> dict[str, MetricPoints]:
    """The points of both, metric by metric."""
    names = [*first, *(name for name in then if name not in first)]
    return {
        name: join_points([part[name] for part in (first, then) if name in part]) for name in names
    }


def _in_short(name: str, before: Metric | None, new: MetricPoints) -> Metric:
    """What became of a metric that has new points."""
    finite = np.flatnonzero(np.isfinite(new.values))
    points, not_finite = len(new), len(new) - len(finite)
    low, high = (None, None) if before is None else (before.min, before.max)
    if before is not None:
        points, not_finite = points + before.points, not_finite + before.not_finite
    if len(finite):
        least, most = (
            MetricPoint(int(new.steps[at]), float(new.values[at]))
            for at in (finite[new.values[finite].argmin()], finite[new.values[finite].argmax()])
        )
        low = least if low is None or least.value < low.value else low
        high = most if high is None or most.value > high.value else high
    last = MetricPoint(int(new.steps[-1]), float(new.values[-1]))
    return Metric(name, points, not_finite, last, low, high)


def thinned(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Positions of at most `most` values that draw the same line: of each stretch the extremes.

    The first and the last value are among them; what is not finite counts as no extreme.
    """
    if len(values) <= most:
        return np.arange(len(values))
    finite = np.isfinite(values)
    starts = np.linspace(0, len(values), max((most - 2) // 2, 1) + 1).astype(np.int64)[:-1]
    ends = np.append(starts[1:], len(values))
    low, high = np.where(finite, values, np.inf), np.where(finite, values, -np.inf)
    extremes = [
        start + at
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        for at in (int(np.argmin(low[start:end])), int(np.argmax(high[start:end])))
    ]
    return np.unique([0, *extremes, len(values) - 1])
