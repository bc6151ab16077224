"""Charts as inline SVG and HTML: histograms, bars, shares, lines of metrics.

They take their colors from the page by classes (`c0` to `c7`), so that they follow its light or
dark scheme, need no script and no style of their own, and tell their numbers as titles. Names are
escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.runs.metrics import thinned
from tensorrepo.query.drawing.parts import COLORS, legend, text

LINE_POINTS: Final = 400
_BARS: Final = (220, 56)  # px
_LINES: Final = (420, 200)
_LEFT, _BOTTOM, _TOP, _RIGHT = 56, 20, 8, 10  # room around the lines
_TICKS: Final = 4

Series = tuple[NDArray[np.int64], NDArray[np.float64]]  # steps and values


def number(value: float) -> str:
    """A number of an axis, short."""
    return f"{value:,.0f}" if abs(value) < 1e6 and value == round(value) else f"{value:.4g}"


def histogram(counts: Sequence[int], edges: Sequence[float]) -> str:
    """Bars side by side, the bounds below them; without bounds behind the last, each is a value."""
    width, height = _BARS
    most, step = max(counts, default=0) or 1, width / max(len(counts), 1)
    bars = "".join(
        f'<rect x="{at * step:.1f}" y="{height * (1 - count / most):.1f}" '
        f'width="{max(step - 1, 1):.1f}" height="{height * count / most:.1f}">'
        f"<title>{_bounds(edges, at, len(counts))}: {count:,}</title></rect>"
        for at, count in enumerate(counts)
        if count
    )
    return (
        f'<svg class="histogram" role="img" aria-label="Histogram" '
        f'width="{width}" height="{height + 16}" '
        f'viewBox="0 0 {width} {height + 16}">{bars}'
        f'<line x1="0" x2="{width}" y1="{height}" y2="{height}"/>'
        f'<text x="0" y="{height + 13}">{number(edges[0])}</text>'
        f'<text x="{width}" y="{height + 13}" text-anchor="end">{number(edges[-1])}</text></svg>'
    )


def _bounds(edges: Sequence[float], at: int, count: int) -> str:
    one = len(edges) == count
    return number(edges[at]) if one else f"{number(edges[at])} to {number(edges[at + 1])}"


def bars(counts: Sequence[tuple[str, int]]) -> str:
    """A line with a bar for each name, as long as its count."""
    most = max((count for _, count in counts), default=0) or 1
    rows = "".join(
        f'<div class="bar"><span title="{text(name)}">{text(name, 24)}</span>'
        f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * count / most:.1f}" height="8"/></svg><b>{count:,}</b></div>'
        for name, count in counts
    )
    return f'<div class="bars">{rows}</div>'


def shares(parts: Sequence[tuple[str, int]]) -> str:
    """One line cut in parts, and what they are below it."""
    total = sum(size for _, size in parts) or 1
    starts = accumulate((size for _, size in parts), initial=0)
    line = "".join(
        f'<rect class="c{at % COLORS}" x="{100 * start / total:.2f}" '
        f'width="{100 * size / total:.2f}" height="10">'
        f"<title>{text(name)} {escape(_percent(size / total))}</title></rect>"
        for at, (start, (name, size)) in enumerate(zip(starts, parts, strict=False))
    )
    names = [f"{name} {_percent(size / total)}" for name, size in parts]
    ratio = 'viewBox="0 0 100 10" preserveAspectRatio="none"'
    return f'<svg class="shares" role="img" aria-label="Shares" {ratio}>{line}</svg>{legend(names)}'


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.001 else f"{100 * share:.1f}%"


def line_chart(series: Mapping[str, Series]) -> str:
    """A line for each name, and their legend where there are several."""
    width, height = _LINES
    steps = np.concatenate([np.empty(0, np.int64), *(each[0] for each in series.values())])
    values = np.concatenate([np.empty(0), *(each[1] for each in series.values())])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return '<p class="quiet">no finite values</p>'
    across = _Scale(float(steps.min()), float(steps.max()), _LEFT, width - _RIGHT)
    up = _Scale(float(finite.min()), float(finite.max()), height - _BOTTOM, _TOP)
    lines = "".join(
        _line(points, across, up, f"c{at % COLORS}", name)
        for at, (name, points) in enumerate(series.items())
    )
    names = legend(list(series)) if len(series) > 1 else ""
    return (
        f'<svg class="lines" role="img" aria-label="{text(", ".join(series))}" '
        f'width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(_grid(across, up, width, height))}{lines}</svg>'
        f"{names}"
    )


class _Scale:
    """Numbers ``[low, high]`` on px ``[start, stop]``."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        if low == high:
            pad = abs(low) / 2 or 1.0
            low, high = low - pad, high + pad
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        # Halves: the difference of two floats may be infinite.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Some round numbers between both ends."""
        span = self.high - self.low
        if not math.isfinite(span) or span / _TICKS < np.finfo(float).tiny:
            return [self.low, self.high]
        power = 10.0 ** math.floor(math.log10(span / _TICKS))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= span / _TICKS)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [at * step for at in range(first, last + 1)][: 2 * _TICKS + 4]


def _grid(across: _Scale, up: _Scale, width: int, height: int) -> Iterator[str]:
    for value in up.ticks():
        y = up(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
    for value in dict.fromkeys(round(tick) for tick in across.ticks()):  # steps are whole
        x = across(value)
        yield f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{number(value)}</text>'


def _line(points: Series, across: _Scale, up: _Scale, color: str, name: str) -> str:
    """Pieces of a line, cut where values are not finite; a point alone is a dot."""
    steps, values = points
    shown = thinned(values, LINE_POINTS)
    pieces: list[list[str]] = [[]]
    for step, value in zip(steps[shown].tolist(), values[shown].tolist(), strict=True):
        if not math.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append(f"{across(step):.1f},{up(value):.1f}")
    drawn = [
        f'<polyline points="{" ".join(piece)}"/>'
        if len(piece) > 1
        else '<circle cx="{}" cy="{}" r="2.5"/>'.format(*piece[0].split(","))
        for piece in pieces
        if piece
    ]
    return f'<g class="{color}"><title>{text(name)}</title>{"".join(drawn)}</g>'
