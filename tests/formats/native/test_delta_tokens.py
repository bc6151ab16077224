"""Distances of numbers from a base: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.native.delta_tokens import (
    NATIVE,
    NUMPY,
    SLACK_BYTES,
    Distances,
    Numbers,
    apply,
    bits_of,
)
from tests.support.builders.native import needs_native
from tests.support.effort import sampled_product

IMPLEMENTATIONS: list[Any] = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("distances", IMPLEMENTATIONS)
KINDS = pytest.mark.parametrize(
    "of",
    [
        Numbers(1, signed_magnitude=False, exponent_bits=0),
        Numbers(1, signed_magnitude=True, exponent_bits=0),
        Numbers(2, signed_magnitude=False, exponent_bits=0),
        Numbers(2, signed_magnitude=True, exponent_bits=5),
        Numbers(2, signed_magnitude=True, exponent_bits=8),
        Numbers(4, signed_magnitude=False, exponent_bits=0),
        Numbers(4, signed_magnitude=True, exponent_bits=8),
        Numbers(8, signed_magnitude=False, exponent_bits=0),
        Numbers(8, signed_magnitude=True, exponent_bits=11),
    ],
    ids=lambda of: f"{of.size}-{of.signed_magnitude:d}-{of.exponent_bits}",
)
SEEDS = st.integers(0, 1 << 16)


def pair(of: Numbers, count: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers and bases of any bits: near ones, far ones, equal ones."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, count * of.size, np.uint8).view(of.dtype)
    steps = rng.integers(0, 1 << 62, count) >> rng.integers(0, 63, count)
    return base + steps.astype(of.dtype), base


def packed(
    distances: Distances, frame: NDArray[Any], base: NDArray[Any], of: Numbers
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    tokens, _ = distances.scan(frame, base, of)
    room = (int(bits_of(tokens).sum(dtype=np.int64)) + 7) // 8 + SLACK_BYTES
    out = np.empty(room, np.uint8)
    return tokens, out[: distances.pack_bits(frame, base, of, tokens, out)]


@EVERY
@KINDS
@given(count=st.integers(1, 300), seed=SEEDS)
def test_numbers_come_back(distances: Distances, of: Numbers, count: int, seed: int) -> None:
    frame, base = pair(of, count, seed)
    tokens, bits = packed(distances, frame, base, of)
    out = np.zeros_like(base)
    assert apply(tokens, bits, base, of, out)
    assert np.array_equal(out, frame)


@needs_native
@KINDS
@given(count=st.integers(1, 3000), seed=SEEDS)
def test_both_find_the_same(of: Numbers, count: int, seed: int) -> None:
    assert NATIVE is not None
    frame, base = pair(of, count, seed)
    found = [
        (
            *each.scan(frame, base, of),
            *packed(each, frame, base, of),
            each.differ(frame, base, of),
            each.restore(frame, base, of),
        )
        for each in (NATIVE, NUMPY)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


@needs_native
@KINDS
@given(count=st.integers(1, 3000), seed=SEEDS, share=st.sampled_from([0, 0.02, 0.5, 1]))
def test_both_group_contexts_alike(of: Numbers, count: int, seed: int, share: float) -> None:
    """Groups of neighbours, few or many, and such as nobody makes."""
    assert NATIVE is not None
    _, base = pair(of, count, seed)
    rng = np.random.default_rng(seed)
    neighbours = np.cumsum(rng.random(256) < share).astype(np.uint8)
    others = rng.integers(0, 16, 256, np.uint8)
    found, found_others = (
        [each.contexts(base, of, groups) for each in (NATIVE, NUMPY)]
        for groups in (neighbours, others)
    )
    assert np.array_equal(*found)
    assert np.array_equal(*found_others)


@EVERY
@KINDS
@given(count=st.integers(1, 300), seed=SEEDS)
def test_numbers_come_back_from_their_distances(
    distances: Distances, of: Numbers, count: int, seed: int
) -> None:
    frame, base = pair(of, count, seed)
    assert np.array_equal(distances.restore(distances.differ(frame, base, of), base, of), frame)


@EVERY
@KINDS
def test_one_step_up_and_one_down_are_1_and_2_or_2_and_1(distances: Distances, of: Numbers) -> None:
    base = np.full(2, 9, of.dtype)
    frame = base + np.array([1, -1]).astype(of.dtype)
    assert distances.scan(frame, base, of)[0].tolist() == distances.differ(frame, base, of).tolist()
    assert sorted(distances.differ(frame, base, of).tolist()) == [1, 2]


@EVERY
def test_neighbours_on_both_sides_of_zero_are_near(distances: Distances) -> None:
    of = Numbers(4, signed_magnitude=True, exponent_bits=8)
    frame, base = np.array([1e-45], "<f4").view("<u4"), np.array([-1e-45], "<f4").view("<u4")
    assert distances.scan(frame, base, of)[0][0] < 8


@EVERY
@KINDS
@sampled_product("count,missing", [0, 1, 100], [1, SLACK_BYTES], dev=2)
def test_bits_need_room_and_slack(
    distances: Distances, of: Numbers, count: int, missing: int
) -> None:
    frame, base = pair(of, count, 1)
    tokens, bits = packed(distances, frame, base, of)
    out = np.empty(bits.size + SLACK_BYTES - missing, np.uint8)
    with pytest.raises(ValueError, match="no room"):
        distances.pack_bits(frame, base, of, tokens, out)
