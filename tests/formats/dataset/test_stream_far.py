"""Streams of a store: few requests, few bytes, the same rows, and a cache for the next epoch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.changed import without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import MappedObjects, stream, stream_threads

ROWS = 600
# Rows of `x` lead: 16 of them are a page. A page of `e` has 256 rows.
SCHEMA = Schema(
    (
        Column("x", Tensor("float32", (4096,))),
        Column("e", Tensor("float32", (256,)), nullable=True),
        Column("y", Tensor("int64", ())),
    )
)
VALUES = {
    "x": np.arange(ROWS * 4096, dtype=np.float32).reshape(ROWS, 4096),
    "e": np.arange(ROWS * 256, dtype=np.float32).reshape(ROWS, 256),
    "y": np.arange(ROWS),
}
ROW_LIST: list[dict[str, Any]] = [
    {
        "x": VALUES["x"][at],
        "e": None if at % 10 == 3 else VALUES["e"][at],
        "y": np.int64(at),
    }
    for at in range(ROWS)
]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


def dataset(objects: MemoryObjects, rows: Any = ROW_LIST) -> StoredDataset:
    return stored(objects, SCHEMA, [rows], page_bytes=256 << 10)


def epoch(found: BatchStream) -> dict[str, np.ndarray]:
    """All rows by number, each of which came once."""
    batches = list(found)
    order = np.concatenate([batch.rows for batch in batches])
    assert sorted(order.tolist()) == list(range(len(found.feed.dataset)))
    by_row = np.argsort(order)
    return {
        name: np.concatenate([np.ma.getdata(batch[name]) for batch in batches])[by_row]
        for name in found.feed.columns
    } | {"valid": np.concatenate([batch.valid["e"] for batch in batches])[by_row]}


def readings(found: BatchStream) -> dict[str, str]:
    return {column.name: column.reading for column in found.feed.plan.columns}


def far(objects: MemoryObjects, ds: StoredDataset, **options: Any) -> BatchStream:
    found = stream(ds, **({"batch_size": 32, "window": 2_000_000} | options))
    objects.reads.clear()
    return found


# ------------------------------------------------------------------------------ rows


def test_rows_of_a_coarse_column_are_read_without_the_rest_of_their_pages() -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    found = far(objects, ds)
    assert readings(found) == {"x": "leading", "e": "rows", "y": "resident"}
    rows = epoch(found)
    valid = np.arange(ROWS) % 10 != 3
    np.testing.assert_array_equal(rows["x"], VALUES["x"])
    np.testing.assert_array_equal(rows["valid"], valid)
    np.testing.assert_array_equal(rows["e"], np.where(valid[:, None], VALUES["e"], 0))
    read_bytes = sum(stop - start for _, start, stop in objects.reads)
    assert read_bytes < 1.1 * ds.stored_bytes
    assert found.stats().fetched_bytes == read_bytes


def test_rows_whose_sums_are_damaged_are_read_from_their_whole_page() -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    index = column_index(ds, "e")
    damaged = DamagedOnce(objects, index.chunks[0].digest)  # type: ignore[union-attr]
    found = far(objects, ds)
    objects.read_range = damaged.read_range  # type: ignore[method-assign]
    rows = epoch(found)
    valid = np.arange(ROWS) % 10 != 3
    np.testing.assert_array_equal(rows["e"], np.where(valid[:, None], VALUES["e"], 0))
    assert damaged.times == 1


class DamagedOnce:
    """Damages the first answer that holds rows without their page."""

    def __init__(self, objects: MemoryObjects, chunk: str) -> None:
        self._read, self._chunk = objects.read_range, chunk
        self.times = 0

    def read_range(self, link: Any, start: int, stop: int) -> Any:
        data = bytearray(self._read(link, start, stop))
        if not self.times and stop - start == 16 * 1024:
            self.times += 1
            data[5] ^= 1
        return data


# ------------------------------------------------------------------------------ deletions


def test_deleted_rows_cost_no_further_requests() -> None:
    objects = MemoryObjects()
    ds = without(objects, dataset(objects), [3, 17, 100, *range(160, 176)])
    found = far(objects, ds, columns=["x"])
    batches = list(found)
    left = np.setdiff1d(np.arange(ROWS), [3, 17, 100, *range(160, 176)])
    values = np.concatenate([batch["x"] for batch in batches])
    assert sorted(values[:, 0].tolist()) == VALUES["x"][left, 0].tolist()
    # A late one may have been asked for twice.
    assert len(set(objects.reads)) == found.feed.plan.runs


# ------------------------------------------------------------------------------ errors


def test_a_page_that_stays_damaged_is_named() -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    chunk = column_index(ds, "x").chunks[0]
    data = bytearray(objects.stored[chunk.digest])  # type: ignore[union-attr]
    data[-30_000] ^= 1
    objects.stored[chunk.digest] = bytes(data)  # type: ignore[union-attr]
    found = far(objects, ds)
    with pytest.raises(CorruptError, match=r"column '.', page \d+ .* chunk .{12}, payload bytes"):
        list(found)
    assert found.stats().refetched_requests == 1


# ------------------------------------------------------------------------------ the page cache


def test_half_of_the_pages_cached_are_half_of_the_bytes_next_time(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    cache = PageDiskCache(tmp_path / "pages", ds.stored_bytes // 2, spare=0, chance=lambda: 0.0)
    found = far(objects, ds, page_cache=cache, columns=["x", "e"], window=1 << 18)
    first = epoch(found)
    assert found.stats().cache_hits == 0
    found.set_epoch(1)
    second = epoch(found)
    assert found.stats().cache_hit_rate > 0.4
    np.testing.assert_array_equal(first["x"], second["x"])


def test_other_streams_of_other_versions_share_the_cache(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    cache = PageDiskCache(tmp_path / "pages", 1 << 30, spare=0)
    list(far(objects, ds, page_cache=cache))
    newer = without(objects, ds, [5])
    found = far(objects, newer, page_cache=cache, columns=["x"], seed=3)
    list(found)
    assert found.stats().cache_hit_rate == 1
    assert objects.reads == []


def test_pages_of_a_local_store_are_not_cached(tmp_path: Path) -> None:
    objects = MappedObjects()
    list(
        stream(
            dataset(objects), batch_size=32, page_cache=PageDiskCache(tmp_path / "pages", 1 << 30)
        )
    )
    assert not (tmp_path / "pages").exists()


def test_an_abandoned_iterator_leaves_no_half_written_page(tmp_path: Path) -> None:
    objects = MemoryObjects()
    found = far(objects, dataset(objects), page_cache=PageDiskCache(tmp_path, 1 << 30, spare=0))
    batches = iter(found)
    next(batches)
    batches.close()
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []


# ------------------------------------------------------------------------------ the start


class SideBySide(MemoryObjects):
    """Gives page indexes only when all of them have been asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.together: threading.Barrier | None = None

    def get(self, digest: Any) -> Any:
        found = super().get(digest)
        if self.together is not None and found.kind is Kind.PAGE_INDEX:
            self.together.wait(30)
        return found


@pytest.mark.soak
def test_page_indexes_of_all_columns_are_read_side_by_side() -> None:
    objects = SideBySide()
    names = [f"c{at}" for at in range(6)]
    schema = Schema.of({name: Tensor("uint8", (1000,)) for name in names})
    rows = {name: np.zeros((2000, 1000), np.uint8) for name in names}
    made = stored(objects, schema, [rows], page_bytes=1 << 10)
    ds = open_dataset(objects, made.digest)
    objects.together = threading.Barrier(len(ds.root.groups))
    objects.reads.clear()
    stream(ds, batch_size=8)
    assert len(objects.reads) >= len(ds.root.groups) > 3


@pytest.mark.parametrize("shuffle", ["pages", "global", "buffer", False])
def test_a_stream_of_no_chosen_row_has_no_batch(shuffle: Any) -> None:
    objects = MemoryObjects()
    nothing = far(objects, dataset(objects), shuffle=shuffle, sampling=Sampling(rows=[]))
    assert len(nothing) == 0
    assert list(nothing) == []
