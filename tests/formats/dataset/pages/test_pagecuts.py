"""Pages of a column that is written beside others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.pages.stripes import PageCuts, PageFiller, page_cuts
from tensorrepo.formats.dataset.schema.values import BinaryValues, FixedValues, offsets_of

SLOW, FAST = np.array([50, 100]), np.array([10, 20, 50, 60, 100])


@pytest.mark.parametrize(
    ("page_rows", "must", "may"),
    [
        (1000, [100], [50, 100]),
        (60, [100], [50, 100]),
        (50, [50, 100], [10, 20, 50, 60, 100]),
        (30, [50, 100], [10, 20, 50, 60, 100]),
        (20, [10, 20, 50, 60, 100], None),
        (1, [10, 20, 50, 60, 100], None),
    ],
)
def test_a_column_cuts_between_those_that_fill_slower_and_faster(
    page_rows: float, must: list[int], may: list[int] | None
) -> None:
    cuts = page_cuts([FAST, SLOW], 100, page_rows)
    assert cuts.must.tolist() == must
    assert (None if cuts.may is None else cuts.may.tolist()) == may


def test_the_only_column_cuts_as_it_likes() -> None:
    cuts = page_cuts([], 100, 10)
    assert (cuts.must.tolist(), cuts.may) == ([100], None)


def _pages(cuts: PageCuts, values: FixedValues | BinaryValues, step: int, size: int) -> list[int]:
    """Where pages end when the values come in steps."""
    filler = PageFiller(cuts, size)
    ends, row = [], 0
    for start in range(0, values.rows, step):
        for pieces in filler.add(values.slice(start, min(start + step, values.rows))):
            row += sum(piece.rows for piece in pieces)
            ends.append(row)
    return ends


@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    step=st.integers(1, 70),
    size=st.integers(1, 2000),
    data=st.data(),
)
def test_pages_end_only_where_they_may_and_wherever_they_must(
    lengths: list[int], step: int, size: int, data: st.DataObject
) -> None:
    rows = len(lengths)
    offsets = offsets_of(np.array(lengths))
    values = BinaryValues(offsets, np.zeros(int(offsets[-1]), np.uint8))
    places = st.sets(st.integers(1, rows)).map(lambda some: np.array(sorted({*some, rows})))
    must = data.draw(places)
    may = data.draw(st.none() | places.map(lambda some: np.union1d(some, must)))
    ends = _pages(PageCuts(must, may), values, step, size)
    assert set(must.tolist()) <= set(ends)
    assert ends == sorted(set(ends))
    assert may is None or set(ends) <= set(may.tolist())
    allowed = np.arange(1, rows + 1) if may is None else may
    bounds = offsets + 8 * np.arange(rows + 1)
    for start, stop in zip([0, *ends], ends, strict=False):
        inside = allowed[(allowed > start) & (allowed < stop)]
        # A page above the limit has no other place to end in.
        assert bounds[stop] - bounds[start] <= size or not len(inside)


def test_fixed_rows_fill_pages_to_the_byte() -> None:
    values = FixedValues(np.zeros((100, 10), np.uint8))
    assert _pages(page_cuts([], 100, 3), values, 7, 30) == [*range(3, 100, 3), 100]
