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


# Rows and columns that are looked at, the rank of what moved (0: every number by itself), how far
# numbers moved beside those of the base, and what is said of that.
LOOKS = [
    ((60, 60), 0, 1e-2, {"F32": True, "BF16": False}),
    ((60, 60), 0, 1e-4, {"F32": True, "BF16": True}),
    ((60, 60), 2, 1e-1, {"F32": False, "BF16": False}),
    ((60, 60), 8, 1e-1, {"F32": False, "BF16": False}),
    ((30, 60), 0, 1e-3, {"F32": True, "BF16": True}),
    ((60, 30), 0, 1e-3, {"F32": False, "BF16": True}),
    ((60, 60), 0, 0.0, {"F32": False, "BF16": False}),
]


@pytest.mark.parametrize("name", ["F32", "BF16"])
@pytest.mark.parametrize(("shape", "rank", "far", "expected"), LOOKS)
def test_what_is_not_of_low_rank_is_seen(
    shape: tuple[int, int], rank: int, far: float, expected: dict[str, bool], name: str
) -> None:
    assert NATIVE is not None
    frame, base = tuned(rank, far, name)
    places, noise = np.ix_(np.arange(0, 3 * shape[0], 3), np.arange(shape[1])), NOISE[name]
    said = [one.has_no_low_rank(frame, base, places, noise, name) for one in (NATIVE, NUMPY)]
    assert said == [expected[name]] * 2


@pytest.mark.parametrize("name", ["F32", "BF16"])
@pytest.mark.parametrize("far", [0.3**power for power in range(16)])
@pytest.mark.parametrize("rank", [0, 1, 3, 20, 50])
def test_nothing_is_seen_that_singular_values_contradict(rank: int, far: float, name: str) -> None:
    assert NATIVE is not None
    frame, base = tuned(rank, far, name)
    places = np.ix_(np.arange(0, 180, 3), np.arange(60))
    said = NATIVE.has_no_low_rank(frame, base, places, NOISE[name], name)
    values = np.linalg.svd(NUMPY.moved(frame[places], base[places], name), compute_uv=False)
    scale = np.sqrt(np.mean(NUMPY.moved(base[places], base[places] * 0, name) ** 2))
    above = values > NOISE[name] * scale * 2 * np.sqrt(60)
    is_low = above.sum() <= 40 and (values[~above] ** 2).sum() <= 0.15 * (values**2).sum()
    assert not (said and is_low)


NOISE = {"F32": 1.5 * 2.0**-25, "BF16": 1.5 * 2.0**-9}


def tuned(rank: int, far: float, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """A matrix that moved by a product of that rank, or with 0 anyhow, and its base."""
    rng = np.random.default_rng(rank)
    old, moved = rng.standard_normal((2, 200, 100))
    if rank:
        moved = rng.standard_normal((200, rank)) @ rng.standard_normal((rank, 100))
    return as_bits(old + far * moved, name), as_bits(old, name)


def as_bits(numbers: NDArray[np.float64], name: str) -> NDArray[Any]:
    """The nearest float32, or what is left of that when its lower half is cut off."""
    whole = numbers.astype("<f4").view("<u4")
    return whole if name == "F32" else (whole >> np.uint32(16)).astype("<u2")


def test_places_outside_are_refused() -> None:
    assert NATIVE is not None
    frame = np.zeros((8, 8), "<u4")
    with pytest.raises(ValueError, match="no rows of 8 numbers among 64"):
        NATIVE.has_no_low_rank(frame, frame, np.ix_([0, 8], [0, 1]), 1.0, "F32")
    with pytest.raises(ValueError, match="no rows of 8 numbers among 64"):
        NATIVE.has_no_low_rank(frame, frame, np.ix_([0, 1], [-1, 1]), 1.0, "F32")
