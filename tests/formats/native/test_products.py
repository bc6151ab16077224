"""Low-rank products added in C are those of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.native.products import NATIVE, NUMPY

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")

DTYPES = {"F32": "<u4", "BF16": "<u2", "F16": "<u2"}


def bits(name: str, count: int, seed: int) -> NDArray[Any]:
    """Numbers of any bits: subnormal, infinite, and none at all among them."""
    rng = np.random.default_rng(seed)
    limit = 1 << 8 * np.dtype(DTYPES[name]).itemsize
    found: NDArray[Any] = rng.integers(0, limit, count, dtype=np.uint64).astype(DTYPES[name])
    found[: count // 4] &= limit // 256  # small ones
    return found


@pytest.mark.parametrize(("columns", "skipped"), [(1, 0), (7, 3), (512, 511), (1300, 100)])
@pytest.mark.parametrize("rank", [1, 5, 64])
@pytest.mark.parametrize("name", DTYPES)
def test_both_add_the_same_product(name: str, rank: int, columns: int, skipped: int) -> None:
    assert NATIVE is not None
    base, rng = bits(name, 3001, rank), np.random.default_rng(columns)
    rows = -(-(skipped + base.size) // columns)
    left = rng.integers(-(1 << 23), 1 << 23, (rows, rank)).astype(np.float64)
    right = rng.integers(-(1 << 23), 1 << 23, (rank, columns)).astype(np.float64)
    for shift in (30, 45, 200):
        found, expected = (
            one.step(base, left, right, 2.0**-shift, skipped, name) for one in (NATIVE, NUMPY)
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", DTYPES)
def test_both_tell_the_same_differences(name: str) -> None:
    assert NATIVE is not None
    frame, base = (bits(name, 4000, seed).reshape(40, 100) for seed in (1, 2))
    found, expected = (one.moved(frame, base, name) for one in (NATIVE, NUMPY))
    np.testing.assert_array_equal(found, expected)


def test_what_makes_no_sense_is_refused() -> None:
    assert NATIVE is not None
    base = np.zeros(8, "<u4")
    with pytest.raises(ValueError, match="no product of rank 1 with rows of 4 numbers"):
        NATIVE.step(base, np.zeros((2, 1)), np.zeros((1, 4)), 1.0, 4, "F32")
    with pytest.raises(ValueError, match="left has 8 bytes"):
        NATIVE.step(base, np.zeros((1, 1)), np.zeros((1, 4)), 1.0, 0, "F32")
