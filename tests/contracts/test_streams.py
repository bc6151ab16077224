"""Every store gives a stream the same rows in the same order, also when it fails for a moment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor, Text
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.streams import stream, stream_threads
from tests.support.effort import sampled
from tests.support.servers.object_stores import Bucket, gcs_on_ours, s3_on_moto, s3_on_ours

ROWS = 3000
STORES = ["local", "memory", "s3-moto", "s3-ours", "gcs", "http"]
SCHEMA = Schema.of({"x": Tensor("float32", (64,)), "y": "int64", "t": Text()})
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bucket]]:
    with ExitStack() as stack:
        root = tmp_path_factory.mktemp("stores")
        yield {
            "s3-moto": stack.enter_context(s3_on_moto()),
            "s3-ours": stack.enter_context(s3_on_ours(root / "s3")),
            "gcs": stack.enter_context(gcs_on_ours(root / "gcs")),
        }


def stored(backend: Backend) -> str:
    writer = ObjectWriter(ObjectStore(backend), ())
    rows = {
        "x": np.arange(ROWS * 64, dtype=np.float32).reshape(ROWS, 64),
        "y": np.arange(ROWS),
        "t": [f"row {at}" for at in range(ROWS)],
    }
    link = write_dataset(writer, SCHEMA, [rows], page_bytes=8 << 10)
    writer.flush()
    return link.digest


def opened(name: str, buckets: dict[str, Bucket], path: Path) -> StoredDataset:
    """The dataset in a store of that kind, as a process sees it that has just begun."""
    fresh = f"streams-{next(NUMBERS)}"
    if name in ("local", "memory"):
        url = f"memory://{fresh}" if name == "memory" else str(path / fresh)
        backend = open_backend(url, environment={})
        return open_dataset(ObjectStore(backend), stored(backend))
    bucket = buckets["s3-ours" if name == "http" else name]
    url = f"{bucket.url}/{fresh}"
    digest = stored(open_backend(url, environment=bucket.environment))
    if name == "http":
        assert bucket.server is not None
        url = f"{bucket.server.url}/bucket/{fresh}"
    backend = open_backend(url, environment=bucket.environment)
    return open_dataset(ObjectStore(backend), digest)


def epoch(found: BatchStream) -> tuple[list[int], np.ndarray, list[str]]:
    batches = list(found)
    return (
        [row for batch in batches for row in batch.rows.tolist()],
        np.concatenate([batch["x"] for batch in batches]),
        [text for batch in batches for text in batch["t"]],
    )


def check(found: BatchStream) -> None:
    rows, x, texts = epoch(found)
    assert sorted(rows) == list(range(ROWS))
    np.testing.assert_array_equal(x[:, 0], np.array(rows, np.float32) * 64)
    assert texts == [f"row {row}" for row in rows]
    found.close()  # from the second epoch on the next one is on its way
    assert stream_threads() == []


@pytest.mark.parametrize("name", STORES)
def test_every_store_gives_the_same_rows(
    name: str, buckets: dict[str, Bucket], tmp_path: Path
) -> None:
    check(stream(opened(name, buckets, tmp_path), batch_size=32, window=200_000))


@pytest.mark.parametrize("name", sampled(["s3-ours", "s3-moto", "http"], 1))
def test_a_cache_on_disk_gives_them_too(
    name: str, buckets: dict[str, Bucket], tmp_path: Path
) -> None:
    cache = PageDiskCache(tmp_path / "pages", 1 << 20, spare=0)
    found = stream(opened(name, buckets, tmp_path), batch_size=32, window=200_000, page_cache=cache)
    check(found)
    found.set_epoch(1)
    check(found)
    assert found.stats().cache_hits > 0


@pytest.mark.parametrize(
    "fault", sampled(["503 before", "500 before", "429 before", "drop before"], 2)
)
def test_a_store_that_fails_for_a_moment_is_asked_again(
    fault: str, buckets: dict[str, Bucket], tmp_path: Path
) -> None:
    found = stream(opened("s3-ours", buckets, tmp_path), batch_size=32, window=200_000)
    server = buckets["s3-ours"].server
    assert server is not None
    counted = itertools.count()
    server.fault = lambda *_: fault if next(counted) % 10 == 3 else None
    try:
        check(found)
    finally:
        server.fault = lambda *_: None
    stats = found.stats()
    assert stats.repeated_requests > 5
    # The store's client repeats nothing by itself: what we counted is all that was asked.
    assert next(counted) == stats.requests
