"""Plans: the leading column, runs, followers, and what reading will cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.deletions import LiveRows
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import HAS_ROW_SUMS, PAGE_ENTRY
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.streaming.order.grouped import GroupedLanes
from tensorrepo.formats.dataset.streaming.order.orders import PairedLanes, RowOrder
from tensorrepo.formats.dataset.streaming.plan.pages import (
    Arrangement,
    StreamPlan,
    explain,
    make_plan,
)
from tensorrepo.repo.errors import InvalidInputError


def index(page_rows: list[int], row_bytes: int) -> ColumnIndex:
    """A fixed column with pages of so many rows."""
    entries = np.zeros(len(page_rows), PAGE_ENTRY)
    entries["rows"] = page_rows
    entries["raw_bytes"] = entries["stored_bytes"] = np.array(page_rows) * row_bytes
    first_row = np.concatenate(([0], np.cumsum(page_rows))).astype(np.int64)
    pages = len(page_rows)
    zeros = np.zeros(pages, np.uint32)
    storage = Storage(ColumnLayout.FIXED, "uint8", (row_bytes,))
    tags = np.zeros((pages, 16), np.uint8)
    return ColumnIndex(
        id="0" * 16,
        storage=storage,
        entries=entries,
        tags=tags,
        first_row=first_row,
        chunk=zeros,
        chunks=(),
        fragment=zeros,
        storages=(storage,),
        stored_as=zeros.astype(np.uint8),
    )


HEAVY = index([10] * 100, 1000)


def plan(columns: list[tuple[str, ColumnIndex]], **options: Any) -> StreamPlan:
    return make_plan(columns, **({"batch_size": 4, "window_bytes": 100_000} | options))


def readings(found: StreamPlan) -> dict[str, str]:
    return {column.name: column.reading for column in found.columns}


def test_the_column_with_most_bytes_leads_and_its_pages_are_the_runs() -> None:
    found = plan([("light", index([500, 500], 8)), ("heavy", HEAVY)])
    assert found.leading.name == "heavy"
    assert (found.runs, found.rows) == (100, 1000)
    assert found.live.tolist() == [10] * 100


def test_deleted_rows_are_not_planned_nor_runs_without_others() -> None:
    dead = np.concatenate([[3], np.arange(10, 20), [999]])
    found = plan([("heavy", HEAVY)], deleted=LiveRows(1000, dead))
    assert (found.runs, found.rows) == (99, 988)
    assert found.live.tolist() == [9, *[10] * 97, 9]
    assert (found.start[1], found.stop[1]) == (20, 30)
    assert found.first_row[:3].tolist() == [0, 9, 19]


def test_of_equal_columns_the_first_one_leads() -> None:
    assert plan([("a", HEAVY), ("b", HEAVY)]).leading.name == "a"


@pytest.mark.parametrize(
    ("follower", "reading"),
    [
        (index([10] * 100, 8), "whole"),
        (index([5] * 200, 8), "whole"),
        (index([500, 500], 25), "resident"),
        (index([500, 500], 26), "page"),
        (index([15] * 66 + [10], 26), "page"),
    ],
)
def test_followers_are_read_as_their_bytes_advise(follower: ColumnIndex, reading: str) -> None:
    assert readings(plan([("heavy", HEAVY), ("light", follower)]))["light"] == reading


def summed(follower: ColumnIndex) -> ColumnIndex:
    """The same with sums of its rows."""
    follower.entries["flags"] = HAS_ROW_SUMS
    return follower


@pytest.mark.parametrize(
    ("follower", "far", "reading"),
    [
        (summed(index([5000, 5000], 300)), True, "rows"),
        (summed(index([5000, 5000], 300)), False, "page"),
        (index([5000, 5000], 300), True, "page"),
        (summed(index([20] * 500, 300)), True, "page"),  # more bytes, but half of the requests
    ],
)
def test_rows_are_read_by_themselves_where_that_saves_bytes(
    follower: ColumnIndex, far: bool, reading: str
) -> None:
    heavy = index([10] * 1000, 1000)
    assert readings(plan([("heavy", heavy), ("light", follower)], far=far))["light"] == reading


def test_what_reading_rows_costs_is_explained() -> None:
    follower = summed(index([5000, 5000], 300))
    found = plan([("heavy", index([10] * 1000, 1000)), ("light", follower)], far=True)
    light = explain(found, batch_size=4, steps=2500, seed=0, epoch=0).columns[1]
    assert (light.requests, light.read_bytes) == (2000, 10_000 * 304)
    assert str(light) == "light: rows, 2,000 reads of 2 pages, 2.9 MiB (x1.01)"
    assert found.columns[1].page_bytes == 0


def test_bytes_of_pages_count_once_however_often_they_are_read() -> None:
    found = plan([("heavy", HEAVY), ("light", index([500, 500], 26))])
    assert [column.page_bytes for column in found.columns] == [10**6, 26_000]


def test_the_pages_of_a_run_hold_its_rows() -> None:
    follower = index([15] * 66 + [10], 26)
    light = plan([("heavy", HEAVY), ("light", follower)]).columns[1]
    assert light.first_page[:4].tolist() == [0, 0, 1, 2]
    assert light.stop_page[:4].tolist() == [1, 2, 2, 3]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30), st.lists(st.integers(1, 9), max_size=60)
)
def test_every_row_of_a_run_lies_in_its_pages(runs: list[int], pages: list[int]) -> None:
    rows = sum(runs)
    kept = [*pages[: np.searchsorted(np.cumsum(pages), rows)]]
    follower = index([*kept, rows - sum(kept)] if sum(kept) < rows else kept, 1)
    found = plan([("heavy", index(runs, 10)), ("light", follower)]).columns[1]
    for run, row in enumerate(np.cumsum([0, *runs[:-1]]).tolist()):
        inside = np.arange(row, row + runs[run])
        expected = set(follower.page_of(inside).tolist())
        assert set(range(found.first_page[run], found.stop_page[run])) == expected


def test_runs_count_the_bytes_of_all_columns() -> None:
    found = plan([("heavy", HEAVY), ("light", index([500, 500], 8))])
    assert found.run_bytes.tolist() == [10 * 1000 + 10 * 8] * 100


def test_lanes_follow_the_bytes_of_all_columns() -> None:
    assert plan([("a", HEAVY)]).arrangement == Arrangement("pages", 8, 4)
    assert plan([("a", HEAVY), ("b", HEAVY)]).arrangement == Arrangement("pages", 4, 4)


def test_runs_that_all_fit_stay_resident() -> None:
    assert plan([("a", HEAVY)], window_bytes=10**6).arrangement == Arrangement("resident")


def test_a_buffer_holds_as_many_rows_as_fit() -> None:
    found = plan([("a", HEAVY)], shuffle="buffer").arrangement
    assert found == Arrangement("buffer", window_rows=100)


@pytest.mark.parametrize(("shuffle", "kind"), [(True, "pages"), (False, "storage")])
def test_true_and_false_are_words_for_orders(shuffle: bool, kind: str) -> None:
    assert plan([("a", HEAVY)], shuffle=shuffle).arrangement.kind == kind


def test_a_saved_arrangement_decides() -> None:
    saved = Arrangement("pages", 6, 3)
    found = plan([("a", HEAVY)], shuffle=False).arranged_as(saved)
    order = found.order(0, 0)
    assert found.arrangement == saved
    assert isinstance(order, PairedLanes)
    assert (order.lanes, order.bands) == (6, 3)


def test_more_runs_than_are_shuffled_one_by_one_are_grouped() -> None:
    found = plan([("a", HEAVY)], most_runs=99)
    assert found.arrangement == Arrangement("pages", 8, 4, group_rows=10240, run_rows=10)
    smaller = replace(found, arrangement=replace(found.arrangement, group_rows=100))
    order = smaller.order(0, 0)
    assert isinstance(order, GroupedLanes)
    assert order.groups.first_run.tolist() == list(range(0, 101, 10))
    assert plan([("a", HEAVY)], most_runs=100).arrangement.group_rows == 0


def test_a_fragment_belongs_to_the_group_in_which_it_begins() -> None:
    heavy = index([10] * 12, 1000)
    heavy.entries["first_row"] = [0, 10, 20, 0, 10, 20, 30, 0, 10, 0, 0, 0]  # six fragments
    saved = Arrangement("pages", 2, 2, group_rows=50, run_rows=10)
    order = plan([("a", heavy)]).arranged_as(saved).order(0, 0)
    assert isinstance(order, GroupedLanes)
    assert order.groups.first_run.tolist() == [0, 7, 10, 12]


def test_a_plan_without_rows_has_an_order_without_rows() -> None:
    found = plan([("a", index([], 8))])
    assert isinstance(found.order(0, 0), RowOrder)
    assert found.order(0, 0).rows == 0


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"window_bytes": 0}, {"shuffle": "no"}])
def test_impossible_wishes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        plan([("a", HEAVY)], **wrong)


def test_a_plan_without_columns_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one column"):
        plan([])


def test_reading_a_page_for_each_of_its_runs_is_counted() -> None:
    found = plan([("heavy", HEAVY), ("light", index([500, 500], 26))])
    explained = explain(found, batch_size=4, steps=250, seed=0, epoch=0)
    heavy, light = explained.columns
    assert (heavy.requests, heavy.read_bytes, heavy.amplification) == (100, 10**6, 1.0)
    assert (light.requests, light.read_bytes) == (100, 100 * 500 * 26)
    assert light.amplification == 50.0
    assert explained.requests == 200
    assert explained.resident_bytes == 8 * 10_260
