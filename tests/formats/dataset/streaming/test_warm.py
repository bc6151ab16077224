"""Warming fetches what an iteration will read, once, and nothing that the cache would not keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.warm import warm
from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.transfer.pace import RateLimit
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import MappedObjects, stream, stream_threads

ROWS = 400
SCHEMA = Schema((Column("x", Tensor("float32", (4096,))), Column("y", Tensor("int64", ()))))
ROW_LIST = [{"x": np.full(4096, at, "f4"), "y": np.int64(at)} for at in range(ROWS)]
FAR = {"batch_size": 32, "window": 2_000_000}


def dataset(objects: MemoryObjects) -> StoredDataset:
    return stored(objects, SCHEMA, [ROW_LIST], page_bytes=256 << 10)


def cache_at(tmp_path: Path, limit: int = 1 << 30) -> PageDiskCache:
    return PageDiskCache(tmp_path / "pages", limit, spare=0, chance=lambda: 1.0)


def test_a_stream_that_was_warmed_asks_the_store_for_nothing(tmp_path: Path) -> None:
    objects = MemoryObjects()
    found = stream(dataset(objects), page_cache=cache_at(tmp_path), **FAR)
    told: list[tuple[int, int]] = []
    report = warm(found, progress=lambda done, total: told.append((done, total)))
    leading = found.feed.plan.leading  # the other column lies in the metadata
    assert (report.pages, report.bytes) == (leading.pages, leading.page_bytes)
    assert told[0] == (0, report.bytes)
    assert told[-1] == (report.bytes, report.bytes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    objects.reads.clear()
    rows = np.concatenate([batch.rows for batch in found])
    assert sorted(rows.tolist()) == list(range(ROWS))
    assert objects.reads == []
    assert stream_threads() == []


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    found = stream(dataset(objects), page_cache=cache_at(tmp_path), **FAR)
    first = warm(found)
    objects.reads.clear()
    again = warm(found)
    assert (again.pages, again.bytes) == (0, 0)
    assert (again.present_pages, again.present_bytes) == (first.pages, first.bytes)
    assert objects.reads == []


def test_warming_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    found = stream(ds, page_cache=cache_at(tmp_path), fetch_threads=1, ahead=1, **FAR)
    read, asked = objects.read_range, []

    def cut_off(link, start, stop):  # type: ignore[no-untyped-def]
        asked.append(link)
        if len(asked) > 5:
            raise StorageError("the link is down")
        return read(link, start, stop)

    objects.read_range = cut_off  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="the link is down"):
        warm(found)
    objects.read_range = read  # type: ignore[method-assign]
    report = warm(found)
    assert report.present_pages >= 4
    assert report.pages + report.present_pages == found.feed.plan.leading.pages


def test_columns_that_are_not_streamed_are_not_fetched(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    found = stream(ds, page_cache=cache_at(tmp_path), columns=["y"], **FAR)
    assert warm(found).bytes == 0
    assert warm(stream(ds, page_cache=cache_at(tmp_path), columns=["x"], **FAR)).pages == 25


def test_the_share_of_a_rank_is_what_that_rank_reads(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    rank = {"rank": 1, "world_size": 4, "columns": ["x"], "window": 600_000, "batch_size": 32}
    found = stream(ds, epoch=3, page_cache=cache_at(tmp_path), **rank)
    report = warm(found)
    assert 0 < report.bytes < 0.7 * sum(column.page_bytes for column in found.feed.plan.columns)
    objects.reads.clear()
    list(found)
    assert objects.reads == []


def test_chosen_rows_take_the_pages_that_hold_them(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    some = stream(ds, page_cache=cache_at(tmp_path), rows=range(40), columns=["x"], **FAR)
    assert warm(some).pages == 3


def test_a_cache_that_is_too_small_keeps_its_part_and_the_rest_is_told(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    limit = ds.stored_bytes // 3
    found = stream(ds, page_cache=cache_at(tmp_path, limit), columns=["x"], **FAR)
    report = warm(found)
    assert report.left_out_bytes > 0.4 * ds.stored_bytes
    assert report.bytes + report.left_out_bytes == found.feed.plan.columns[0].page_bytes
    assert "cache.limit" in str(report)


def test_what_is_local_is_not_copied(tmp_path: Path) -> None:
    found = stream(dataset(MappedObjects()), page_cache=cache_at(tmp_path), **FAR)
    report = warm(found)
    assert report.is_local
    assert not (tmp_path / "pages").exists()
    assert "nothing to fetch" in str(report)


def test_a_page_that_stays_damaged_is_named(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    chunk = column_index(ds, "x").chunks[0]
    data = bytearray(objects.stored[chunk.digest])  # type: ignore[union-attr]
    data[-30_000] ^= 1
    objects.stored[chunk.digest] = bytes(data)  # type: ignore[union-attr]
    with pytest.raises(CorruptError, match=r"column '.', page \d+"):
        warm(stream(ds, page_cache=cache_at(tmp_path), **FAR))


def test_a_rate_is_kept(tmp_path: Path) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    objects = MemoryObjects()
    found = stream(dataset(objects), page_cache=cache_at(tmp_path), **FAR)
    rate = RateLimit(1 << 20, clock=lambda: now[0], sleep=sleep)
    report = warm(found, rate=rate)
    # The last request is paid for when the next one asks.
    assert now[0] > 0.6 * report.bytes / (1 << 20)


def test_a_mix_warms_all_its_sources(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = dataset(objects)
    cache = cache_at(tmp_path)
    sources = [
        stream(ds, page_cache=cache, rows=rows, columns=["x"], **FAR)
        for rows in (range(100), range(300, 400))
    ]
    both = mix(sources)
    assert warm(both).pages == 7 + 7
    objects.reads.clear()
    list(both)
    assert objects.reads == []
