"""Rows brought together from many addresses: in C and in numpy, with identical results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.native.extensions import why_not_native
from tensorrepo.formats.native.rows import (
    BEST,
    LEAST_SUMMED_BYTES,
    NATIVE,
    NUMPY,
    RowCopier,
    RunTable,
)
from tests.support.builders.native import COPIERS, needs_native, why_nothing_is_compiled

MEMORY = np.random.default_rng(0).integers(0, 256, 1 << 22, np.uint8)  # what rows are taken from
BASE = MEMORY.__array_interface__["data"][0]
EVERY = pytest.mark.parametrize("copier", COPIERS)


def rows_at(places: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint8]:
    """What copying must give, in the plainest way."""
    found = [MEMORY[at : at + row_bytes] for at in places.tolist()]
    return np.concatenate([np.empty(0, np.uint8), *found])


def sums_of(places: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint32]:
    found = [xxh3_64_intdigest(MEMORY[at : at + row_bytes]) for at in places.tolist()]
    return np.array(found, np.uint64).astype(np.uint32)


def addresses_of(array: NDArray[np.uint32]) -> NDArray[np.int64]:
    return array.__array_interface__["data"][0] + 4 * np.arange(array.size)


def somewhere(rows: int, row_bytes: int) -> NDArray[np.int64]:
    return np.random.default_rng(rows).integers(0, MEMORY.size - row_bytes, rows)


PLACES = st.lists(st.integers(0, 1 << 21), max_size=40).map(lambda at: np.array(at, np.int64))
UNALIGNED = st.integers(0, 63)


# ------------------------------------------------------------------------------ rows of one length


@EVERY
@given(places=PLACES, row_bytes=st.integers(0, 1200), start=UNALIGNED)
def test_rows_come_in_the_order_asked_for(
    copier: RowCopier, places: NDArray[np.int64], row_bytes: int, start: int
) -> None:
    out = np.zeros(start + places.size * row_bytes + 64, np.uint8)
    wanted = out[start : start + places.size * row_bytes]
    assert copier.copy_rows(BASE + places, row_bytes, wanted) == -1
    assert np.array_equal(wanted, rows_at(places, row_bytes))
    assert not out[:start].any()
    assert not out[start + wanted.size :].any(), "nothing is written beyond the last row"


@EVERY
@pytest.mark.parametrize(
    ("rows", "row_bytes"),
    [
        (40_000, 64),
        (30_000, 100),
        (3000, 784),
        (1000, 3072),
        (1001, 3073),
        (40, RowCopier.copied_alone_bytes - 1),
        (40, RowCopier.copied_alone_bytes),
        (20, 150_528),
        (1, 4_000_000),
    ],
)
def test_large_jobs_that_threads_share_miss_nothing(
    copier: RowCopier, rows: int, row_bytes: int
) -> None:
    places = somewhere(rows, row_bytes)
    out = np.zeros((rows, row_bytes), np.uint8)
    copier.copy_rows(BASE + places, row_bytes, out)
    assert np.array_equal(out.reshape(-1), rows_at(places, row_bytes))


@EVERY
def test_jobs_of_several_threads_do_not_meet(copier: RowCopier) -> None:
    def copied(seed: int) -> bool:
        places = np.random.default_rng(seed).integers(0, MEMORY.size - 3072, 1000)
        out = np.zeros((1000, 3072), np.uint8)
        copier.copy_rows(BASE + places, 3072, out)
        return np.array_equal(out, MEMORY[places[:, None] + np.arange(3072)])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(copied, range(24)))


@EVERY
def test_rows_without_bytes_need_no_address(copier: RowCopier) -> None:
    many = np.zeros(1 << 20, np.int64)
    assert copier.copy_rows(many, 0, np.empty((1 << 20, 0), np.uint8)) == -1


@EVERY
@pytest.mark.parametrize(
    ("rows", "row_bytes", "out_bytes"),
    [(2, 3, 5), (2, 3, 7), (0, 3, 1), (3, 0, 1), (4, 1 << 62, 0), (2, -1, 0)],
)
def test_sizes_that_contradict_each_other_are_refused(
    copier: RowCopier, rows: int, row_bytes: int, out_bytes: int
) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows of {row_bytes} bytes"):
        copier.copy_rows(np.full(rows, BASE), row_bytes, np.empty(out_bytes, np.uint8))


@EVERY
@pytest.mark.parametrize("address", [0, 4095, -1, -(1 << 62)])
def test_what_is_no_address_is_refused_before_anything_is_read(
    copier: RowCopier, address: int
) -> None:
    out = np.zeros(6, np.uint8)
    with pytest.raises(ValueError, match="no address"):
        copier.copy_rows(np.array([BASE, address]), 3, out)
    assert not out.any()


@EVERY
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.bool_, np.complex128])
def test_rows_may_have_any_type(copier: RowCopier, dtype: type) -> None:
    out = np.empty((2, 8), dtype)
    copier.copy_rows(np.array([BASE + 5, BASE]), 8 * out.itemsize, out)
    wanted = rows_at(np.array([5, 0]), 8 * out.itemsize)
    assert np.array_equal(out.view(np.uint8).reshape(-1), wanted)


@EVERY
def test_arrays_with_gaps_are_not_written_to(copier: RowCopier) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        copier.copy_rows(np.array([BASE, BASE]), 3, np.empty((2, 6), np.uint8)[:, :3])


# ------------------------------------------------------------------------------ sums


@EVERY
@given(
    places=PLACES,
    row_bytes=st.integers(LEAST_SUMMED_BYTES, 5000),
    start=UNALIGNED,
    wrong=st.integers(0, 60),
)
def test_the_first_row_that_is_not_what_its_sum_says_is_named(
    copier: RowCopier, places: NDArray[np.int64], row_bytes: int, start: int, wrong: int
) -> None:
    sums = sums_of(places, row_bytes)
    sums[wrong:] ^= 1 << 31
    out = np.empty(start + places.size * row_bytes, np.uint8)[start:]
    found = copier.copy_rows(BASE + places, row_bytes, out, addresses_of(sums))
    assert found == (wrong if wrong < places.size else -1)


@EVERY
@pytest.mark.parametrize("wrong", [0, 1, 999, 1000, 1001, 1999])
def test_the_first_wrong_row_is_named_whichever_thread_has_it(
    copier: RowCopier, wrong: int
) -> None:
    places = somewhere(2000, 3072)
    sums = sums_of(places, 3072)
    sums[wrong:] ^= 1
    out = np.empty((2000, 3072), np.uint8)
    assert copier.copy_rows(BASE + places, 3072, out, addresses_of(sums)) == wrong
    assert np.array_equal(out[:wrong].reshape(-1), rows_at(places[:wrong], 3072))


@EVERY
@pytest.mark.parametrize("at", [0, 63, 64, 1023, 1024, 2999, 3008, 3071])
def test_damage_anywhere_in_a_row_is_noticed(copier: RowCopier, at: int) -> None:
    sums = sums_of(np.array([0]), 3072)
    damaged = MEMORY[:3072].copy()
    damaged[at] ^= 0x10
    address = np.array([damaged.__array_interface__["data"][0]])
    assert copier.copy_rows(address, 3072, np.empty(3072, np.uint8), addresses_of(sums)) == 0


@EVERY
@given(
    places=PLACES,
    summed=st.lists(st.booleans(), min_size=40, max_size=40),
    none=st.integers(-(1 << 62), 0),
)
def test_rows_without_a_sum_are_copied_as_they_are(
    copier: RowCopier, places: NDArray[np.int64], summed: list[bool], none: int
) -> None:
    sums = sums_of(places, 300)
    has_sum = np.array(summed[: places.size], bool)
    sums[~has_sum] ^= 1
    out = np.empty(places.size * 300, np.uint8)
    sums_at = np.where(has_sum, addresses_of(sums), none)
    assert copier.copy_rows(BASE + places, 300, out, sums_at) == -1
    assert np.array_equal(out, rows_at(places, 300))


@EVERY
def test_a_sum_is_not_read_from_where_nothing_lies(copier: RowCopier) -> None:
    with pytest.raises(ValueError, match="no address"):
        copier.copy_rows(np.array([BASE]), 300, np.empty(300, np.uint8), np.array([4095]))


@EVERY
def test_rows_too_short_for_a_sum_are_refused(copier: RowCopier) -> None:
    with pytest.raises(ValueError, match="no sums"):
        copier.copy_rows(np.array([BASE]), 240, np.empty(240, np.uint8), np.array([BASE]))


@EVERY
@pytest.mark.parametrize("sums", [0, 1, 3])
def test_every_row_has_a_sum_or_none_has(copier: RowCopier, sums: int) -> None:
    with pytest.raises(ValueError, match=f"{sums} sums"):
        copier.copy_rows(
            np.full(2, BASE), 300, np.empty(600, np.uint8), np.full(sums, BASE, np.int64)
        )


# ------------------------------------------------------------------------------ rows of runs

CLOSED = -(1 << 62)


@st.composite
def tables(draw: st.DrawFn, step_bytes: int) -> RunTable:
    """Some runs, the second of which is closed, and the last without rows."""
    live = draw(st.lists(st.integers(1, 9), min_size=3, max_size=8))
    live[1], live[-1] = 3, 0
    starts = draw(st.lists(st.integers(0, 1 << 20), min_size=len(live), max_size=len(live)))
    at = BASE + np.array(starts)
    at[1] = CLOSED
    return RunTable(np.array(live), at, None, step_bytes)


def some_rows(table: RunTable, draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    every = [(0, row) for row in range(table.live[0])]
    every += [(run, row) for run in range(2, table.live.size) for row in range(table.live[run])]
    found = draw(st.lists(st.sampled_from(every), max_size=60))
    run, row = np.array(found, np.int64).reshape(-1, 2).T
    return run.copy(), row.copy()


@EVERY
@pytest.mark.parametrize(
    ("row_bytes", "step_bytes"), [(0, 0), (1, 1), (4, 4), (8, 8), (16, 8), (300, 300), (7, 11)]
)
@given(data=st.data())
def test_rows_of_runs_are_taken_where_their_runs_lie(
    copier: RowCopier, row_bytes: int, step_bytes: int, data: st.DataObject
) -> None:
    table = data.draw(tables(step_bytes))
    run, row = some_rows(table, data.draw)
    out = np.zeros((run.size, row_bytes), np.uint8)
    assert copier.take_rows(table, run, row, row_bytes, out) == -1
    places = table.at[run] - BASE + row * step_bytes
    assert np.array_equal(out.reshape(-1), rows_at(places, row_bytes))


@EVERY
@pytest.mark.parametrize("rows", [300, 3000])
@pytest.mark.parametrize("wrong", [None, 0, 123, 299])
def test_rows_of_runs_are_compared_with_the_sums_of_their_runs(
    copier: RowCopier, rows: int, wrong: int | None
) -> None:
    live, row_bytes = 50, 1024
    at = np.array([0, 7, 1 << 20]) + BASE
    sums = np.array(
        [sums_of(start - BASE + row_bytes * np.arange(live), row_bytes) for start in at]
    )
    first_sum = addresses_of(sums.reshape(-1))[::live]
    has_sums = np.array([True, False, True])
    table = RunTable(np.full(3, live), at, np.where(has_sums, first_sum, CLOSED), row_bytes)
    rng = np.random.default_rng(rows)
    run, row = rng.integers(0, 3, rows), rng.integers(0, live - 1, rows)
    sums[1] ^= 1  # which nobody looks at
    if wrong is not None:
        run[wrong], row[wrong] = 2, live - 1
        sums[2, live - 1] ^= 1
    out = np.zeros((rows, row_bytes), np.uint8)
    found = copier.take_rows(table, run, row, row_bytes, out)
    assert found == (-1 if wrong is None else wrong)


@EVERY
@pytest.mark.parametrize(
    ("run", "row", "said"),
    [
        (0, 3, "row 3 of run 0 is beyond its end"),
        (0, -1, "row -1 of run 0 is beyond its end"),
        (4, 0, "row 0 of run 4 is beyond its end"),
        (-1, 0, "row 0 of run -1 is beyond its end"),
        (1, 0, "run 1 is not open"),
        (2, 0, "row 0 of run 2 is beyond its end"),
        (3, 7, "row 7 of run 3 is beyond its end"),
    ],
)
def test_nothing_is_read_for_a_row_that_no_open_run_has(
    copier: RowCopier, run: int, row: int, said: str
) -> None:
    table = RunTable(np.array([3, 3, 0, -1]), np.array([BASE, CLOSED, BASE, BASE]), None, 5)
    out = np.zeros((2, 5), np.uint8)
    with pytest.raises(IndexError, match=said):
        copier.take_rows(table, np.array([0, run]), np.array([0, row]), 5, out)
    assert not out.any()


@EVERY
@pytest.mark.parametrize(
    ("runs", "sums", "row_bytes", "rows", "out_bytes"),
    [
        (2, None, 5, 2, 10),
        (1, 2, 5, 2, 10),
        (1, None, 5, 3, 10),
        (1, None, 5, 2, 9),
        (1, 1, 5, 2, 10),
    ],
)
def test_tables_that_contradict_what_is_taken_are_refused(
    copier: RowCopier, runs: int, sums: int | None, row_bytes: int, rows: int, out_bytes: int
) -> None:
    sums_at = None if sums is None else np.full(sums, CLOSED)
    table = RunTable(np.ones(runs, np.int64), np.full(1, BASE), sums_at, row_bytes)
    run, row = np.zeros(2, np.int64), np.zeros(rows, np.int64)
    with pytest.raises(ValueError, match=r"runs|rows of"):
        copier.take_rows(table, run, row, row_bytes, np.empty(out_bytes, np.uint8))


# ------------------------------------------------------------------------------ rows of any length

LENGTHS = st.one_of(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.integers(0, 3000), max_size=20),
    st.lists(st.integers(0, 300_000), max_size=6),
)


@EVERY
@pytest.mark.parametrize("dtype", ["u1", "i4", "c16"])
@given(lengths=LENGTHS, start=UNALIGNED)
def test_rows_of_any_length_lie_back_to_back(
    copier: RowCopier, dtype: str, lengths: list[int], start: int
) -> None:
    item_bytes = np.dtype(dtype).itemsize
    sizes = np.array(lengths, np.int64) // item_bytes * item_bytes
    places = start + somewhere(sizes.size, 300_100)
    out = np.empty(int(sizes.sum()) // item_bytes, dtype)
    copier.copy_spans(BASE + places, sizes, out)
    pairs = zip(places.tolist(), sizes.tolist(), strict=True)
    found = [MEMORY[at : at + size] for at, size in pairs]
    expected = np.concatenate([np.empty(0, np.uint8), *found])
    assert np.array_equal(out.view(np.uint8), expected)


@EVERY
def test_an_empty_row_needs_no_address(copier: RowCopier) -> None:
    out = np.empty(2, np.uint8)
    copier.copy_spans(np.array([0, BASE, -5]), np.array([0, 2, 0]), out)
    assert np.array_equal(out, MEMORY[:2])


@EVERY
@pytest.mark.parametrize(
    "lengths", [[1, 2], [4, -1], [3], [1, 1, 1], [(1 << 63) - 1, 5], [-(1 << 63), 3]]
)
def test_lengths_that_do_not_make_up_the_result_are_refused(
    copier: RowCopier, lengths: list[int]
) -> None:
    with pytest.raises(ValueError, match="do not make up 4 bytes"):
        copier.copy_spans(np.full(2, BASE), np.array(lengths), np.empty(4, np.uint8))


@EVERY
def test_a_span_without_an_address_is_refused(copier: RowCopier) -> None:
    with pytest.raises(ValueError, match="address"):
        copier.copy_spans(np.array([BASE, 0]), np.array([2, 2]), np.empty(4, np.uint8))


# ------------------------------------------------------------------------------ which one is used


def test_the_one_in_c_is_used_where_it_is() -> None:
    assert BEST is (NATIVE or NUMPY)


@needs_native
def test_the_one_in_c_has_nothing_to_complain_about() -> None:
    assert why_not_native is None


@pytest.mark.skipif(
    why_nothing_is_compiled() is not None, reason=f"no C here: {why_nothing_is_compiled()}"
)
def test_it_is_built_wherever_it_can_be() -> None:
    assert NATIVE is not None, (
        f"a compiler is there, but the kernel is not: {why_not_native}. Install again: "
        "pip install --no-build-isolation -e ."
    )


# ------------------------------------------------------------------------------ spans with sums


@EVERY
@pytest.mark.parametrize("wrong", [-1, 0, 7, 19])
def test_the_first_span_that_is_not_what_its_sum_says_is_named(
    copier: RowCopier, wrong: int
) -> None:
    # Neighbors of one length, but for the fifth, are summed side by side.
    lengths = np.repeat([LEAST_SUMMED_BYTES, 1024, 70_000, 300_001], 5)
    places = somewhere(len(lengths), 300_001)
    spans = zip(places.tolist(), lengths.tolist(), strict=True)
    sums = np.array([xxh3_64_intdigest(MEMORY[at : at + size]) for at, size in spans], np.uint64)
    sums[(np.arange(20) >= wrong) & (wrong >= 0)] ^= np.uint64(1)
    assert copier.check_spans(BASE + places, lengths, sums) == wrong


@EVERY
@pytest.mark.parametrize("lengths", [[LEAST_SUMMED_BYTES], [LEAST_SUMMED_BYTES, 240], [400, -1]])
def test_spans_of_other_counts_or_too_short_ones_are_refused(
    copier: RowCopier, lengths: list[int]
) -> None:
    with pytest.raises(ValueError, match="spans"):
        copier.check_spans(np.full(2, BASE), np.array(lengths), np.zeros(2, np.uint64))
