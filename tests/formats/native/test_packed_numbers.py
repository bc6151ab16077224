"""Bit unpacking: in C and in numpy, with identical results."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.native.packed_numbers import NATIVE, NUMPY, Unpacker
from tests.support.builders.native import needs_native
from tests.support.effort import sampled_product

EVERY = pytest.mark.parametrize(
    "unpacker",
    [
        pytest.param(NUMPY, id="numpy"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
RNG = np.random.default_rng(9)


def packed(distances: list[int], width: int) -> bytes:
    """As the specification says it, in one number of Python."""
    whole = sum(distance << at * width for at, distance in enumerate(distances))
    return whole.to_bytes(-(-len(distances) * width // 8), "little")


@EVERY
@sampled_product(
    "size,width,count",
    [1, 2, 4, 8],
    [1, 2, 3, 4, 7, 8, 13, 16, 31, 49, 55, 56],
    [1, 8, 9, 207],
    dev=40,
)
def test_numbers_come_back(unpacker: Unpacker, size: int, width: int, count: int) -> None:
    width = min(width, 8 * size)
    distances = [int(each) for each in RNG.integers(0, 1 << width, count)]
    minimum = (1 << 8 * size) - 3  # most of them pass the end of the range
    out = np.empty(count, f"<u{size}")
    data = np.frombuffer(packed(distances, width), np.uint8)
    unpacker.unpack(data, width, minimum, out)
    assert out.tolist() == [(minimum + distance) % (1 << 8 * size) for distance in distances]


@EVERY
@pytest.mark.parametrize(
    ("nbytes", "width", "size"), [(3, 0, 4), (3, 9, 1), (57, 57, 8), (2, 3, 4), (4, 3, 4)]
)
def test_what_cannot_be_is_refused(unpacker: Unpacker, nbytes: int, width: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|bits"):
        unpacker.unpack(np.zeros(nbytes, np.uint8), width, 0, np.empty(8, f"<u{size}"))
