"""Every row has an id that finds it again, however often compaction moved it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.row_ids import (
    ROW_ID,
    RowIdTable,
    format_row_id,
    id_table,
    parse_row_id,
    row_ids,
    runs_of_ids,
)
from tensorrepo.repo.errors import InvalidInputError

UIDS = st.integers(0, 2**64 - 1) | st.integers(0, 3)


@st.composite
def tables(draw: st.DrawFn) -> tuple[RowIdTable, list[tuple[int, int]]]:
    """A table, and the ids in it, in the order of the rows: some fragments were moved."""
    written = draw(st.dictionaries(UIDS, st.integers(1, 6), min_size=1, max_size=5))
    ids, moved, uids, rows = [], {}, [], []
    for at, (uid, count) in enumerate(written.items()):
        uids.append(uid)
        mine = [(uid, offset) for offset in range(count)]
        if draw(st.booleans()):
            origin = draw(UIDS.filter(lambda other: other not in written))
            places = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
            mine = [(origin, place) for place in places if (origin, place) not in ids]
            if not mine:
                mine = [(uid, 0)]
            moved[at] = runs_of_ids(np.array(mine, ROW_ID))
        rows.append(len(mine))
        ids += mine
    return id_table(np.array(uids, np.uint64), np.array(rows, np.uint32), moved), ids


@given(tables())
def test_every_row_has_its_id(drawn: tuple[RowIdTable, list[tuple[int, int]]]) -> None:
    table, ids = drawn
    rows = np.arange(len(ids))[::-1].copy()
    assert table.of(rows).tolist() == ids[::-1]


@given(tables(), st.lists(st.tuples(UIDS, st.integers(0, 2**32 - 1)), max_size=5))
def test_ids_find_their_rows_and_no_others(
    drawn: tuple[RowIdTable, list[tuple[int, int]]], others: list[tuple[int, int]]
) -> None:
    table, ids = drawn
    near = [(uid, offset + 1) for uid, offset in ids]
    wanted = [*ids, *others, *near]
    expected = [ids.index(each) if each in ids else -1 for each in wanted]
    assert table.find(np.array(wanted, ROW_ID)).tolist() == expected


def test_nothing_is_found_among_no_rows() -> None:
    table = id_table(np.zeros(0, np.uint64), np.zeros(0, np.uint32), {})
    assert table.find(np.array([(1, 2)], ROW_ID)).tolist() == [-1]


@given(UIDS, st.integers(0, 2**32 - 1))
def test_ids_are_read_as_they_are_shown(uid: int, offset: int) -> None:
    row_id = np.array((uid, offset), ROW_ID)
    text = format_row_id(row_id)
    assert parse_row_id(text) == row_id
    assert row_ids([text, (uid, offset)]).tolist() == [(uid, offset)] * 2
    assert row_ids(row_ids([text])).tolist() == [(uid, offset)]


@pytest.mark.parametrize(
    "text", ["", "12:3", "0123456789ABCDEF:1", "0123456789abcdef:4294967296", "0123456789abcdef:-1"]
)
def test_what_is_no_row_id_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInputError, match="is no row id"):
        parse_row_id(text)
