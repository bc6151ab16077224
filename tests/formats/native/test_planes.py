"""Byte planes of numbers: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, pack_plane
from tensorrepo.formats.native.planes import NATIVE, NUMPY, PlaneSplitter
from tests.support.builders.native import needs_native
from tests.support.effort import sampled

SPLITTERS: list[Any] = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("splitter", SPLITTERS)
SIZES = pytest.mark.parametrize(
    ("size", "turn"),
    [(1, False), (2, False), (2, True), (4, False), (4, True), (8, False), (8, True)],
)
COUNTS = pytest.mark.parametrize("count", sampled([1025, 0, 1, 1023, 5000, 1024, 7], 3))


@EVERY
@SIZES
@COUNTS
def test_planes_joined_are_the_numbers(
    splitter: PlaneSplitter, size: int, turn: bool, count: int
) -> None:
    frame = np.random.default_rng(size).integers(0, 256, count * size, np.uint8)
    planes = splitter.split(frame, size, turn=turn)
    out = np.zeros_like(frame)
    splitter.join(list(planes), out, turn=turn)
    assert planes.shape == (size, count)
    assert np.array_equal(out, frame)


@needs_native
@SIZES
@COUNTS
def test_both_split_alike(size: int, turn: bool, count: int) -> None:
    assert NATIVE is not None
    frame = np.random.default_rng(size).integers(0, 256, count * size, np.uint8)
    split = [each.split(frame, size, turn=turn) for each in (NATIVE, NUMPY)]
    assert np.array_equal(*split)


@EVERY
def test_the_first_plane_of_a_float_is_its_exponent(splitter: PlaneSplitter) -> None:
    planes = splitter.split(np.array([-1.5, 0.25], "<f4").view(np.uint8), 4, turn=True)
    assert planes[0].tolist() == [127, 125]
    assert planes[1].tolist() == [0x80 | 0x40, 0]


@EVERY
@SIZES
@COUNTS
def test_planes_lie_in_the_memory_that_is_given(
    splitter: PlaneSplitter, size: int, turn: bool, count: int
) -> None:
    frame = np.random.default_rng(size).integers(0, 256, count * size, np.uint8)
    planes = [np.full(count, 7, np.uint8) for _ in range(size)]
    splitter.split_into(frame, planes, turn=turn)
    assert np.array_equal(planes, splitter.split(frame, size, turn=turn))


@needs_native
@SIZES
@pytest.mark.parametrize("count", [5, 4097, 40_000, 270_001])
def test_stored_planes_are_joined_as_those_that_were_unpacked_before(
    size: int, turn: bool, count: int
) -> None:
    assert NATIVE is not None
    rng = np.random.default_rng(size)
    kinds = [rng.integers(0, 256, count, np.uint8), np.full(count, 7, np.uint8)]
    planes = [*kinds, *(rng.binomial(40, 0.3, count).astype(np.uint8) for _ in range(6))][:size]
    stored = [pack_plane(plane) for plane in planes]
    found, expected = np.zeros((2, count * size), np.uint8)
    joined = NATIVE.join_stored(stored, size, found.data, turn=turn)
    NUMPY.join(planes, expected, turn=turn)
    assert joined
    assert np.array_equal(found, expected)


@needs_native
@pytest.mark.parametrize("cut", [1, 2, 400, 1000])
def test_a_stored_plane_that_is_cut_short_is_left_to_those_who_say_so(cut: int) -> None:
    assert NATIVE is not None
    plane = np.random.default_rng(1).binomial(40, 0.3, 5000).astype(np.uint8)
    codec, data = pack_plane(plane)
    planes, out = (
        [(codec, bytes(data)[:-cut]), (PlaneCodec.RAW, plane.data)],
        np.zeros(10_000, "u1"),
    )
    assert not NATIVE.join_stored(planes, 2, out.data, turn=False)
