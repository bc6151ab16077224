"""Pages are gathered in order, and a page index is taken apart and put together unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnTally,
    IndexParts,
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
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.repo.ids import digest_from_bytes
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
    return _ended(span)


def _ended(span: OpenSpan) -> PageIndex:
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


@pytest.mark.parametrize("case", ["large", "tiled"])
@pytest.mark.parametrize("inline", [[], [19], [0, 17, 18, 19], list(range(20))])
def test_an_index_that_is_added_at_once_has_the_bytes_of_one_by_one(
    case: str, inline: list[int]
) -> None:
    """Also where columns, and tiles, lie in chunks of any order."""
    mixed = _mixed(_indexes(case)[-1].columns[0].storage, inline)
    span = OpenSpan("group", 3)
    span.add_parts(IndexParts(mixed), range(3, 23))
    at_once, one_by_one = _ended(span), _together(mixed)
    assert span.fragments == 20
    assert encode_index(_ordered(at_once)) == encode_index(_ordered(one_by_one))
    # What has no page inline was always added at once, column by column.
    assert not inline or encode_index(at_once) == encode_index(one_by_one)


def _mixed(storage: Storage, inline: list[int]) -> PageIndex:
    """Two columns of 20 fragments in chunks that are drawn; some fragments stand inline."""
    rng = np.random.default_rng(0)
    chunks = (*(digest_from_bytes(rng.bytes(32)) for _ in range(9)), None)
    columns = []
    for name in ("0" * 15 + "1", "0" * 15 + "2"):
        pages = rng.integers(1, 4, 20)
        fragment, entries = np.repeat(np.arange(20), pages), np.zeros(pages.sum(), PAGE_ENTRY)
        entries["first_row"] = np.arange(len(entries)) - (np.cumsum(pages) - pages)[fragment]
        entries["offset"], entries["stored_bytes"] = np.arange(len(entries)) * 8, 8
        chunk = np.where(np.isin(fragment, inline), 9, rng.integers(0, 9, len(entries)))
        tiles = tuple(tuple(rng.integers(0, 9, 2).tolist()) for _ in entries)
        tags = rng.integers(0, 256, (len(entries), 16)).astype(np.uint8)
        is_tiled = storage.layout is ColumnLayout.TILED
        columns.append(
            ColumnPages(
                name, storage, entries, tags, chunk.astype(np.uint32), tiles if is_tiled else ()
            )
        )
    return PageIndex(tuple(columns), chunks if inline else chunks[:-1], memoryview(rng.bytes(800)))


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
