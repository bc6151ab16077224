"""Any rows, in any order, are what the pages and patches say, wherever the pages lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.reading.page_reader import (
    DecodedPageCache,
    PageReader,
)
from tensorrepo.formats.dataset.reading.row_read import (
    read_chosen,
    read_columns,
    read_range,
    region_of,
)
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Tensor
from tensorrepo.formats.dataset.schema.types import Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, blank_values, concat
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.columns import MappedObjects, Pages, presented
from tests.support.builders.datasets import equal, value
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples, sampled_product
from tests.support.faults.damage import flipped

COLUMNS = {
    "numbers": Column("c", Scalar("int64"), nullable=True),
    "wide rows": Column("c", Tensor("float64", (70,)), nullable=True),
    "huge rows": Column("c", Tensor("int64", (5000,))),
    "loosened": Column("c", Tensor("int64", (None, 8)), nullable=True),
    "ragged": Column("c", Tensor("int64", (None, 2, None))),
    "bytes": Column("c", Bytes(), nullable=True),
    "tiled": Column("c", Tensor("int64", (None, 3, None), (2, 2, 3)), nullable=True),
    "fixed tiles": Column("c", Tensor("float32", (9, 5), (4, 4))),
}
NARROWER = {
    "numbers": Column("c", Scalar("int16"), nullable=True),
    "wide rows": Column("c", Tensor("float32", (70,)), nullable=True),
    "huge rows": Column("c", Tensor("int32", (5000,))),
    "loosened": Column("c", Tensor("int32", (16, 8)), nullable=True),
    "ragged": Column("c", Tensor("int32", (None, 2, None))),
    "bytes": Column("c", Bytes(), nullable=True),
    "tiled": Column("c", Tensor("int32", (4, 3, None), (2, 2, 3)), nullable=True),
    "fixed tiles": Column("c", Tensor("float16", (9, 5), (4, 4))),
}
FORMS = st.sampled_from(["plain", "plain", "packed", "narrow", "missing", "foreign"])


class Given:
    """A column of any pages, the rows that it should have, and a reader of it."""

    def __init__(self, name: str, objects: MemoryObjects, forms: Sequence[str], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.column, narrow = COLUMNS[name], NARROWER[name]
        pages = Pages(objects, self.column)
        self.rows: list[Any] = []
        self.foreign: dict[ObjectLink, list[Any]] = {}
        default = value(replace(self.column, nullable=False), rng)
        for form in forms:
            count = int(rng.integers(1, 12))
            rows = [value(narrow if form == "narrow" else self.column, rng) for _ in range(count)]
            if form == "missing":
                rows = [default] * count
                pages.add_missing(count)
            elif form == "foreign":
                self.foreign[pages.add_foreign(count)] = rows
            elif form == "narrow":
                pages.add(rows, column=narrow)
                rows = [row if row is None else _widened(row, self.column) for row in rows]
            else:
                pages.add(rows, Codec.ZSTD if form == "packed" else Codec.NONE)
            self.rows += rows
        patched = np.flatnonzero(rng.random(len(self.rows)) < rng.choice([0, 0.1, 0.6])).tolist()
        patches = {row: value(self.column, rng) for row in patched}
        index = pages.index(default, patches)
        for row, new in patches.items():
            self.rows[row] = new
        self.reader = PageReader(objects, index, "c", DecodedPageCache(), self.read_foreign)

    def read_foreign(
        self, link: ObjectLink, _id: str, entry: Any, storage: Storage
    ) -> ColumnValues:
        assert storage == self.column.storage
        assert len(self.foreign[link]) == int(entry["rows"])
        return coerce_column(self.column, self.foreign[link])

    def has(self, values: ColumnValues, rows: Sequence[int]) -> bool:
        found = presented(self.column, values)
        expected = [self.rows[row] for row in rows]
        return len(found) == len(expected) and all(map(equal, found, expected))


def _widened(row: Any, column: Column) -> Any:
    if isinstance(row, bytes):
        return row
    with np.errstate(invalid="ignore"):  # NaNs that signal
        return row.astype(column.storage.element)


@pytest.mark.parametrize("kind", [MemoryObjects, MappedObjects])
@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=examples(2))
@given(forms=st.lists(FORMS, min_size=1, max_size=6), seed=st.integers(0, 2**32), data=st.data())
def test_rows_are_what_pages_and_patches_say(
    name: str, kind: type[MemoryObjects], forms: list[str], seed: int, data: st.DataObject
) -> None:
    given_rows = Given(name, kind(), forms, seed)
    reader, count = given_rows.reader, len(given_rows.rows)
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=20))
    start, stop = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    assert given_rows.has(read_chosen(reader, np.array(chosen, np.int64)), chosen)
    assert given_rows.has(read_range(reader, start, stop), range(start, stop))
    assert given_rows.has(reader.take(np.array(chosen, np.int64)), chosen)
    whole = concat(list(reader.scan(range(reader.index.pages))))
    assert given_rows.has(whole, range(count))
    pieces = [blank_values(reader.index.storage, 0), *reader.range(start, stop)]
    assert given_rows.has(concat(pieces), range(start, stop))


@pytest.mark.parametrize("kind", [MemoryObjects, MappedObjects])
@pytest.mark.parametrize("name", COLUMNS)
def test_pages_are_what_their_rows_are(name: str, kind: type[MemoryObjects]) -> None:
    forms = ["plain", "missing", "narrow", "packed", "foreign", "plain"]
    given_rows = Given(name, kind(), forms, 7)
    reader = given_rows.reader
    first = reader.index.first_row.tolist()
    pages = [reader.values(page) for page in range(reader.index.pages)]
    assert all(
        given_rows.has(page, range(start, stop))
        for page, start, stop in zip(pages, first, first[1:], strict=False)
    )


def test_what_is_read_may_be_written_to() -> None:
    given_rows = Given("wide rows", MappedObjects(), ["plain", "missing"], 3)
    count = len(given_rows.rows)
    before = presented(given_rows.column, given_rows.reader.take(np.arange(count)))
    for found in (
        read_range(given_rows.reader, 0, 2),
        read_chosen(given_rows.reader, np.arange(2)),
    ):
        found.values[:] = 0  # type: ignore[union-attr]  # fixed, as the column is
    after = presented(given_rows.column, given_rows.reader.take(np.arange(count)))
    assert all(map(equal, before, after))


def test_rows_without_a_page_take_no_memory_until_they_are_chosen() -> None:
    pages = Pages(MemoryObjects(), COLUMNS["wide rows"])
    pages.add_missing(1 << 31)
    reader = _reader(pages, pages.index(np.full(70, 2.5)))
    assert reader.values(0).values.strides[0] == 0  # type: ignore[union-attr]
    assert read_chosen(reader, np.array([1 << 30, 5])).rows == 2
    assert read_range(reader, (1 << 31) - 3, 1 << 31).rows == 3


def test_a_short_text_by_default_is_repeated_for_the_rows_that_are_read() -> None:
    column = COLUMNS["bytes"]
    pages = Pages(MemoryObjects(), column)
    pages.add_missing(1 << 31)
    reader = _reader(pages, pages.index(b"none"))
    assert presented(column, read_range(reader, 7, 9)) == [b"none", b"none"]
    assert presented(column, read_chosen(reader, np.array([9, 7]))) == [b"none", b"none"]


def test_rows_are_known_to_be_large_before_they_are_read() -> None:
    row = np.zeros((40, 50), np.uint8)
    for form, tile in (("plain", None), ("missing", None), ("tiled", (16, 16))):
        pages = Pages(MemoryObjects(), Column("c", Tensor("uint8", (40, 50), tile)))
        if form == "missing":
            pages.add_missing(9)
        else:
            pages.add([row] * 9)
        reader = _reader(pages, pages.index(row))
        assert 2000 <= reader.row_bytes(0) < 2100


def test_foreign_pages_are_refused_without_somebody_who_reads_them() -> None:
    pages = Pages(MemoryObjects(), COLUMNS["numbers"])
    pages.add_foreign(4)
    reader = _reader(pages, pages.index(0))
    with pytest.raises(UnsupportedError, match=r"foreign file.*tensorrepo dataset compact"):
        read_chosen(reader, np.array([1]))


def test_columns_are_read_alike_alone_and_together() -> None:
    given_rows = [
        Given(name, MemoryObjects(), ["plain", "missing", "plain"], 1)
        for name in ("bytes", "ragged")
    ]
    rows = np.array([2, 0, 1])
    found = read_columns([each.reader for each in given_rows], rows)
    assert all(
        each.has(values, rows.tolist()) for each, values in zip(given_rows, found, strict=True)
    )
    found = read_columns([each.reader for each in given_rows], range(1, 3))
    assert all(each.has(values, [1, 2]) for each, values in zip(given_rows, found, strict=True))


def test_no_rows_are_no_rows() -> None:
    given_rows = Given("bytes", MemoryObjects(), ["plain"], 1)
    assert read_chosen(given_rows.reader, np.zeros(0, np.int64)).rows == 0
    assert read_range(given_rows.reader, 1, 1).rows == 0


def test_the_stale_value_of_a_patched_row_is_never_read_from_a_store() -> None:
    objects = MemoryObjects()
    column = Column("c", Tensor("uint8", (5000,)))
    pages = Pages(objects, column)
    pages.add([np.full(5000, at, np.uint8) for at in range(100)])
    index = pages.index(np.zeros(5000, np.uint8), {40: np.full(5000, 200, np.uint8)})
    page = index.chunks[0]
    found = read_chosen(_reader(pages, index), np.array([40]))
    assert found.values[0, 0] == 200  # type: ignore[union-attr]
    assert page not in [index.chunks[0] for digest, _, _ in objects.reads if digest == page.digest]  # type: ignore[union-attr]


REGIONS = [
    (slice(1, 3), slice(None), slice(0, 2)),
    (0, ..., slice(None, None, -2)),
    (..., -1),
    ...,
]


@sampled_product(
    "region,form,kind,tile",
    REGIONS,
    ["plain", "packed", "narrow", "missing"],
    [MemoryObjects, MappedObjects],
    [None, (2, 2, 3)],
    dev=24,
)
def test_a_region_is_that_part_of_the_row(
    region: Any, form: str, kind: type[MemoryObjects], tile: tuple[int, ...] | None
) -> None:
    column = Column("c", Tensor("int32", (None, 3, None), tile), nullable=True)
    narrow = Column("c", Tensor("int16", (None, 3, None), tile), nullable=True)
    rows = [np.arange(12 * at, dtype=np.int32).reshape(4, 3, at) for at in (5, 1)] + [None]
    pages = Pages(kind(), column)
    if form == "missing":
        pages.add_missing(2)
    elif form == "narrow":
        pages.add([row if row is None else row.astype(np.int16) for row in rows], column=narrow)
    else:
        pages.add(rows, Codec.ZSTD if form == "packed" else Codec.NONE)
    patch = np.arange(4 * 3 * 7, dtype=np.int32).reshape(4, 3, 7)
    reader = _reader(pages, pages.index(rows[0], {1: patch}))
    assert equal(np.array(region_of(reader, 0, region)), np.array(rows[0][region]))
    assert equal(np.array(region_of(reader, 1, region)), np.array(patch[region]))


def test_a_region_of_null_is_null() -> None:
    for tile in (None, (2, 2)):
        pages = Pages(MemoryObjects(), Column("c", Tensor("int8", (None, 4), tile), nullable=True))
        pages.add([None, np.zeros((1, 4), np.int8)])
        assert region_of(_reader(pages, pages.index()), 0, ...) is None


@pytest.mark.parametrize("region", [[0, 1], None, (0, 0, 0), 9, np.array([True])])
@pytest.mark.parametrize("tile", [None, (2, 2)])
def test_what_is_no_region_is_refused(region: Any, tile: tuple[int, ...] | None) -> None:
    pages = Pages(MemoryObjects(), Column("c", Tensor("int8", (3, 4), tile)))
    pages.add([np.zeros((3, 4), np.int8)])
    with pytest.raises(InvalidInputError):
        region_of(_reader(pages, pages.index()), 0, region)


def test_bytes_have_no_regions() -> None:
    pages = Pages(MemoryObjects(), COLUMNS["bytes"])
    pages.add([b"abc"])
    with pytest.raises(InvalidInputError, match="holds bytes or text"):
        region_of(_reader(pages, pages.index()), 0, slice(0, 1))


def test_a_region_of_a_store_fetches_little_more_than_its_tiles() -> None:
    objects = MemoryObjects()
    pages = Pages(objects, Column("c", Tensor("uint8", (None, 256, 256), (32, 32, 32))))
    row = np.random.default_rng(0).integers(0, 256, (64, 256, 256), np.uint8)
    pages.add([row, row[::-1]])
    reader = _reader(pages, pages.index())
    reader.tile_table(0)
    objects.reads.clear()
    found = region_of(reader, 1, (slice(0, 40), 100, slice(60, 130)))
    assert np.array_equal(found, row[::-1][0:40, 100, 60:130])
    assert sum(stop - start for _, start, stop in objects.reads) <= 1.3 * 2 * 1 * 4 * 32**3


def test_a_damaged_tile_is_refused_and_named() -> None:
    objects = MemoryObjects()
    pages = Pages(objects, Column("c", Tensor("uint8", (64, 64), (32, 32))))
    pages.add([np.zeros((64, 64), np.uint8)])
    index = pages.index()
    link: Any = index.chunks[2]
    objects.stored[link.digest] = flipped(objects.stored[link.digest], link.payload_start + 9, 1)
    reader = _reader(pages, index)
    assert region_of(reader, 0, (40, 40)) == 0
    with pytest.raises(
        CorruptError,
        match=r"column 'c', page 0 .*: tile 0 of row 0 .*, byte \d+ of chunk \w{12}, has",
    ):
        region_of(reader, 0, (0, 0))
    with pytest.raises(
        CorruptError,
        match=r"column 'c', page 0 .*: tile 0 of row 0 .*, byte \d+ of chunk \w{12}, has",
    ):
        read_chosen(reader, np.array([0]))


def _reader(pages: Pages, index: ColumnIndex) -> PageReader:
    return PageReader(pages.objects, replace(index), "c", DecodedPageCache())
