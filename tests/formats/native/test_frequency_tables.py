"""Tables made and written in C are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.native import rans
from tensorrepo.formats.native.frequency_tables import MAX_GROUPS, NATIVE, NUMPY
from tensorrepo.formats.native.rans import TABLE

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")


def counts_of(seed: int, contexts: int) -> NDArray[np.uint32]:
    """Counts as planes have them: few or many symbols, and contexts that were never seen."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((contexts, 256), np.uint32)
    scale = 10 ** rng.uniform(0, 5)
    for context in np.flatnonzero(rng.random(contexts) < rng.uniform(0.02, 1)):
        first, width = rng.integers(0, 256), rng.integers(1, 257)
        stop = min(first + width, 256)
        counts[context, first:stop] = rng.gamma(0.3, scale, stop - first)
    counts[rng.integers(0, contexts), rng.integers(0, 256)] += 1
    return counts


@pytest.mark.parametrize("contexts", [1, 7, 256])
def test_both_make_and_write_the_same(contexts: int) -> None:
    assert NATIVE is not None
    for seed in range(60):
        counts = counts_of(seed, contexts)
        ours, theirs = NATIVE.group(counts), NUMPY.group(counts)
        for one, other in zip(ours[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(one, other)
        assert ours[3] == pytest.approx(theirs[3])
        assert NATIVE.entropy(counts) == pytest.approx(NUMPY.entropy(counts))
        groups, frequencies, counted, _ = ours
        assert len(frequencies) <= MAX_GROUPS
        assert (frequencies.sum(1) == TABLE).all()
        assert (frequencies[counted > 0] > 0).all()
        assert counted.sum() == counts.sum()
        assert NATIVE.encode(groups, frequencies) == NUMPY.encode(groups, frequencies)


def exponents(others: int) -> NDArray[np.uint8]:
    """Symbols of which half as many are one less, and so on; and some that are any."""
    rng = np.random.default_rng(others)
    plane = (124 - rng.geometric(0.5, 40_011)).astype(np.uint8)
    plane[rng.integers(0, plane.size, others)] = rng.integers(0, 256, others)
    return plane


def packed_in_steps(plane: NDArray[np.uint8]) -> tuple[object, int, bytes, bool, int]:
    """What `pack` returns, by the steps in numpy."""
    counts = rans.NUMPY.count(plane, None, 1)
    groups, frequencies, _, bits = NUMPY.group(counts)
    coded = rans.NUMPY.pack(plane, None, frequencies, rans.MANY_LANES)
    expected = pytest.approx(bits / 8 / plane.size)
    stored = NUMPY.encode(groups, frequencies) + coded.tobytes()
    return expected, int(counts.max()), stored, False, rans.MANY_LANES


@pytest.mark.parametrize("others", [0, 9, 100, 4000])
def test_exponents_are_packed_as_in_steps(others: int) -> None:
    assert NATIVE is not None
    plane = exponents(others)
    assert NATIVE.pack(plane, plane.size) == packed_in_steps(plane)


def test_what_makes_no_sense_is_refused() -> None:
    assert NATIVE is not None
    groups, frequencies, _, _ = NUMPY.group(counts_of(0, 256))
    with pytest.raises(ValueError, match="no tables"):
        NATIVE.encode(groups[::-1].copy(), frequencies)
    with pytest.raises(ValueError, match="groups has 255 bytes"):
        NATIVE.encode(groups[:-1], frequencies)
    with pytest.raises(ValueError, match="262145 bytes to look at"):
        NATIVE.look_back(np.zeros((1 << 18) + 1, np.uint8))
    with pytest.raises(ValueError, match="no counts of 257 contexts"):
        NATIVE.group(np.ones((257, 256), np.uint32))


@pytest.mark.parametrize("size", [1, 63, 75, 4096, 1 << 15])
@pytest.mark.parametrize("period", [1, 77, 3000])
@pytest.mark.parametrize("values", [2, 9, 256])
def test_both_see_the_same_runs_again(size: int, period: int, values: int) -> None:
    assert NATIVE is not None
    rng = np.random.default_rng(size)
    plane = np.resize(rng.integers(0, values, period, np.uint8), size)
    plane[rng.random(size) < 0.01] = 0
    windows, bits = NATIVE.look_back(plane)
    expected = NUMPY.look_back(plane)
    assert (windows, bits) == (expected[0], pytest.approx(expected[1]))


@pytest.mark.parametrize("period", [1, 77, 3000, 16_001])
def test_a_plane_that_says_all_again_repeats_in_most_windows(period: int) -> None:
    plane = np.resize(np.random.default_rng(7).integers(0, 256, period, np.uint8), 1 << 15)
    windows, _ = NUMPY.look_back(plane)
    assert windows > 2 * (plane.size - period) // (3 * 64)
