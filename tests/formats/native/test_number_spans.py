"""Bounds of numbers: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.native.number_spans import NATIVE, NUMPY, SpanFinder
from tests.support.builders.native import needs_native

EVERY = pytest.mark.parametrize(
    "finder",
    [
        pytest.param(NUMPY, id="numpy"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
RNG = np.random.default_rng(4)


@EVERY
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("numbers", [1, 7, 1000, 300_000])
def test_bounds_are_those_of_python(finder: SpanFinder, size: int, numbers: int) -> None:
    data = RNG.integers(-90, 100, numbers).astype(f"<i{size}")
    unsigned = data.view(f"<u{size}").tolist()
    low, high = (bound % (1 << 8 * size) for bound in (min(data.tolist()), max(data.tolist())))
    expected: tuple[Any, ...] = (min(unsigned), max(unsigned), low, high)
    assert finder.spans(data.view(np.uint8).data, size) == expected


@EVERY
@pytest.mark.parametrize(("nbytes", "size"), [(0, 1), (6, 4), (6, 3)])
def test_what_is_no_numbers_is_refused(finder: SpanFinder, nbytes: int, size: int) -> None:
    with pytest.raises(ValueError, match="no numbers"):
        finder.spans(bytes(nbytes), size)
