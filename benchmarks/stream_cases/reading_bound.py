"""Loops that wait for their input: transforms made once and found again, rows given several times.

`derived_cache`: the time of an epoch whose transform computes (singular values of each row, one
core, about half a millisecond a row) without a cache, when all rows are made and kept, and when all
are found. `echo`: rows a second that come from a store of so many bytes a second, each given once,
twice, or four times. All sides take turns.
"""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, CountingStore, Options, ratio, reopen, store_dataset

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Loading, Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import stream
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.objects.cache import DiskCache
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.transfer.pace import RateLimit

ROWS = 8_000
SIDE = 40
LINK_BYTES = 30e6  # a second
ECHOES = (1, 2, 4)


def transform(batch: Any) -> Any:
    """Singular values of each row, which is a matrix."""
    return {"values": np.linalg.svd(batch["x"], compute_uv=False)}


def derived_cache(folder: Path, options: Options) -> dict[str, Any]:
    rows = int(ROWS * options.scale)
    dataset = _stored(folder, rows)
    plain = StreamOptions(
        batch_size=64, transform=transform, loading=Loading(work_threads=1, prefetch=2)
    )
    kept = replace(plain, cache="derived")
    took: dict[str, list[float]] = {"plain": [], "made": [], "found": []}
    for number in range(options.rounds):
        place = folder / f"derived-{number}"
        cache = DiskCache(place, 4 << 30)
        took["plain"].append(_epoch(dataset, plain, None))
        took["made"].append(_epoch(dataset, kept, cache))
        took["found"].append(_epoch(dataset, kept, cache))
        shutil.rmtree(place)
    return {
        "rows": rows,
        **{f"{name}_us_a_row": _micros(seconds, rows) for name, seconds in took.items()},
        "made_over_plain": ratio(took["made"], took["plain"]),
        "plain_over_found": ratio(took["plain"], took["found"]),
    }


def echo(folder: Path, options: Options) -> dict[str, Any]:
    rows = int(ROWS * options.scale)
    digest = _stored(folder, rows).digest
    store = _LinkedStore(open_backend(str(folder / "store"), environment={}))
    dataset = open_dataset(store, digest)
    took: dict[int, list[float]] = {times: [] for times in ECHOES}
    read: dict[int, int] = {}
    for _ in range(options.rounds):
        for times in ECHOES:
            store.bytes = 0
            chosen = StreamOptions(
                batch_size=64,
                sampling=Sampling(echo=times, window="8MB"),
            )
            took[times].append(_epoch(dataset, chosen, None) / times)
            read[times] = store.bytes
    return {
        "rows": rows,
        "link_mb_s": LINK_BYTES / 1e6,
        **{
            f"rows_s_echo_{times}": round(rows / statistics.median(took[times])) for times in ECHOES
        },
        **{f"bytes_a_row_echo_{times}": round(read[times] / rows / times) for times in ECHOES},
        "twice_over_once": ratio(took[1], took[2]),
        "four_times_over_once": ratio(took[1], took[4]),
    }


class _LinkedStore(CountingStore):
    """A store behind a link of so many bytes a second, which maps nothing."""

    rate = RateLimit(LINK_BYTES)

    def map(self, link: ObjectLink) -> memoryview | None:  # noqa: ARG002
        return None

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Any:
        self.rate.take(stop - start)
        return super().read_range(link, start, stop)

    def read_once(self, link: ObjectLink, start: int, stop: int) -> Any:
        return self.read_range(link, start, stop)


def _stored(folder: Path, rows: int) -> StoredDataset:
    rng = np.random.default_rng(SEED)
    schema = Schema.of({"x": Tensor("float32", (SIDE, SIDE))})
    batch = {"x": rng.random((rows, SIDE, SIDE), dtype=np.float32)}
    place = str(folder / "store")
    return reopen(place, {}, store_dataset(place, {}, schema, [batch]))


def _epoch(dataset: StoredDataset, options: StreamOptions, cache: DiskCache | None) -> float:
    with stream(dataset, options, derived_cache=cache) as made:
        began = time.perf_counter()
        for _ in made:
            pass
        return time.perf_counter() - began


def _micros(seconds: list[float], rows: int) -> float:
    return round(statistics.median(seconds) / rows * 1e6, 1)


CASES = {"derived_cache": derived_cache, "echo": echo}
