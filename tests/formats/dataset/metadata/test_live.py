"""Numbers of live rows and of physical ones are mapped to each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.deletions import LiveRows


@st.composite
def datasets(draw: st.DrawFn) -> tuple[LiveRows, list[int]]:
    """Live rows, and what they are: the physical numbers, one after the other."""
    total = draw(st.integers(1, 40))
    dead = draw(st.sets(st.integers(0, total - 1)))
    live = LiveRows(total, np.array(sorted(dead), np.int64))
    return live, [row for row in range(total) if row not in dead]


@given(datasets(), st.randoms(use_true_random=False))
def test_live_rows_are_counted_without_deleted_ones(
    drawn: tuple[LiveRows, list[int]], chance: object
) -> None:
    live, kept = drawn
    order = np.arange(len(kept))
    chance.shuffle(order)  # type: ignore[attr-defined]  # a random.Random
    assert live.rows == len(kept)
    assert live.physical(order).tolist() == [kept[at] for at in order.tolist()]


@given(datasets())
def test_deleted_rows_have_no_live_number(drawn: tuple[LiveRows, list[int]]) -> None:
    live, kept = drawn
    expected = [kept.index(row) if row in kept else -1 for row in range(live.total)]
    assert live.live(np.arange(live.total)).tolist() == expected


@given(datasets(), st.data())
def test_ranges_know_their_live_rows(
    drawn: tuple[LiveRows, list[int]], data: st.DataObject
) -> None:
    live, kept = drawn
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, live.total)] * 2)))
    inside = [row for row in kept if start <= row < stop]
    bounds = live.live_bounds(np.array([start, stop]))
    alive = live.alive(start, stop)
    assert bounds[1] - bounds[0] == len(inside)
    assert (alive is None) == (len(inside) == stop - start)
    assert alive is None or (alive + start).tolist() == inside
