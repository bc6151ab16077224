"""Sums of rows: in C and by the library, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.native.row_sums import NATIVE, PYTHON, RowSummer
from tests.support.builders.native import needs_native

SUMMERS: list[Any] = [
    pytest.param(PYTHON, id="python"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("summer", SUMMERS)
DATA = np.random.default_rng(3).integers(0, 256, 400_000, np.uint8)


@EVERY
def test_rows_of_every_length_have_the_low_half_of_their_xxh3(summer: RowSummer) -> None:
    lengths = [*range(700), 1023, 1024, 1025, 4096, 70_000]
    bounds = np.cumsum([5, *lengths], dtype=np.int64)
    found = np.empty(len(lengths), np.uint32)
    summer.sum(DATA, bounds, found)
    copied = np.empty(bounds[-1] - bounds[0], np.uint8)
    again = np.empty_like(found)
    summer.sum(DATA, bounds, again, copied)
    rows = [DATA[start:][:length].tobytes() for start, length in zip(bounds, lengths, strict=False)]
    assert copied.tobytes() == b"".join(rows)
    assert again.tolist() == found.tolist() == [xxh3_64_intdigest(row) & 0xFFFFFFFF for row in rows]


@EVERY
@pytest.mark.parametrize("bounds", [[0, 3], [2, 1, 3], [-1, 1, 2], [0, 1, 4]])
def test_bounds_that_do_not_fit_are_refused(summer: RowSummer, bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        summer.sum(DATA[:3], np.array(bounds), np.empty(2, np.uint32))
