"""Regions of large samples from a store: what is fetched, against the tiles that they touch."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    SEED,
    Options,
    Skipped,
    reopen,
    reset_counts,
    slow_s3,
    store_dataset,
)

from tensorrepo.formats.dataset.pages.tiles import resolve_region, touched_tiles
from tensorrepo.formats.dataset.read import page_reader
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.reading.row_read import region_of
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.repo.errors import Error

SIDE, TILE, VOLUMES = 256, 64, 6
LATENCY_MS = 20


def region(folder: Path, options: Options) -> dict[str, Any]:
    """Boxes of 20 to 150 voxels a side, from volumes of 256 voxels a side in tiles of 64."""
    rng = np.random.default_rng(SEED)
    schema = Schema.of({"x": Tensor("uint8", (None, None, None), (TILE,) * 3)})
    batches = ({"x": [rng.integers(0, 256, (SIDE,) * 3, np.uint8)]} for _ in range(VOLUMES))
    with slow_s3(folder, LATENCY_MS) as (url, environment):
        try:
            digest = store_dataset(url, environment, schema, batches)
        except Error as error:
            raise Skipped(f"tiles are not written yet: {error}") from error
        dataset = reopen(url, environment, digest)
        reader = page_reader(dataset, "x")
        shares, milliseconds, requests = [], [], []
        for _ in range(10 * options.rounds):
            row, box = int(rng.integers(VOLUMES)), _box(rng)
            touched = _touched_bytes(reader, row, box)
            objects = reset_counts(dataset)
            begun = time.perf_counter()
            found = region_of(reader, row, box)
            milliseconds.append((time.perf_counter() - begun) * 1e3)
            assert found.shape == tuple(side.stop - side.start for side in box)
            shares.append(objects.bytes / touched)
            requests.append(objects.requests)
    return {
        "fetched_per_touched": round(statistics.median(shares), 3),
        "most": round(max(shares), 3),
        "goal": "most <= 1.3",
        "region_ms": round(statistics.median(milliseconds), 1),
        "requests": statistics.median(requests),
        "latency_ms": LATENCY_MS,
    }


def _box(rng: np.random.Generator) -> tuple[slice, ...]:
    sides = rng.integers(20, 150, 3)
    starts = [int(rng.integers(SIDE - side)) for side in sides.tolist()]
    return tuple(
        slice(start, start + side) for start, side in zip(starts, sides.tolist(), strict=True)
    )


def _touched_bytes(reader: PageReader, row: int, box: tuple[slice, ...]) -> int:
    page = int(reader.index.page_of(np.array([row]))[0])
    table, within = reader.tile_table(page), row - int(reader.index.first_row[page])
    shape = table.row_shape(within)
    parts = touched_tiles(resolve_region(box, shape), shape, (TILE,) * 3)
    tiles = table.tiles[int(table.offsets[within]) :]["stored_bytes"]
    return int(sum(int(tiles[part.number]) for part in parts))


CASES = {"region": region}
