"""Rows of a store cost few requests, few bytes and few rounds, and damage never gets through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import SUMS, TABLE, buffer_starts, expected_bytes
from tensorrepo.formats.dataset.reading.exact_read import exact_pays
from tensorrepo.formats.dataset.reading.page_reader import DecodedPageCache, PageReader
from tensorrepo.formats.dataset.reading.row_read import read_chosen, read_columns, read_range
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Tensor
from tensorrepo.repo.errors import CorruptError
from tests.support.builders.columns import Pages, RoundObjects, presented
from tests.support.builders.datasets import equal
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import flipped

ROWS_OF_A_PAGE = 300
PAGES = 4
FIXED = Column("c", Tensor("uint8", (3000,)))
NULLABLE = Column("c", Tensor("uint8", (3000,)), nullable=True)
RAGGED = Column("c", Tensor("uint8", (None, 300, None)), nullable=True)
BINARY = Column("c", Bytes(), nullable=True)


def _row(column: Column, at: int) -> Any:
    if column.nullable and at % 10 == 3:
        return None
    rng = np.random.default_rng(at)
    if column.type == Bytes():
        return rng.bytes(2900 + at % 200)
    shape = (3000,) if column.storage.shape == (3000,) else (1 + at % 2, 300, 10)
    return rng.integers(0, 256, shape, np.uint8)


class Store:
    """Four pages of 300 rows of about 3,000 bytes, in a store that counts what it is asked."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.objects = MemoryObjects()
        pages = Pages(self.objects, column)
        self.rows = [_row(column, at) for at in range(PAGES * ROWS_OF_A_PAGE)]
        for start in range(0, len(self.rows), ROWS_OF_A_PAGE):
            pages.add(self.rows[start : start + ROWS_OF_A_PAGE])
        self.index = pages.index()

    def reader(self, objects: MemoryObjects | None = None) -> PageReader:
        return PageReader(objects or self.objects, self.index, "c", DecodedPageCache())

    def are(self, found: Any, rows: Sequence[int]) -> bool:
        shown = presented(self.column, found)
        return len(shown) == len(rows) and all(map(equal, shown, [self.rows[at] for at in rows]))


@pytest.fixture(scope="module", params=[FIXED, NULLABLE, RAGGED, BINARY], ids=str)
def store(request: pytest.FixtureRequest) -> Store:
    return Store(request.param)


def _requests(store: Store, read: Any) -> tuple[int, int]:
    """Requests and bytes."""
    store.objects.reads.clear()
    read()
    return len(store.objects.reads), sum(stop - start for _, start, stop in store.objects.reads)


def test_single_rows_are_read_exactly(store: Store) -> None:
    reader, rows = store.reader(), [753, 140, 150, 740, 450]

    def read() -> None:
        assert store.are(read_chosen(reader, np.array(rows)), rows)

    requests, size = _requests(store, read)
    assert requests <= 2 * len(rows)
    assert size < 100_000  # of 900,000 in each page


def test_rows_of_pages_whose_tables_are_known_cost_one_request_each(store: Store) -> None:
    reader, rows = store.reader(), [743, 150, 460]
    read_chosen(reader, np.array([700, 110, 400]))

    def read() -> None:
        assert store.are(read_chosen(reader, np.array(rows)), rows)

    requests, size = _requests(store, read)
    assert requests <= len(rows)
    assert size < 6100 * len(rows)


@pytest.mark.parametrize(("start", "stop"), [(150, 151), (299, 302), (153, 154), (760, 769)])
def test_a_small_slice_is_read_exactly(store: Store, start: int, stop: int) -> None:
    reader = store.reader()

    def read() -> None:
        assert store.are(read_range(reader, start, stop), range(start, stop))

    requests, size = _requests(store, read)
    assert requests <= 4
    assert size < 12_000 * (1 + stop - start)


def test_many_rows_of_a_page_cost_one_request(store: Store) -> None:
    reader, rows = store.reader(), list(range(0, ROWS_OF_A_PAGE, 7))
    requests, _ = _requests(store, lambda: read_chosen(reader, np.array(rows)))
    assert requests == 1


def test_a_large_slice_costs_one_request_a_page(store: Store) -> None:
    reader = store.reader()
    requests, _ = _requests(store, lambda: read_range(reader, 100, 900))
    assert requests == 3


ROUNDS = [
    (FIXED, [4], [2]),
    (NULLABLE, [4], [2]),
    (RAGGED, [2, 2], [2]),
    (BINARY, [2, 2], [2]),
]


@pytest.mark.parametrize(("column", "cold", "warm"), ROUNDS, ids=["fixed", "nullable", "r", "b"])
def test_rows_come_in_one_round_or_two(column: Column, cold: list[int], warm: list[int]) -> None:
    store = Store(column)
    objects = RoundObjects(store.objects, cold + warm)
    reader = store.reader(objects)
    assert store.are(read_chosen(reader, np.array([750, 150])), [750, 150])
    assert store.are(read_chosen(reader, np.array([140, 740])), [140, 740])
    assert len(objects.reads) == sum(cold + warm)


def test_columns_share_their_rounds() -> None:
    fixed, binary = Store(FIXED), Store(BINARY)
    both = MemoryObjects()
    both.stored = fixed.objects.stored | binary.objects.stored
    both.links = fixed.objects.links | binary.objects.links
    objects = RoundObjects(both, [2 + 1, 1])
    readers = [each.reader(objects) for each in (fixed, binary)]
    first, second = read_columns(readers, np.array([150]))
    assert fixed.are(first, [150])
    assert binary.are(second, [150])


@pytest.mark.parametrize("buffer", [TABLE, SUMS])
def test_a_damaged_page_is_refused_where_rows_need_what_is_damaged(
    store: Store, buffer: int
) -> None:
    entry = store.index.entries[0]
    start = buffer_starts(expected_bytes(entry, store.column.storage))[buffer]
    step = (
        3000 if buffer == TABLE and store.column.type == FIXED.type else 4 if buffer == SUMS else 8
    )
    damaged = _damaged(store, start + 150 * step)
    with pytest.raises(CorruptError, match=r"column 'c', page 0 \(rows 0 to 300\) in chunk"):
        read_chosen(store.reader(damaged), np.array([150]))


def test_a_row_of_zeros_is_told_from_null() -> None:
    objects = MemoryObjects()
    pages = Pages(objects, NULLABLE)
    zeros = np.zeros(3000, np.uint8)
    pages.add([None if at % 2 else zeros for at in range(ROWS_OF_A_PAGE)])
    reader = PageReader(objects, pages.index(), "c", DecodedPageCache())
    found = presented(NULLABLE, read_chosen(reader, np.array([150, 151])))
    assert equal(found[0], zeros)
    assert found[1] is None
    assert sum(stop - start for _, start, stop in objects.reads) < 100_000


def test_a_damaged_table_is_asked_for_again(store: Store) -> None:
    class Once(MemoryObjects):
        """Damages the first answer, as a bad cable does."""

        def read_range(self, link: Any, start: int, stop: int) -> Any:
            data = super().read_range(link, start, stop)
            return data if len(self.reads) > 1 else bytes(255 - byte for byte in data)

    objects = Once()
    objects.stored, objects.links = store.objects.stored, store.objects.links
    reader = store.reader(objects)
    assert store.are(read_chosen(reader, np.array([150, 13])), [150, 13])
    assert store.are(read_chosen(reader, np.array([151, 23])), [151, 23])


def _damaged(store: Store, place: int) -> MemoryObjects:
    damaged = MemoryObjects()
    damaged.links = store.objects.links
    chunk: Any = store.index.chunks[0]
    data = store.objects.stored[chunk.digest]
    damaged.stored = {chunk.digest: flipped(data, chunk.payload_start + place, 0x10)}
    return damaged


def test_small_rows_are_never_worth_a_table() -> None:
    column = Column("c", Bytes())
    pages = Pages(MemoryObjects(), column)
    pages.add([bytes(300) for _ in range(500)])
    index = pages.index()
    assert not _pays(pages, index, [5, 400])


def test_compressed_pages_are_read_whole() -> None:
    pages = Pages(MemoryObjects(), BINARY)
    pages.add([bytes(3000) for _ in range(600)])
    plain = pages.index()
    assert _pays(pages, plain, [5])
    plain.entries["codec"] = 1
    assert not _pays(pages, plain, [5])


def _pays(pages: Pages, index: ColumnIndex, rows: list[int]) -> bool:
    reader = PageReader(pages.objects, index, "c", DecodedPageCache())
    return bool(exact_pays(reader, np.array([0]), np.array(rows), np.array([0])).all())
