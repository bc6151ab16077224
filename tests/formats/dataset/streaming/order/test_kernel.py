"""Orders worked out in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.kernel import (
    BEST,
    NATIVE,
    NUMPY,
    OrderKernel,
    Rings,
)
from tensorrepo.formats.dataset.streaming.order.orders import paired_lanes, stride_of
from tensorrepo.formats.native.extensions import why_not_native
from tests.support.builders.native import why_nothing_is_compiled
from tests.support.second_readers import order as reference

needs_native = pytest.mark.skipif(NATIVE is None, reason=f"not built: {why_not_native}")
EVERY = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(NUMPY, id="numpy"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
WORDS = st.integers(0, 2**64 - 1)


def array(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


# ------------------------------------------------------------------------------ permutations


@EVERY
@given(wanted=st.lists(st.tuples(WORDS, st.integers(0, 200), st.integers(0, 9)), max_size=12))
def test_every_run_is_shuffled_into_its_own_slot(
    kernel: OrderKernel, wanted: list[tuple[int, int, int]]
) -> None:
    keys = np.array([key for key, _, _ in wanted], dtype=np.uint64)
    counts = array(*(count for _, count, _ in wanted))
    gaps = array(*(gap for _, _, gap in wanted))
    at = np.cumsum(counts + gaps) - counts
    out = np.full(int((counts + gaps).sum()) + 3, 9999, np.uint32)
    expected = out.copy()
    for (key, count, _), start in zip(wanted, at.tolist(), strict=True):
        expected[start : start + count] = reference.perm(key, count) if count else []
    kernel.shuffle(keys, counts, at, out)
    assert out.tolist() == expected.tolist()


@EVERY
@pytest.mark.parametrize("count", [1, 2, 3, 24, 25, 26, 4096, 70_001])
def test_permutations_of_any_size_are_those_of_the_spec(kernel: OrderKernel, count: int) -> None:
    out = np.empty(count, np.uint32)
    kernel.shuffle(np.array([2**64 - 1], np.uint64), array(count), array(0), out)
    assert out.tolist() == reference.perm(2**64 - 1, count)


@EVERY
@pytest.mark.parametrize(
    ("counts", "at", "room"),
    [([3], [0], 2), ([3], [-1], 9), ([-1], [0], 9), ([3], [7], 9), ([3, 3], [0], 9)],
)
def test_what_would_not_fit_is_not_written(
    kernel: OrderKernel, counts: list[int], at: list[int], room: int
) -> None:
    out = np.zeros(room, np.uint32)
    with pytest.raises(ValueError, match="do not fit"):
        kernel.shuffle(np.zeros(1, np.uint64), array(*counts), array(*at), out)
    assert not out.any()


# ------------------------------------------------------------------------------ rows anywhere


@EVERY
@given(key=WORDS, count=st.integers(1, 600))
def test_the_global_order_has_every_row_once(kernel: OrderKernel, key: int, count: int) -> None:
    found = kernel.scatter(key, count, np.arange(count))
    assert sorted(found.tolist()) == list(range(count))


@EVERY
@given(key=WORDS, count=st.integers(1, 2**62), data=st.data())
def test_the_global_order_is_that_of_the_spec(
    kernel: OrderKernel, key: int, count: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
    found = kernel.scatter(key, count, array(*positions))
    assert found.tolist() == [reference.feistel(key, count, position) for position in positions]


@EVERY
@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_that_no_order_has_is_refused(kernel: OrderKernel, position: int) -> None:
    with pytest.raises(ValueError, match="not one of the order"):
        kernel.scatter(1, 10, array(3, position))


@EVERY
@given(
    lengths=st.lists(st.one_of(st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=40),
    data=st.data(),
)
def test_rows_are_found_in_pieces_of_any_length(
    kernel: OrderKernel, lengths: list[int], data: st.DataObject
) -> None:
    start = np.concatenate(([0], np.cumsum(lengths)))
    edges = st.sampled_from(sorted({*start[:-1].tolist(), *(start[1:] - 1).tolist()}))
    rows = array(*data.draw(st.lists(edges | st.integers(0, int(start[-1]) - 1), max_size=20)))
    piece, place = kernel.find(start, rows)
    assert piece.tolist() == [int((start[1:] <= row).sum()) for row in rows.tolist()]
    assert (start[piece] + place).tolist() == rows.tolist()


@EVERY
@pytest.mark.parametrize("row", [-1, 12])
def test_a_row_beyond_the_line_is_refused(kernel: OrderKernel, row: int) -> None:
    with pytest.raises(ValueError, match="not one of the line"):
        kernel.find(array(0, 5, 12), array(3, row))


@EVERY
def test_shuffled_rows_are_looked_up_in_the_slots_of_their_runs(kernel: OrderKernel) -> None:
    shuffled = np.array([5, 6, 7, 8, 9], np.uint32)
    found = kernel.look_up(shuffled, array(3, 0), array(1, 0, 1), array(0, 1, 2))
    assert found.tolist() == [5, 9, 7]
    assert found.dtype == np.int64


@EVERY
@pytest.mark.parametrize(("run", "place"), [(2, 0), (-1, 0), (0, 2), (1, -1)])
def test_a_place_that_is_none_is_not_looked_up(kernel: OrderKernel, run: int, place: int) -> None:
    shuffled = np.zeros(5, np.uint32)
    with pytest.raises(ValueError, match="not one of a run"):
        kernel.look_up(shuffled, array(3, 0), array(run), array(place))


# ------------------------------------------------------------------------------ lanes


@st.composite
def rings(draw: st.DrawFn) -> Rings:
    live = draw(st.lists(st.integers(1, 30), min_size=1, max_size=30))
    bands = draw(st.integers(1, 8))
    each = draw(st.integers(1, 40)) * (2 if bands % 2 else 1)
    seed = draw(WORDS)
    order = paired_lanes(np.array(live), seed=seed, epoch=0, lanes=bands * each, bands=bands)
    return Rings(order.lanes, bands, stride_of(bands), seed, order.start, order.cut, order.first)


@needs_native
@given(given_=rings(), data=st.data())
def test_lanes_walk_alike_in_c_and_in_numpy(given_: Rings, data: st.DataObject) -> None:
    assert NATIVE is not None
    most = -(-int(given_.cut[-1]) // given_.lanes)
    first = data.draw(st.integers(0, most - 1))
    blocks = range(first, data.draw(st.integers(first + 1, most)))
    low = data.draw(st.integers(0, given_.bands - 1))
    bands = range(low, data.draw(st.integers(low + 1, given_.bands)))
    expected = NUMPY.walk(given_, blocks, bands)
    found = NATIVE.walk(given_, blocks, bands)
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@needs_native
@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 3},
        {"bands": 3},
        {"stride": 5},
        {"stride": 0},
        {"stride": 2},
        {"cut": array(0, 10)},
        {"first": array(0)},
        {"start": array(0)},
        {"first": array(100, 0)},
        {"start": array(0, 2)},
    ],
)
def test_rings_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    assert NATIVE is not None
    fine = Rings(4, 2, 1, 7, array(0, 8, 20), array(0, 10, 20), array(3, 4))
    assert NATIVE.walk(fine, range(5), range(2)).place.size == 20
    with pytest.raises(ValueError, match=r"fit|leaves"):
        NATIVE.walk(fine._replace(**wrong), range(5), range(2))


# ------------------------------------------------------------------------------ open runs

RUN = st.integers(0, 8)


@EVERY
@given(pieces=st.lists(st.lists(RUN, max_size=12), min_size=2, max_size=8), data=st.data())
def test_runs_open_where_they_come_first_and_close_where_they_come_last(
    kernel: OrderKernel, pieces: list[list[int]], data: st.DataObject
) -> None:
    is_open, marks = np.zeros(9, np.bool_), np.zeros(9, np.uint8)
    known: set[int] = set()
    for piece, following in zip(pieces, [*pieces[1:], []], strict=True):
        opened = kernel.opened(array(*piece), is_open)
        assert opened.tolist() == [
            at for at, run in enumerate(piece) if run not in known and run not in piece[:at]
        ]
        known |= set(piece)
        busy = data.draw(st.lists(st.booleans(), min_size=len(piece), max_size=len(piece)))
        closed = kernel.closed(
            array(*piece), np.array(busy, np.bool_), array(*following), is_open, marks
        )
        assert closed.tolist() == [
            at
            for at, run in enumerate(piece)
            if run not in piece[at + 1 :] and run not in following and not busy[at]
        ]
        known -= {piece[at] for at in closed.tolist()}
        assert np.flatnonzero(is_open).tolist() == sorted(known)
        assert not marks.any()


@EVERY
@pytest.mark.parametrize("run", [-1, 3])
def test_a_run_that_nobody_knows_is_neither_opened_nor_closed(
    kernel: OrderKernel, run: int
) -> None:
    is_open, marks, none = np.zeros(3, np.bool_), np.zeros(3, np.uint8), array()
    with pytest.raises(ValueError, match="none of those"):
        kernel.opened(array(0, run), is_open)
    with pytest.raises(ValueError, match="none of those"):
        kernel.closed(array(0, run), np.zeros(2, np.bool_), none, is_open, marks)
    with pytest.raises(ValueError, match="none of those"):
        kernel.closed(array(0), np.zeros(1, np.bool_), array(run), is_open, marks)
    assert not is_open.any()
    assert not marks.any()


# ------------------------------------------------------------------------------ which one is used


def test_the_one_in_c_is_used_where_it_is() -> None:
    assert BEST is (NATIVE or NUMPY)


@pytest.mark.skipif(
    why_nothing_is_compiled() is not None, reason=f"no C here: {why_nothing_is_compiled()}"
)
def test_it_is_built_wherever_it_can_be() -> None:
    assert NATIVE is not None, (
        f"a compiler is there, but the kernel is not: {why_not_native}. Install again: "
        "pip install --no-build-isolation -e ."
    )
