"""How does a metric look in a few characters?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_BARS: Final = "▁▂▃▄▅▆▇█"
_NOTHING: Final = "·"  # where no value is finite
_LABEL: Final = 10


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
