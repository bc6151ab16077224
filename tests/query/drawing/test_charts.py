"""Charts say their numbers: whole steps on the axis, whatever little there is."""

from __future__ import annotations

import re

import numpy as np

from tensorrepo.query.drawing.charts import line_chart


def test_steps_are_whole_on_the_axis() -> None:
    drawn = line_chart({"accuracy": (np.array([1, 2]), np.array([0.5, 0.7]))})
    across = re.findall(r'text-anchor="middle">([^<]*)<', drawn)
    assert across == ["1", "2"]
