"""Summary of runs for people: facts, metrics with sparklines, charts of characters."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.runs.metrics import MetricPoints
from tensorrepo.formats.runs.run_record import SYSTEM, MetricPoint, RunDocument
from tensorrepo.repo.tables import Cell, RecordTable, age_text, moment_text

MOST_SHOWN: Final = 40  # metrics of one run
_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = "·"  # where no value is finite
_LABEL: Final = 10
_POSITION: Final = ("seed", "epoch", "position")


def sparkline(values: NDArray[np.float64], width: int = 40) -> str:
    """One line: means of equally many points, from the smallest to the largest of them."""
    means = _means(values, width)
    return "".join(_BARS[level] if level >= 0 else _NOTHING for level in _levels(means, 8))


def chart(values: NDArray[np.float64], width: int = 64, height: int = 10) -> Iterator[str]:
    """Lines of a chart, the largest mean on top, with labels of the smallest and the largest."""
    means = _means(values, width)
    levels = _levels(means, height * 8)
    finite = means[np.isfinite(means)]
    labels = {height - 1: finite.max(), 0: finite.min()} if len(finite) else {}
    for row in reversed(range(height)):
        label = f"{labels[row]:.4g}" if row in labels else ""
        cells = "".join(_cell(level - row * 8) for level in levels)
        yield f"{label:>{_LABEL}} ┤{cells}".rstrip()


def _cell(level: int) -> str:
    return " " if level < 0 else _BARS[min(level, 7)]


def _means(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Means of the finite values of at most `width` stretches; NaN where there is none."""
    count = min(width, len(values))
    if not count:
        return np.empty(0)
    stretch = np.arange(len(values)) * count // len(values)
    finite = np.isfinite(values)
    numbers = np.bincount(stretch[finite], minlength=count)
    # Shares, not sums: what is near the largest float must not become infinite.
    shares = values[finite] / np.maximum(numbers, 1)[stretch[finite]]
    sums = np.bincount(stretch[finite], shares, minlength=count)
    return np.where(numbers > 0, sums, math.nan)


def _levels(means: NDArray[np.float64], steps: int) -> list[int]:
    """From 0 to steps - 1, by how large; -1 for what is not finite."""
    finite = means[np.isfinite(means)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    span: Any = high / 2 - low / 2  # halves: the difference itself may be infinite
    return [
        -1 if not math.isfinite(mean) else _level(mean / 2 - low / 2, span, steps)
        for mean in means.tolist()
    ]


def _level(above: float, span: float, steps: int) -> int:
    return steps // 2 if not span else min(int(above / span * steps), steps - 1)


def run_lines(document: RunDocument, state: str) -> Iterator[str]:
    """What it is, ran on, took and made."""
    newest = document.attempts[-1]
    yield f"run       {document.name} ({document.id:.12}), {state}"
    if document.error:
        yield f"error     {document.error}"
    yield f"author    {document.author}"
    yield f"began     {moment_text(document.started_ns)}, took {took_text(document)}"
    if len(document.attempts) > 1:
        yield f"attempts  {len(document.attempts)}, the last one {moment_text(newest.started_ns)}"
    if newest.code is not None:
        dirty = ", and files that differ" if newest.code.dirty else ""
        yield f"code      {newest.code.script or ''} at git commit {newest.code.commit:.12}{dirty}"
    machine = newest.environment.get("machine", {})
    words = [str(machine[key]) for key in ("host", "processor", "gpus") if machine.get(key)]
    yield f"machine   Python {newest.environment.get('python', '?')}, {', '.join(words)}"
    for name, value in sorted(document.params.items()):
        yield f"param     {name} = {param_text(value)}"
    for edge in document.inputs:
        at = ", ".join(f"{key} {edge.details[key]}" for key in _POSITION if key in edge.details)
        version = f" ({edge.digest:.12})" if edge.digest else ""
        yield f"{edge.relation:<9} {edge.path}{version}{f': {at}' if at else ''}"
    for made in document.outputs:
        yield f"made      {made.path} ({made.digest:.12}) in commit {made.commit:.12}"


def run_table(
    document: RunDocument, state: str, points: Callable[[str], MetricPoints]
) -> RecordTable:
    """The facts of a run above its metrics, whose `points` are read for their courses."""
    shown, hidden = document.metrics[:MOST_SHOWN], max(len(document.metrics) - MOST_SHOWN, 0)
    table = RecordTable.of(shown, metric_columns(points), *run_lines(document, state))
    return replace(table, more=hidden) if shown else RecordTable(table.lines)


def metric_columns(points: Callable[[str], MetricPoints]) -> dict[str, Cell]:
    """Columns of a table of metrics; their courses are read as it is made."""
    return {
        "metric": "name",
        ">points": lambda each: f"{each.points:,}",
        ">last": lambda each: f"{each.last.value:.6g}",
        ">min": lambda each: _extreme(each.min),
        ">max": lambda each: _extreme(each.max),
        "course": lambda each: sparkline(points(each.name).values),
    }


def common_metrics(runs: Iterable[RunDocument], most: int | None = 3) -> list[str]:
    """Names of metrics but those of machines, those that most runs have first."""
    counts = Counter(
        one.name for run in runs for one in run.metrics if not one.name.startswith(SYSTEM)
    )
    return sorted(counts, key=lambda name: (-counts[name], name))[:most]


def took_text(document: RunDocument) -> str:
    """How long it went on, from its start to its end, or to when it was last written."""
    seconds = ((document.ended_ns or document.written_ns) - document.started_ns) / 1e9
    return f"{seconds:.0f} s" if seconds < 120 else age_text(seconds)


def param_text(value: Any) -> str:
    """A parameter, as JSON where it is no text."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _extreme(point: MetricPoint | None) -> str:
    return "-" if point is None else f"{point.value:.6g} at {point.step}"
