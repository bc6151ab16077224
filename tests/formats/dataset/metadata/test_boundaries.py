"""Pages are gathered in order, and a page index is taken apart and put together unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnTally,
    OpenSpan,
    column_part,
    fragment_bounds,
    index_parts,
    part_of,
)
from tensorrepo.formats.dataset.metadata.index import (
    ColumnPages,
    PageIndex,
    decode_index,
    encode_index,
)
from tensorrepo.formats.dataset.metadata.manifest import decode_leaf
from tensorrepo.formats.dataset.metadata.tree_read import read_index
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY
from tensorrepo.formats.dataset.read import dataset_leaves
from tests.support.golden.dataset import CASES, SIGNALS, Making, small_cuts


def _indexes(case: str) -> list[PageIndex]:
    """All page indexes of a golden dataset."""
    dataset = CASES[case]().dataset
    return [
        read_index(dataset.objects, span, links)[0]
        for leaf, links in dataset_leaves(dataset)
        for span in leaf.indexes
    ]


def _together(index: PageIndex) -> PageIndex:
    """The parts of an index, gathered anew."""
    span = OpenSpan("group", 3)
    for at, part in enumerate(index_parts(index), 3):
        assert span.takes(part, at)
        span.add_fragment(at, at, part)
    if span.waiting_bytes:
        laid = span.lay_out()
        span.inline = memoryview(b"".join(laid.parts))
        span.chunks.append(None)
    return span.page_index()


@pytest.mark.parametrize("case", ["large", "tiled", "patched", "columns", "leaves", "zstd"])
def test_an_index_is_put_together_of_its_parts(case: str) -> None:
    for index in _indexes(case):
        again = _together(index)
        assert encode_index(_ordered(again)) == encode_index(_ordered(index))


def _ordered(index: PageIndex) -> PageIndex:
    """The index with its pages alone: chunks may be numbered otherwise."""
    columns = tuple(
        ColumnPages(each.id, each.storage, _without_places(each), each.tags, each.chunk * 0)
        for each in index.columns
    )
    return PageIndex(columns, (None,), memoryview(b""))


def _without_places(column: ColumnPages) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    entries = column.entries.copy()
    entries["offset"] = entries["column"] = 0
    return entries


def test_chunks_of_parts_are_those_that_hold_their_pages() -> None:
    (index,) = _indexes("large")
    pages = index.columns[0]
    part = column_part(index, part_of(pages, 5, 9))
    assert isinstance(part.pages, ColumnPages)
    named = [part.chunks[place] for place in part.pages.chunk.tolist()]
    assert named == [index.chunks[place] for place in pages.chunk[5:9].tolist()]


def test_a_span_takes_the_next_fragment_of_the_same_form_alone() -> None:
    made = Making(SIGNALS, [{"x": None, "n": 1}])
    made.append([{"x": None, "n": 2}])
    leaf = decode_leaf(made.dataset.root.leaves[-1].payload, "leaf")
    index = decode_index(leaf.indexes[0].payload, "index")  # type: ignore[arg-type]  # inline
    first, second = index_parts(index)
    span = OpenSpan("group", 0)
    assert not span.takes(first, 1)
    span.add_fragment(1, 0, first)
    assert span.takes(second, 1)
    assert not span.takes(second, 2)
    (only,) = index_parts(_of_columns(index, 1, 1))
    assert not span.takes(only, 1)


def _of_columns(index: PageIndex, columns: int, fragments: int) -> PageIndex:
    kept = tuple(part_of(each, 0, fragments) for each in index.columns[:columns])
    return PageIndex(kept, index.chunks, index.inline)


def test_fragments_begin_where_their_rows_are_counted_from_0() -> None:
    entries = np.zeros(5, PAGE_ENTRY)
    entries["first_row"] = [0, 3, 0, 0, 7]
    assert fragment_bounds(entries) == [0, 2, 3, 5]


def test_statistics_are_those_of_the_pages_that_are_there() -> None:
    with small_cuts():
        made = Making(SIGNALS, [{"x": None, "n": at} for at in range(20)], page_bytes=100)
    (index,) = {id(each): each for each in _of(made)}.values()
    entries = next(each for each in index.columns if not each.storage.shape).entries
    tally = ColumnTally()
    for entry in entries:
        tally.add(entry, tile_bytes=10)
    stored_bytes = int(entries["stored_bytes"].sum())
    assert tally.stored_bytes == stored_bytes + 10 * len(entries)
    assert (tally.min, tally.max) == (int(entries["min"].min()), int(entries["max"].max()))
    at_once = ColumnTally()
    at_once.add_all(entries)
    at_once.stored_bytes += 10 * len(entries)
    assert at_once == tally
    tally.count(entries, -1)
    assert (tally.stored_bytes, tally.raw_bytes) == (10 * len(entries), 0)
    assert tally.min is not None  # a bound still


def _of(made: Making) -> list[PageIndex]:
    dataset = made.dataset
    return [
        read_index(dataset.objects, span, links)[0]
        for leaf, links in dataset_leaves(dataset)
        for span in leaf.indexes
    ]
