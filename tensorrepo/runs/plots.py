"""Plots of metrics by matplotlib, of the extra `plots`.

Figures are made without `pyplot`: no backend is chosen or switched, no window opens, nothing stays
in a list of open figures. A notebook shows them by themselves.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import chosen
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.runs.metrics import MetricPoints, thinned
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS: Final = 2000  # of a line: more than a screen has pixels
_PANEL_INCHES: Final = (5.0, 3.0)
_SIDE_BY_SIDE: Final = 3
_MISSING: Final = "plots need matplotlib: pip install 'tensorrepo[plots]'"
_SECONDS: Final = {"seconds": 1.0, "hours": 3600.0}


def plot_metrics(
    courses: Mapping[str, Mapping[str, MetricPoints]],
    *,
    x: str = "step",
    log: bool = False,
    axes: Axes | None = None,
) -> Figure:
    """A panel for each metric, in it a line for each run.

    Args:
        courses: points by metric, then by run.
        x: what is counted to the right: "step", or "seconds" or "hours" since the first point.
        log: whether values are on a logarithmic scale.
        axes: axes of matplotlib to draw one metric into; None: a new figure.

    Returns:
        The figure: ``figure.axes`` are its panels, ``figure.savefig("loss.svg")`` writes it.

    Raises:
        UnsupportedError: matplotlib is not installed.
        InvalidInputError: nothing to plot, or several metrics for one `axes`.
    """
    chosen("x", x, ("step", *_SECONDS))
    if not courses or (axes is not None and len(courses) > 1):
        what = "one metric where axes are given" if courses else "a metric, and none was logged"
        raise InvalidInputError(f"plot takes {what}, got {len(courses)}")
    panels = [axes] if axes is not None else _panels(len(courses))
    for (metric, runs), panel in zip(courses.items(), panels, strict=True):
        _draw(panel, metric, runs, x=x, log=log)
    figure: Any = panels[0].get_figure(root=True)
    return cast("Figure", figure)


def _panels(count: int) -> list[Any]:
    wide = min(count, _SIDE_BY_SIDE)
    high = -(-count // wide)
    inches = (_PANEL_INCHES[0] * wide, _PANEL_INCHES[1] * high)
    figure = _figure_class()(figsize=inches, layout="constrained")
    return [figure.add_subplot(high, wide, at + 1) for at in range(count)]


def _draw(panel: Any, metric: str, runs: Mapping[str, MetricPoints], *, x: str, log: bool) -> None:
    lines = []
    for points in runs.values():
        shown = thinned(points.values, MOST_POINTS)
        across: NDArray[Any] = points.steps[shown]
        if x != "step":
            began = points.times_ms[0] if len(points) else 0
            across = (points.times_ms[shown] - began) / 1000 / _SECONDS[x]
        mark = "o" if len(shown) == 1 else None
        lines += panel.plot(across, points.values[shown], marker=mark, linewidth=1.3)
    # Names are no mathematics, though they may have dollars.
    panel.set_title(printable(metric), parse_math=False, fontsize="medium")
    panel.set_xlabel(x)
    panel.grid(visible=True, alpha=0.25)
    if log:
        panel.set_yscale("log")
    if len(runs) > 1:
        panel.legend(lines, [printable(name) for name in runs], fontsize="small")


@cache
def _figure_class() -> Any:
    figures = import_library("matplotlib.figure", _MISSING)

    class NotebookFigure(figures.Figure):  # type: ignore[name-defined,misc]
        """A figure that a notebook shows though no `pyplot` made it."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return NotebookFigure
