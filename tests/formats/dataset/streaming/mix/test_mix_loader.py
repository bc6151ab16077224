"""A mix of sources near and far reads from afar what is far, and keeps it as one stream would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.streaming.mix.feed import mix as mix_of
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.objects.cache import PageDiskCache
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import MappedObjects, stream, stream_threads

PAGE = 16 << 10
SCHEMA = Schema((Column("x", Tensor("float32", (256,))),))
ROWS = 320


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


@pytest.fixture
def pages(tmp_path: Path) -> PageDiskCache:
    return PageDiskCache(tmp_path / "pages", 1 << 30, spare=0)


def source(objects: MemoryObjects, first: float, cache: PageDiskCache | None) -> BatchStream:
    rows = [{"x": np.full(256, first + at, np.float32)} for at in range(ROWS)]
    dataset = stored(objects, SCHEMA, [rows], page_bytes=PAGE)
    found = stream(dataset, batch_size=16, window=100_000, page_cache=cache)
    objects.reads.clear()
    return found


def firsts(mix: BatchStream) -> list[float]:
    return sorted(np.concatenate([batch["x"][:, 0] for batch in mix]).tolist())


def test_local_sources_beside_remote_ones_are_neither_fetched_nor_cached(
    pages: PageDiskCache,
) -> None:
    near, far = MappedObjects(), MemoryObjects()
    mix = mix_of([source(far, 0, pages), source(near, 1000, pages)])
    assert firsts(mix) == [*range(ROWS), *range(1000, 1000 + ROWS)]
    assert near.reads == []
    assert mix.stats().fetched_bytes == sum(stop - start for _, start, stop in far.reads)
    kept = [path for path in pages.root.rglob("*/*") if path.is_file()]
    assert len(kept) == ROWS * 1024 // PAGE


def test_a_mix_caches_what_is_remote_when_its_first_source_has_no_cache(
    pages: PageDiskCache,
) -> None:
    near, far = MappedObjects(), MemoryObjects()
    mix = mix_of([source(near, 0, None), source(far, 1000, pages)])
    firsts(mix)
    mix.set_epoch(1)
    firsts(mix)
    assert mix.stats().cache_hit_rate == 1


def test_all_remote_sources_of_a_mix_share_the_limit_of_its_cache(tmp_path: Path) -> None:
    one, other, near = MemoryObjects(), MemoryObjects(), MappedObjects()
    limit = ROWS * 1024  # half of what is remote
    cache = PageDiskCache(tmp_path / "pages", limit, spare=0)
    sources = [(one, 0), (other, 1000), (near, 2000)]
    mix = mix_of([source(objects, first, cache) for objects, first in sources])
    admitted = [mix.setup.page_cache.admits(name(at)) for at in range(2000)]  # type: ignore[union-attr]
    assert 0.5 < sum(admitted) / len(admitted) < 0.6


def name(page: int) -> str:
    return f"{page:064x}.0-{PAGE}"


def test_a_mix_of_local_sources_needs_no_cache(pages: PageDiskCache) -> None:
    mix = mix_of([source(MappedObjects(), 0, pages), source(MappedObjects(), 1000, pages)])
    firsts(mix)
    assert mix.setup.page_cache is None
    assert not pages.root.exists()
