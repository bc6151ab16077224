"""Rows of many arrays brought together, and the pool they go to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
)
from tensorrepo.formats.dataset.streaming.collate.gather import (
    InMemory,
    RunValues,
    WantedRows,
    address_of,
    in_memory,
)
from tensorrepo.formats.native.rows import BEST, RowCopier
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.native import COPIERS

RUNS, ROWS = 5, 7
BYTE = np.dtype("u1")


def fixed(row_shape: tuple[int, ...], dtype: str) -> tuple[Storage, list[FixedValues]]:
    rng = np.random.default_rng(0)
    storage = Storage(ColumnLayout.FIXED, dtype, row_shape)
    shape = (ROWS, *row_shape)
    runs = [rng.integers(0, 100, shape).astype(storage.element) for _ in range(RUNS)]
    return storage, [FixedValues(values) for values in runs]


def opened(storage: Storage, runs: list[FixedValues], copier: RowCopier = BEST) -> RunValues:
    found = RunValues(np.full(RUNS, ROWS), storage, nullable=False, copier=copier)
    for run, values in enumerate(runs):
        found.open(in_memory(run, values, nullable=False))
    return found


def rows_from(values: RunValues, run: np.ndarray, row: np.ndarray) -> ColumnValues:
    return values.gather(WantedRows(run.copy(), row.copy()), Pool())


PLACES = st.lists(st.tuples(st.integers(0, RUNS - 1), st.integers(0, ROWS - 1)), max_size=40)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), "int64"),
        ((3,), "uint8"),
        ((2, 5), "float32"),
        ((7,), "complex128"),
        ((0, 3), "int16"),
        ((RowCopier.copied_alone_bytes - 1,), "uint8"),
        ((RowCopier.copied_alone_bytes,), "uint8"),
    ],
)
@pytest.mark.parametrize("copier", COPIERS)
@given(places=PLACES)
def test_fixed_rows_are_those_of_their_runs(
    copier: RowCopier, shape: tuple[int, ...], dtype: str, places: list[tuple[int, int]]
) -> None:
    storage, runs = fixed(shape, dtype)
    run, row = np.array(places, dtype=np.int64).reshape(-1, 2).T
    found = rows_from(opened(storage, runs, copier), run, row)
    expected = [runs[one].values[at] for one, at in places]
    assert isinstance(found, FixedValues)
    assert found.values.dtype == storage.element
    assert np.array_equal(found.values, np.array(expected).reshape(len(places), *shape))


@pytest.mark.parametrize("longest", [0, 5, 2000])
@pytest.mark.parametrize("copier", COPIERS)
@given(places=PLACES)
def test_rows_of_any_length_are_those_of_their_runs(
    copier: RowCopier, longest: int, places: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(1)
    runs = []
    for _ in range(RUNS):
        lengths = rng.integers(0, longest + 1, ROWS)
        data = rng.integers(0, 255, int(lengths.sum()), dtype=np.uint8)
        runs.append(BinaryValues(offsets_of(lengths), data))
    storage = Storage(ColumnLayout.BINARY, "uint8", ())
    values = RunValues(np.full(RUNS, ROWS), storage, nullable=False, copier=copier)
    for run, each in enumerate(runs):
        values.open(in_memory(run, each, nullable=False))
    run, row = np.array(places, dtype=np.int64).reshape(-1, 2).T
    found = rows_from(values, run, row)
    assert isinstance(found, BinaryValues)
    for at, (one, place) in enumerate(places):
        start, stop = runs[one].offsets[place : place + 2]
        low, high = found.offsets[at : at + 2]
        assert np.array_equal(found.data[low:high], runs[one].data[start:stop])


@pytest.mark.parametrize("copier", COPIERS)
def test_parts_of_pages_are_gathered_from_where_they_begin(copier: RowCopier) -> None:
    lengths = np.array([1, 2, 3, 4])
    page = RaggedValues(offsets_of(lengths), np.arange(10, dtype=np.int32), (None,))
    storage = Storage(ColumnLayout.RAGGED, "int32", (None,))
    values = RunValues(np.array([2]), storage, nullable=False, copier=copier)
    values.open(in_memory(0, page.slice(2, 4), nullable=False))
    found = rows_from(values, np.array([0, 0]), np.array([1, 0]))
    assert isinstance(found, RaggedValues)
    assert [found.row(at).tolist() for at in range(2)] == [[6, 7, 8, 9], [3, 4, 5]]


@pytest.mark.parametrize("copier", COPIERS)
def test_validity_and_dimensions_come_with_their_rows(copier: RowCopier) -> None:
    dims = np.array([[1, 2], [3, 1]], dtype=np.uint32)
    page = RaggedValues(
        offsets_of(np.array([2, 3])),
        np.arange(5, dtype=np.uint8),
        (None, None),
        dims,
        np.array([True, False]),
    )
    storage = Storage(ColumnLayout.RAGGED, "uint8", (None, None))
    values = RunValues(np.array([2]), storage, nullable=True, copier=copier)
    values.open(in_memory(0, page, nullable=True))
    found = rows_from(values, np.array([0, 0, 0]), np.array([1, 0, 1]))
    assert isinstance(found, RaggedValues)
    assert found.dims is not None
    assert found.valid is not None
    assert found.dims.tolist() == [[3, 1], [1, 2], [3, 1]]
    assert found.valid.tolist() == [False, True, False]


def test_arrays_that_are_not_back_to_back_are_copied() -> None:
    storage = Storage(ColumnLayout.FIXED, "int32", ())
    every_other = np.arange(20, dtype=np.int32)[::2]
    values = RunValues(np.array([10]), storage, nullable=False)
    values.open(in_memory(0, FixedValues(every_other), nullable=False))
    found = rows_from(values, np.array([0, 0]), np.array([9, 1]))
    assert isinstance(found, FixedValues)
    assert found.values.tolist() == [18, 2]


@pytest.mark.parametrize("copier", COPIERS)
@pytest.mark.parametrize(("run", "row"), [(0, ROWS), (0, -1), (-1, 0), (RUNS, 0)])
def test_no_address_is_made_of_a_row_that_is_not_there(
    copier: RowCopier, run: int, row: int
) -> None:
    storage, runs = fixed((3,), "uint8")
    with pytest.raises(IndexError, match="beyond its end"):
        rows_from(opened(storage, runs, copier), np.array([0, run]), np.array([0, row]))


@pytest.mark.parametrize("copier", COPIERS)
def test_no_address_is_made_of_a_run_that_is_closed(copier: RowCopier) -> None:
    storage, runs = fixed((3,), "uint8")
    values = opened(storage, runs, copier)
    values.close(np.array([1]))
    with pytest.raises(IndexError, match="run 1 is not open"):
        rows_from(values, np.array([0, 1]), np.array([0, 0]))


@pytest.mark.parametrize("copier", COPIERS)
def test_a_closed_run_has_no_validity_and_no_dimensions_either(copier: RowCopier) -> None:
    dims = np.ones((2, 2), np.uint32)
    valid = np.array([True, True])
    page = RaggedValues(offsets_of(np.ones(2, int)), np.zeros(2, "u1"), (None, None), dims, valid)
    storage = Storage(ColumnLayout.RAGGED, "uint8", (None, None))
    values = RunValues(np.array([2]), storage, nullable=True, copier=copier)
    values.open(in_memory(0, page, nullable=True))
    values.close(np.array([0]))
    with pytest.raises(IndexError, match="run 0 is not open"):
        rows_from(values, np.array([0]), np.array([0]))


def test_a_run_with_other_rows_than_planned_is_refused() -> None:
    storage, runs = fixed((3,), "uint8")
    values = RunValues(np.full(RUNS, ROWS + 1), storage, nullable=False)
    with pytest.raises(AssertionError, match="other rows"):
        values.open(in_memory(0, runs[0], nullable=False))


def test_a_run_of_a_nullable_column_without_its_validity_is_refused() -> None:
    storage, runs = fixed((3,), "uint8")
    values = RunValues(np.full(RUNS, ROWS), storage, nullable=True)
    with pytest.raises(AssertionError, match="without its validity"):
        values.open(in_memory(0, runs[0], nullable=False))


# ------------------------------------------------------------------------------ row sums


def summed(run: int, rows: np.ndarray, said: list[tuple[int, int]]) -> InMemory:
    """A run whose rows have sums; `said` gets the place and the row that were not what they say."""
    sums = np.array([xxh3_64_intdigest(row) & 0xFFFFFFFF for row in rows], np.uint32)

    def prove(place: int, row: int) -> None:
        said.append((place, row))
        raise CorruptError("damaged")

    place = in_memory(run, FixedValues(rows), nullable=False)
    return place._replace(owners=[(rows, sums)], sums_at=np.array([address_of(sums)]), prove=prove)


@pytest.mark.parametrize("copier", COPIERS)
def test_a_row_that_is_not_what_its_sum_says_is_not_handed_out(copier: RowCopier) -> None:
    storage = Storage(ColumnLayout.FIXED, "uint8", (300,))
    rows = np.random.default_rng(0).integers(0, 256, (2, 3, 300), np.uint8)
    values = RunValues(np.array([3, 3]), storage, nullable=False, copier=copier)
    said: list[tuple[int, int]] = []
    values.open(summed(0, rows[0], said))
    values.open(in_memory(1, FixedValues(rows[1]), nullable=False))  # without sums
    rows[:, 1, 77] ^= 1
    run, row = np.array([1, 0, 1, 0]), np.array([0, 2, 1, 0])
    found = rows_from(values, run, row)
    assert isinstance(found, FixedValues)
    assert np.array_equal(found.values, rows[run, row])
    with pytest.raises(CorruptError):
        rows_from(values, np.array([1, 0]), np.array([1, 1]))
    assert said == [(0, 1)]


# ------------------------------------------------------------------------------ pool


@pytest.mark.parametrize(("size", "room_bytes"), [(100_000, 0), (5_000, 100_000)])
def test_memory_is_lent_again_when_nobody_refers_to_it(size: int, room_bytes: int) -> None:
    pool = Pool()
    first = pool.array((size,), BYTE, room_bytes=room_bytes)
    address = first.__array_interface__["data"][0]
    del first
    assert pool.array((99_000,), BYTE).__array_interface__["data"][0] == address


def test_memory_is_not_lent_while_a_view_of_it_lives() -> None:
    pool = Pool()
    view = pool.array((100, 1000), BYTE)[10:20, 5:]
    view[...] = 7
    others = [pool.array((100, 1000), BYTE) for _ in range(5)]
    for other in others:
        other[...] = 9
    assert (view == 7).all()
    assert not any(np.shares_memory(one, two) for one in others for two in others if one is not two)


def test_memory_is_not_lent_while_a_tensor_of_it_lives() -> None:
    torch = pytest.importorskip("torch")
    pool = Pool()
    tensor = torch.from_numpy(pool.array((100_000,), BYTE))[5:]
    tensor[...] = 7
    pool.array((100_000,), BYTE)[...] = 9
    assert bool((tensor == 7).all())


@given(st.lists(st.integers(0, 300_000), max_size=20))
def test_a_pool_keeps_no_more_than_its_limit(sizes: list[int]) -> None:
    pool = Pool(limit_bytes=1 << 20)
    kept = [pool.array((size,), BYTE) for size in sizes]
    assert pool.kept_bytes <= 1 << 20
    assert [array.size for array in kept] == sizes


@given(st.sampled_from(["u1", "f4", "c16"]), st.lists(st.integers(0, 90), min_size=1, max_size=3))
def test_arrays_are_what_was_asked_for_and_aligned(dtype: str, shape: list[int]) -> None:
    found = Pool().array(tuple(shape), np.dtype(dtype))
    assert (found.dtype, found.shape) == (np.dtype(dtype), tuple(shape))
    assert found.flags.c_contiguous
    assert found.nbytes < 4096 or found.__array_interface__["data"][0] % 64 == 0
