"""Pages nest, are filled, and do not depend on where batches end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.pages.stripes import NO_LIMIT, Stripes, page_limit
from tensorrepo.formats.dataset.pages.tiles import TILE
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    TiledValues,
    offsets_of,
)

LIMIT = 1000
FRAGMENT = 6000
WIDTHS = st.lists(st.integers(1, 1200), min_size=1, max_size=4)


def _fixed(width: int, rows: int) -> ColumnValues:
    return FixedValues(np.zeros((rows, width), np.uint8))


def _tiled(sizes: list[int]) -> TiledValues:
    """A row of one tile for each size; with its place in the table it costs 60 bytes more."""
    tiles = np.zeros(len(sizes), TILE)
    tiles["stored_bytes"] = sizes
    dims = np.ones((len(sizes), 1), np.uint32)
    return TiledValues(np.arange(len(sizes) + 1), tiles, dims)


def _cut(
    batches: Sequence[Sequence[ColumnValues | TiledValues]], speeds: list[float]
) -> list[list[int]]:
    """Per column, the rows before each page; the fragments' ends as one more list."""
    limits = [NO_LIMIT if isinstance(each, TiledValues) else LIMIT for each in batches[0]]
    stripes = Stripes(limits, speeds, FRAGMENT)
    ends: list[list[int]] = [[] for _ in range(len(speeds) + 1)]
    before = 0
    for batch in batches:
        for step in stripes.advance(batch):
            for place in step.closes:
                ends[place].append(before + step.stop)
            if step.fragment_ends:
                ends[-1].append(before + step.stop)
        before += batch[0].rows
    return ends


@given(WIDTHS, st.integers(1, 400))
def test_a_page_lies_inside_one_page_of_every_slower_column(widths: list[int], rows: int) -> None:
    ends = _cut([[_fixed(width, rows) for width in widths]], [float(width) for width in widths])
    order = sorted(range(len(widths)), key=lambda place: -widths[place])
    for faster, slower in pairwise(order):
        assert set(ends[slower]) <= set(ends[faster])
    assert all(set(ends[-1]) <= set(column) for column in ends[:-1])


@given(WIDTHS, st.integers(50, 400))
def test_pages_hold_their_limit_or_one_row(widths: list[int], rows: int) -> None:
    ends = _cut([[_fixed(width, rows) for width in widths]], [float(width) for width in widths])
    for width, column in zip(widths, ends, strict=False):
        sizes = [(stop - start) * width for start, stop in pairwise([0, *column])]
        assert all(size <= max(LIMIT, width, 1200) for size in sizes)


def test_the_largest_column_fills_its_pages() -> None:
    ends = _cut([[_fixed(90, 500), _fixed(1, 500)]], [90.0, 1.0])
    assert {stop - start for start, stop in pairwise(ends[0])} == {11}
    assert ends[1] == ends[2] == [66 + 66 * at for at in range(len(ends[1]))]


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_where_batches_end_does_not_matter(lengths: list[int], cuts: list[int]) -> None:
    rows = len(lengths)
    data = np.zeros(sum(lengths), np.uint8)
    binary = BinaryValues(offsets_of(np.array(lengths)), data)
    batch: list[ColumnValues] = [binary, _fixed(7, rows)]
    bounds = [0, *sorted(cut for cut in cuts if cut < rows), rows]
    parts = [
        [values.slice(start, stop) for values in batch]
        for start, stop in pairwise(bounds)
        if stop > start
    ]
    whole, cut_up = _cut([batch], [3.0, 1.0]), _cut(parts, [3.0, 1.0])
    # A page that is full when the last rows come ends with the row after them.
    assert [column[: len(other)] for column, other in zip(cut_up, whole, strict=True)] == whole


def test_rows_of_unknown_size_end_a_page_wherever_it_is_full() -> None:
    lengths = np.array([10, 10, 900, 10, 2500, 10, 400, 400, 400])
    binary = BinaryValues(offsets_of(lengths), np.zeros(lengths.sum(), np.uint8))
    ends = _cut([[binary, _fixed(1, len(lengths))]], [1.0, 5.0])
    assert ends[0] == [4, 5, 8]


SIZES = st.lists(st.integers(0, 9000), min_size=1, max_size=60)


@given(SIZES, st.integers(1, 1200))
def test_a_table_of_tiles_covers_its_fragment(sizes: list[int], width: int) -> None:
    ends = _cut([[_tiled(sizes), _fixed(width, len(sizes))]], [1e-9, float(width)])
    assert ends[0] == ends[-1]
    assert set(ends[0]) <= set(ends[1])


@given(SIZES)
def test_tiles_alone_end_a_fragment_after_the_row_that_fills_it(sizes: list[int]) -> None:
    ends = _cut([[_tiled(sizes)]], [1e-9])
    for start, stop in pairwise([0, *ends[-1]]):
        costs = [size + 60 for size in sizes[start:stop]]
        assert sum(costs) >= FRAGMENT > sum(costs[:-1])
    open_rows = sizes[ends[-1][-1] if ends[-1] else 0 : -1]
    assert sum(size + 60 for size in open_rows) < FRAGMENT


@given(SIZES, st.lists(st.integers(0, 60), max_size=5))
def test_where_batches_of_tiles_end_does_not_matter(sizes: list[int], cuts: list[int]) -> None:
    rows = len(sizes)
    tiled = _tiled(sizes)
    bounds = [0, *sorted(cut for cut in cuts if cut < rows), rows]
    parts = [
        [tiled.slice(start, stop), _fixed(7, stop - start)]
        for start, stop in pairwise(bounds)
        if stop > start
    ]
    whole, cut_up = _cut([[tiled, _fixed(7, rows)]], [1e-9, 1.0]), _cut(parts, [1e-9, 1.0])
    assert [column[: len(other)] for column, other in zip(cut_up, whole, strict=True)] == whole


def test_no_wish_limits_the_page_of_a_tiled_column() -> None:
    assert page_limit(Storage(ColumnLayout.TILED, "uint8", (9,), (2,)), 1e12, 4096) == NO_LIMIT
