from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.merging.blend import kept_from

NUMBERS = st.lists(st.floats(0, allow_nan=False), min_size=1, max_size=40)


@given(NUMBERS, st.floats(0.01, 1), st.integers(1, 7))
def test_it_is_what_sorting_finds(values: list[float], density: float, step: int) -> None:
    parts = [np.array(values[at : at + step]) for at in range(0, len(values), step)]
    rank = max(1, ceil(density * len(values)))
    expected = 0.0 if density >= 1 else sorted(values, reverse=True)[rank - 1]
    assert kept_from(lambda: parts, density) == expected


def test_no_numbers_have_no_threshold() -> None:
    assert kept_from(list, 0.5) == 0.0


@pytest.mark.parametrize(("density", "kept"), [(0.25, 1), (0.5, 2), (0.75, 3), (1, 4)])
def test_the_share_that_is_kept_is_the_one_asked_for(density: float, kept: int) -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert np.count_nonzero(values >= kept_from(lambda: [values], density)) == kept
