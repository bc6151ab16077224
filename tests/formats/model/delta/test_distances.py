"""Planes of distances: decoded in one go, in C, and in steps, with identical results."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.delta import distances
from tensorrepo.formats.model.delta.plane_codec import short_lanes, tables_of
from tensorrepo.formats.native import rans
from tensorrepo.formats.native.delta_tokens import BEST, NATIVE, Numbers, bits_of
from tensorrepo.repo.errors import CorruptError
from tests.formats.native.test_delta_tokens import KINDS
from tests.support.builders.native import needs_native

SEEDS = st.integers(0, 1 << 16)
# Few coders and many, whole blocks and parts of them, ends of all kinds.
COUNTS = st.integers(1, 300) | st.integers(4000, 9000) | st.sampled_from([4096, 5120, 8192])


def plane_of(of: Numbers, count: int, seed: int, is_long: bool = False) -> tuple[Any, Any, Any]:
    """A plane of distances, its frame and base: numbers of any bits, many of them near."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, count * of.size, np.uint8).view(of.dtype)
    reach = int(rng.integers(2, 8 * of.size))
    steps = rng.integers(0, 1 << 62, count) >> rng.integers(64 - reach, 63, count)
    frame = base + steps.astype(of.dtype) * rng.integers(0, 2, count, np.uint8)
    tokens, counts = BEST.scan(frame, base, of)
    tables, _, _ = tables_of(counts)
    bits = int(bits_of(tokens).sum(dtype=np.int64))
    lanes = rans.MOST_LANES if is_long else short_lanes(count)
    return distances.encode_distances(frame, base, of, tokens, tables, bits, lanes), frame, base


def in_both_ways(plane: Any, base: Any, of: Numbers, is_long: bool = False) -> list[Any]:
    """What each makes of the plane; None where it is refused."""
    assert NATIVE is not None
    found: list[Any] = []
    outs = [np.zeros(base.size + 64, of.dtype) for _ in range(2)]
    fine = NATIVE.decode(plane, base, of, outs[0][: base.size], is_long)
    found.append(outs[0] if fine else None)
    try:
        distances.decode_in_steps(plane, base, of, outs[1][: base.size], is_long)
        found.append(outs[1])
    except CorruptError:
        found.append(None)
    assert not outs[0][base.size :].any(), "nothing is written beyond the end"
    return found


@needs_native
@KINDS
@given(count=COUNTS, seed=SEEDS, is_long=st.booleans())
def test_a_plane_decodes_alike_in_one_go_and_in_steps(
    of: Numbers, count: int, seed: int, is_long: bool
) -> None:
    plane, frame, base = plane_of(of, count, seed, is_long)
    found = in_both_ways(plane, base, of, is_long)
    assert all(np.array_equal(each[:count], frame) for each in found)


@needs_native
@KINDS
@given(
    count=COUNTS,
    seed=SEEDS,
    where=st.floats(0, 1, exclude_max=True),
    data=st.binary(max_size=4),
    is_long=st.booleans(),
)
def test_damage_is_refused_by_both_or_decodes_alike(
    of: Numbers, count: int, seed: int, where: float, data: bytes, is_long: bool
) -> None:
    plane, _, base = plane_of(of, count, seed, is_long)
    # Squared: tables and the states of coders lie at the beginning.
    at = int(where * where * plane.size)
    damaged = np.concatenate([plane[:at], np.frombuffer(data, np.uint8), plane[at + 1 :]])
    one, other = in_both_ways(damaged, base, of, is_long)
    assert (one is None) == (other is None)
    assert one is None or np.array_equal(one, other)


@needs_native
@pytest.mark.parametrize(("count", "is_long"), [(300, False), (6000, False), (6000, True)])
def test_every_cut_is_refused(count: int, is_long: bool) -> None:
    of = Numbers(2, signed_magnitude=True, exponent_bits=8)
    plane, _, base = plane_of(of, count, 3, is_long)
    cuts = [plane[:size] for size in range(0, plane.size, 1 + plane.size // 500)]
    assert all(in_both_ways(cut, base, of, is_long) == [None, None] for cut in cuts)


@needs_native
@pytest.mark.parametrize("bits", [bytes(2), b"\x80" + bytes(1), bytes(4), bytes(400), bytes(1400)])
def test_bits_that_tokens_do_not_ask_for_are_refused(bits: bytes) -> None:
    """One token for all numbers, which leaves 2 bits each: 5 numbers take 10 bits."""
    of = Numbers(4, signed_magnitude=False, exponent_bits=0)
    head = struct.pack("<I", 0) + bytes([0, 16, 0])
    found = in_both_ways(np.frombuffer(head + bits, np.uint8), np.arange(5, dtype="<u4"), of)
    fine = [each is not None for each in found]
    assert fine == [len(bits) == 2] * 2


@needs_native
def test_a_token_that_no_number_has_is_refused() -> None:
    of = Numbers(2, signed_magnitude=False, exponent_bits=0)
    head = struct.pack("<I", 0) + bytes([0, of.last_token + 1, 0])
    plane = np.frombuffer(head + bytes(14 * 5000 // 8), np.uint8)
    assert in_both_ways(plane, np.zeros(5000, "<u2"), of) == [None, None]
