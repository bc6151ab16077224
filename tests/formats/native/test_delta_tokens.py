"""Distances of numbers from a base: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.native import rans, row_moves
from tensorrepo.formats.native.delta_tokens import (
    NATIVE,
    NUMPY,
    SLACK_BYTES,
    ChosenRows,
    Distances,
    EncodeWay,
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
    """Numbers and bases of any bits: near ones, far ones, equal ones; then a third of near ones."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, count * of.size, np.uint8).view(of.dtype)
    steps = rng.integers(0, 1 << 62, count) >> rng.integers(0, 63, count)
    steps[count - count // 3 :] &= 7
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
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("share", [0, 0.01, 0.05, 0.06, 0.3, 1])
@pytest.mark.parametrize("farthest", [17, 90, 1 << 12, 1 << 20, 1 << 31])
def test_both_write_the_same_bits_however_many_are_left(
    size: int, share: float, farthest: int
) -> None:
    """Of few numbers or all: so few that eight fill a word, four, or hardly two."""
    assert NATIVE is not None
    rng, of = np.random.default_rng(farthest), Numbers(size, False, 0)
    base = rng.integers(0, 256**size, 5000, np.uint64)
    near, far = rng.integers(0, 8, 5000, np.uint64), rng.integers(0, farthest, 5000, np.uint64)
    frame = (base + np.where(rng.random(5000) < share, far, near)).astype(of.dtype)
    found = [packed(each, frame, base.astype(of.dtype), of) for each in (NATIVE, NUMPY)]
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


def rows_of(count: int, columns: int, skipped: int, seed: int) -> ChosenRows:
    which = np.random.default_rng(seed).random(-(-(skipped + count) // columns)) < 0.4
    which[0] = True
    return ChosenRows(which, True, columns, skipped)


def numbers_in(rows: ChosenRows, count: int) -> NDArray[np.bool_]:
    """Which numbers of a frame lie in chosen rows."""
    return np.repeat(rows.which == rows.marked, rows.columns)[rows.skipped :][:count]


@needs_native
@KINDS
@pytest.mark.parametrize(
    ("columns", "skipped"), [(1, 0), (7, 6), (384, 0), (384, 100), (9000, 4000)]
)
@pytest.mark.parametrize(("count", "marked"), [(20_001, True), (20_001, False), (700_001, True)])
def test_chosen_rows_are_decoded_where_they_lie(
    of: Numbers, columns: int, skipped: int, count: int, *, marked: bool
) -> None:
    assert NATIVE is not None
    frame, base = pair(of, count, columns)
    frame[5000:9000] = base[5000:9000]
    frame[::2] = base[::2]  # so that bytes of any bits are worth encoding
    rows = rows_of(frame.size, columns, skipped, columns)._replace(marked=marked)
    chosen = numbers_in(rows, frame.size)
    made = NATIVE.encode(frame[chosen], base[chosen], of, EncodeWay.ALWAYS)
    assert made is not None
    assert made[2] is not None
    out, is_long = np.full_like(frame, 3), made[3] == rans.MOST_LANES
    assert is_long == (count > 20_001)
    assert NATIVE.decode_rows(np.frombuffer(made[2], np.uint8), base, of, out, is_long, rows)
    assert np.array_equal(out, np.where(chosen, frame, of.dtype.type(3)))


FORETOLD = pytest.mark.parametrize(
    ("size", "share", "count"),
    [(4, 1, 30_001), (4, 0.02, 30_001), (4, 0.0005, 700_001), (8, 1, 30_001), (8, 0.01, 30_001)],
)


def check_foretold(size: int, share: float, count: int) -> None:
    """Rows that moved as a table says, but for a share of their numbers, come back."""
    assert NATIVE is not None
    of = Numbers(size, signed_magnitude=True, exponent_bits=8 if size == 4 else 11)
    below = 15 if size == 4 else 44
    frame, base = pair(of, count, size)
    table = np.random.default_rng(size).integers(0, row_moves.FARTHEST, 256).astype("<u2")
    rows = rows_of(frame.size, 384, 100, size)
    chosen = numbers_in(rows, frame.size)
    moved = row_moves.NUMPY.step(base, of, below, table)
    frame = np.where(np.random.default_rng(7).random(frame.size) < share, frame, moved)
    made = NATIVE.encode(frame[chosen], moved[chosen], of, EncodeWay.ALWAYS)
    assert made is not None
    assert made[2] is not None
    out, is_long = frame.copy(), made[3] == rans.MOST_LANES
    assert is_long == (count > 30_001)
    out[chosen] = 0
    some = rows._replace(below=below, table=table)
    assert NATIVE.decode_rows(np.frombuffer(made[2], np.uint8), base, of, out, is_long, some)
    assert np.array_equal(out, frame)


@needs_native
@FORETOLD
def test_chosen_rows_are_decoded_from_where_their_table_moves_them(
    size: int, share: float, count: int
) -> None:
    check_foretold(size, share, count)


@needs_native
def test_rows_that_do_not_fit_their_plane_are_refused() -> None:
    assert NATIVE is not None
    of = Numbers(4, signed_magnitude=True, exponent_bits=8)
    frame, base = pair(of, 20_000, 1)
    rows = rows_of(frame.size, 100, 0, 1)
    chosen = numbers_in(rows, frame.size)
    made = NATIVE.encode(frame[chosen], base[chosen], of, EncodeWay.ALWAYS)
    assert made is not None
    assert made[2] is not None
    plane, out = np.frombuffer(made[2], np.uint8), np.empty_like(frame)
    others, none = rows._replace(marked=False), rows._replace(which=np.zeros(200, np.bool_))
    assert not NATIVE.decode_rows(plane, base, of, out, False, others)
    assert not NATIVE.decode_rows(plane[:-1], base, of, out, False, rows)
    assert not NATIVE.decode_rows(plane, base, of, out, False, none)


@needs_native
@pytest.mark.parametrize(
    "wrong",
    [
        {"columns": 0},
        {"skipped": 100},
        {"which": np.ones(199, np.bool_)},
        {"below": 15},
        {"below": 31, "table": np.zeros(256, np.uint16)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_rows_that_are_none_of_the_frame_are_refused(wrong: dict[str, Any]) -> None:
    assert NATIVE is not None
    of = Numbers(4, signed_magnitude=True, exponent_bits=8)
    frame, base = pair(of, 20_000, 1)
    rows = rows_of(frame.size, 100, 0, 1)._replace(**wrong)
    with pytest.raises(ValueError, match=r"rows|classes|table"):
        NATIVE.decode_rows(np.zeros(100, np.uint8), base, of, frame, False, rows)
