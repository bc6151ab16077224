"""Rows are matched by runs of ids, as single ids would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.row_ids import RUN, RowIdTable, ids_of_runs
from tensorrepo.formats.dataset.versions.match import RowRanges, Stretches, match_rows
from tensorrepo.repo.errors import CorruptError

Ids = list[tuple[int, int]]


@st.composite
def versions(draw: st.DrawFn) -> tuple[RowIdTable, NDArray[np.int64]]:
    """Ids of one version, each once, and which rows of it are deleted."""
    first = draw(st.permutations([(uid, start) for uid in (1, 5, 2**63) for start in (0, 4, 7)]))
    runs = [
        (uid, start, draw(st.integers(1, 3))) for uid, start in first[: draw(st.integers(0, 9))]
    ]
    table = _table(runs)
    rows = int(table.runs["rows"].sum())
    dead = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    return table, np.flatnonzero(np.array(dead, np.bool_))


def _table(runs: Any) -> RowIdTable:
    made = np.array(runs, RUN)
    counts = made["rows"].astype(np.int64)
    return RowIdTable(made, np.cumsum(counts) - counts)


def _ids(table: RowIdTable) -> Ids:
    found: Ids = ids_of_runs(table.runs).tolist()
    return found


@given(versions(), versions())
def test_matching_runs_is_matching_ids(
    one: tuple[RowIdTable, NDArray[np.int64]], two: tuple[RowIdTable, NDArray[np.int64]]
) -> None:
    (old, old_dead), (new, new_dead) = one, two
    before, after = _ids(old), _ids(new)
    found = match_rows(old, new, (len(before), old_dead), (len(after), new_dead))
    pairs = list(zip(*(rows.tolist() for rows in found.both.pairs()), strict=True))
    assert pairs == [(before.index(each), at) for at, each in enumerate(after) if each in before]
    living = [
        {each for at, each in enumerate(ids) if at not in dead}
        for ids, dead in ((before, set(old_dead.tolist())), (after, set(new_dead.tolist())))
    ]
    deleted = [at for at, each in enumerate(before) if each in living[0] - living[1]]
    added = [at for at, each in enumerate(after) if each in living[1] - living[0]]
    assert (found.deleted.expand().tolist(), found.added.expand().tolist()) == (deleted, added)
    assert (found.deleted.rows, found.added.rows) == (len(deleted), len(added))


@given(versions(), versions(), st.lists(st.integers(0, 30), unique=True).map(sorted))
def test_stretches_are_cut_and_joined_without_losing_rows(
    one: tuple[RowIdTable, NDArray[np.int64]],
    two: tuple[RowIdTable, NDArray[np.int64]],
    bounds: list[int],
) -> None:
    none = np.zeros(0, np.int64)
    both = match_rows(one[0], two[0], (len(_ids(one[0])), none), (len(_ids(two[0])), none)).both
    cut = both.cut(np.array(bounds, np.int64))
    assert [each.tolist() for each in cut.pairs()] == [each.tolist() for each in both.pairs()]
    reached = {
        bound
        for bound in bounds
        for new, rows in zip(cut.new.tolist(), cut.rows.tolist(), strict=True)
        if new < bound < new + rows
    }
    assert reached == set()
    assert [each.tolist() for each in cut.joined().pairs()] == [
        each.tolist() for each in both.pairs()
    ]
    twice = both.swapped().swapped()
    assert [each.tolist() for each in twice.pairs()] == [each.tolist() for each in both.pairs()]


@given(versions(), versions(), st.integers(0, 30), st.integers(0, 30))
def test_a_window_holds_the_rows_in_it(
    one: tuple[RowIdTable, NDArray[np.int64]],
    two: tuple[RowIdTable, NDArray[np.int64]],
    start: int,
    stop: int,
) -> None:
    none = np.zeros(0, np.int64)
    both = match_rows(one[0], two[0], (len(_ids(one[0])), none), (len(_ids(two[0])), none)).both
    pairs = zip(*(rows.tolist() for rows in both.pairs()), strict=True)
    inside = zip(*(rows.tolist() for rows in both.between(start, stop).pairs()), strict=True)
    assert list(inside) == [(old, new) for old, new in pairs if start <= new < stop]


@given(
    st.lists(st.integers(0, 40), unique=True).map(sorted), st.integers(0, 45), st.integers(0, 45)
)
def test_ranges_expand_to_any_part_of_their_rows(rows: list[int], first: int, last: int) -> None:
    apart = [at for at in rows if at - 1 not in rows]
    ends = [at + 1 for at in rows if at + 1 not in rows]
    ranges = RowRanges(np.array(apart, np.int64), np.array(ends, np.int64))
    assert ranges.expand(first, last).tolist() == rows[first:last]
    assert ranges.rows == len(rows)


def test_the_old_row_of_a_row_that_has_none_is_minus_one() -> None:
    both = Stretches(np.array([10]), np.array([5]), np.array([2]))
    assert both.old_of(np.array([4, 5, 6, 7])).tolist() == [-1, 10, 11, -1]


def test_an_id_that_comes_twice_is_damage() -> None:
    none = (8, np.zeros(0, np.int64))
    twice = _table([(1, 0, 4), (1, 3, 4)])
    with pytest.raises(CorruptError, match="0000000000000001:3 is in one dataset twice"):
        match_rows(twice, _table([(1, 0, 8)]), none, none)
