"""Rows compared and predicted in C are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.native.delta_tokens import Numbers
from tensorrepo.formats.native.row_moves import CLASSES, FARTHEST, NATIVE, NUMPY

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")

F32, F64 = Numbers(4, signed_magnitude=True, exponent_bits=8), Numbers(8, True, 11)
KINDS = [pytest.param(F32, 15, id="f32"), pytest.param(F64, 44, id="f64")]


def near(of: Numbers, seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Numbers of any bits, and others of which many lie as far from them."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 1 << of.bits - 1, 5000, dtype=np.uint64)
    base |= rng.integers(0, 2, 5000, dtype=np.uint64) << np.uint64(of.bits - 1)
    moved = base + rng.choice([0, 1, 2, 2000, 1 << 20], 5000).astype(np.uint64)
    return moved.astype(of.dtype), base.astype(of.dtype)


@pytest.mark.parametrize(("columns", "skipped"), [(1, 0), (7, 3), (512, 511), (9000, 100)])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_both_count_alike_numbers_of_rows(size: int, columns: int, skipped: int) -> None:
    assert NATIVE is not None
    rng = np.random.default_rng(size)
    one, other = rng.integers(0, 3, (2, 3001)).astype(f"<u{size}")
    found = NATIVE.alike(one, other, columns, skipped)
    np.testing.assert_array_equal(found, NUMPY.alike(one, other, columns, skipped))
    assert found.sum() == np.count_nonzero(one == other)


@pytest.mark.parametrize(("of", "below"), KINDS)
def test_both_step_as_a_table_says(of: Numbers, below: int) -> None:
    assert NATIVE is not None
    _, base = near(of, 1)
    table = np.random.default_rng(2).integers(0, FARTHEST + 1, CLASSES).astype("<u2")
    found = NATIVE.step(base, of, below, table)
    np.testing.assert_array_equal(found, NUMPY.step(base, of, below, table))


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize(("of", "below"), KINDS)
def test_both_find_the_same_frequent_distances(of: Numbers, below: int, stride: int) -> None:
    assert NATIVE is not None
    for seed in range(3):  # what is counted of one frame is forgotten with it
        frame, base = near(of, seed)
        found, expected = (one.frequent(frame, base, of, below, stride) for one in (NATIVE, NUMPY))
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1] == expected[1] > 0


def test_what_makes_no_sense_is_refused() -> None:
    assert NATIVE is not None
    frame = np.zeros(8, "<u4")
    with pytest.raises(ValueError, match="no rows of 4 numbers"):
        NATIVE.alike(frame, frame, 4, 4)
    with pytest.raises(ValueError, match="no classes of 30 bits"):
        NATIVE.step(frame, F32, 30, np.zeros(CLASSES, "<u2"))
    with pytest.raises(ValueError, match="table has 510 bytes"):
        NATIVE.step(frame, F32, 15, np.zeros(CLASSES - 1, "<u2"))
    with pytest.raises(ValueError, match="one number of 0"):
        NATIVE.frequent(frame, frame, F32, 15, 0)


@pytest.mark.parametrize(("columns", "skipped"), [(1, 0), (7, 3), (512, 511), (9000, 100)])
@pytest.mark.parametrize(("of", "below"), KINDS)
@pytest.mark.parametrize("by_table", [False, True])
def test_both_take_the_same_rows(
    of: Numbers, below: int, columns: int, skipped: int, by_table: bool
) -> None:
    assert NATIVE is not None
    frame, base = near(of, columns)
    base[:2000] = frame[:2000]
    table = np.random.default_rng(3).integers(0, 2, CLASSES).astype("<u2")
    frame[3000:4000] = NUMPY.step(base, of, below, table)[3000:4000]
    found, expected = (
        one.take_decayed(frame, base, of, columns, skipped, below, table)
        if by_table
        else one.take(frame, base, columns, skipped)
        for one in (NATIVE, NUMPY)
    )
    np.testing.assert_array_equal(found.marks, expected.marks)
    assert found.marks.any()
    taken, others = ((*rows.moved, *rows.calm) for rows in (found, expected))
    assert [part.tolist() for part in taken] == [part.tolist() for part in others]
