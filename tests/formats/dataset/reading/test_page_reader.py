"""Pages and rows are proved before anything of them is returned, wherever they lie."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.pages.page import DIRECTORY
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    open_dataset,
    page_bytes,
    page_reader,
)
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Schema, Tensor
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.columns import MappedObjects
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import flipped

COUNT = 400
SCHEMA = Schema(
    (
        Column("x", Tensor("uint16", (2000,))),
        Column("b", Bytes()),
        Column("n", Scalar("int32"), nullable=True),
    )
)
BATCH: dict[str, Any] = {
    "x": np.repeat(np.arange(COUNT, dtype=np.uint16), 2000).reshape(COUNT, 2000),
    "b": [bytes([at % 256]) * (at * 7) for at in range(COUNT)],
    "n": [None if at % 50 == 0 else at for at in range(COUNT)],
}


def _dataset(objects: MemoryObjects) -> StoredDataset:
    return stored(objects, SCHEMA, [BATCH], page_bytes=1 << 19)


@pytest.fixture(scope="module", params=[MemoryObjects, MappedObjects])
def dataset(request: pytest.FixtureRequest) -> StoredDataset:
    return _dataset(request.param())


@given(st.lists(st.integers(0, COUNT - 1), max_size=30))
def test_rows_are_the_same_wherever_they_lie(dataset: StoredDataset, rows: list[int]) -> None:
    fresh = open_dataset(dataset.objects, dataset.digest)
    found = fresh[rows]
    assert np.array_equal(found["x"], BATCH["x"][rows])
    assert found["b"] == [BATCH["b"][at] for at in rows]
    assert np.ma.asarray(found["n"]).tolist() == [BATCH["n"][at] for at in rows]


def test_a_few_rows_of_a_store_are_read_exactly() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects)
    column_index(dataset, "x")
    objects.reads.clear()
    found = dataset["x"][[300, 5, 301]]
    assert isinstance(found, np.ndarray)
    assert found[:, 0].tolist() == [300, 5, 301]
    assert sum(stop - start for _, start, stop in objects.reads) < 20_000
    assert len(objects.reads) <= 4


def test_many_rows_of_a_page_are_read_with_it() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects)
    index = column_index(dataset, "x")
    objects.reads.clear()
    assert len(dataset["x"][list(range(130))]) == 130
    assert len(objects.reads) == index.page_of(np.array([129]))[0] + 1


def test_a_page_of_a_store_is_read_once() -> None:
    objects = MemoryObjects()
    reader = page_reader(_dataset(objects), "x")
    objects.reads.clear()
    with ThreadPoolExecutor(8) as threads:
        pages = list(threads.map(reader.values, [0] * 20))
    assert all(page is pages[0] for page in pages)
    assert len(objects.reads) == 1


def _chunk(dataset: StoredDataset, name: str) -> ObjectLink:
    link = column_index(dataset, name).chunks[0]
    assert not isinstance(link, memoryview)
    return link


def _place(dataset: StoredDataset, name: str, row: int, byte: int) -> int:
    """Where in its stored object a byte of a fixed row lies."""
    index = column_index(dataset, name)
    page = int(index.page_of(np.array([row]))[0])
    within = (row - int(index.first_row[page])) * index.storage.row_bytes + byte
    start = _chunk(dataset, name).payload_start
    assert start is not None
    return start + int(index.entries["offset"][page]) + DIRECTORY.size + within


@pytest.mark.parametrize("key", [5, [5], [5, 300], slice(4, 6), slice(None)])
@pytest.mark.parametrize("kind", [MemoryObjects, MappedObjects])
def test_a_damaged_row_is_never_returned(kind: type[MemoryObjects], key: Any) -> None:
    objects = kind()
    dataset = _dataset(objects)
    digest = _chunk(dataset, "x").digest
    place = _place(dataset, "x", 5, 1999)
    objects.stored[digest] = flipped(objects.stored[digest], place, 1)
    fresh = open_dataset(objects, dataset.digest)
    message = r"column 'x', page 0 \(rows 0 to \d+\) in chunk " + digest[:12]
    with pytest.raises(CorruptError, match=message):
        fresh["x"][key]


def test_a_damaged_sum_is_noticed_by_the_row_that_needs_it() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects)
    digest = _chunk(dataset, "x").digest
    rows = int(column_index(dataset, "x").entries["rows"][0])
    # 4,000 bytes a row; sums begin at the next multiple of 64.
    sums = _place(dataset, "x", 0, 0) + -(-rows * 4000 // 64) * 64
    objects.stored[digest] = flipped(objects.stored[digest], sums + 5 * 4, 1)
    found = open_dataset(objects, dataset.digest)["x"][[4, 6]]
    assert isinstance(found, np.ndarray)
    assert found[:, 0].tolist() == [4, 6]
    with pytest.raises(CorruptError, match=r"column 'x', page 0 .* expected another tag"):
        open_dataset(objects, dataset.digest)["x"][[4, 5]]


def test_a_chunk_cut_short_is_corrupt_not_short() -> None:
    class Cut(MappedObjects):
        def map(self, link: ObjectLink) -> memoryview:
            return super().map(link)[: link.bytes // 3]

    dataset = _dataset(Cut())
    with pytest.raises(CorruptError, match="expected"):
        dataset["x"][:]


def test_page_bytes_are_proved_and_read_only(dataset: StoredDataset) -> None:
    index = column_index(dataset, "b")
    found = page_bytes(dataset, index, 0)
    assert found.readonly
    assert found.nbytes == index.entries["stored_bytes"][0]


def test_the_index_of_a_column_says_where_its_rows_are(dataset: StoredDataset) -> None:
    index = column_index(dataset, "x")
    assert index.rows == COUNT
    assert index.first_row.tolist() == [0, *np.cumsum(index.entries["rows"]).tolist()]
    assert (index.entries["offset"] % 64 == 0).all()
    assert index.raw_bytes >= BATCH["x"].nbytes
    assert all(chunk.kind is Kind.CHUNK for chunk in index.chunks)  # type: ignore[union-attr]
