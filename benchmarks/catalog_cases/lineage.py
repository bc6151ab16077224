"""Ancestors and descendants of things among a million edges, 20 deep, up to 5,000 in an answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from catalog_cases.databases import databases
from harness import SEED, Options, medians_ms

from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.lineage import walk
from tensorrepo.query.sync.contents import edge_row
from tensorrepo.query.sync.loader import Loader

DEPTH, WIDTH, ORIGINS = 20, 25_000, 2  # a million edges
NEAR = 12  # origins lie so near in the layer above that ancestors meet again and again


def lineage(folder: Path, options: Options) -> dict[str, Any]:
    """The whole ancestry of things in the lowest layer, and descendants of the topmost."""
    width = max(100, int(WIDTH * options.scale))
    found: dict[str, Any] = {"edges": width * DEPTH * ORIGINS, "depth": DEPTH}
    for name, catalog in databases(folder):
        begun = time.perf_counter()
        _fill(catalog, width)
        found[f"{name}_fill_rows_per_s"] = round(found["edges"] / (time.perf_counter() - begun))
        found |= {f"{name}_{key}": value for key, value in _asked(catalog, width, options).items()}
    return found | {"goal": "ancestors_ms < 50 on both"}


def _asked(catalog: CatalogDatabase, width: int, options: Options) -> dict[str, float]:
    rng = np.random.default_rng(SEED + 1)
    seconds: dict[str, list[float]] = {
        "ancestors": [], "descendants": [], "ancestors_5_deep": [], "ancestors_cpu": [],
    }  # fmt: skip
    answers = 0
    for _ in range(options.rounds):
        at = int(rng.integers(width))
        low, high = _digest(0, at), _digest(DEPTH, at)
        with catalog.reading() as connection:
            connection.exec_driver_sql("SELECT 1")
            begun, cpu = time.perf_counter(), time.process_time()
            answers = max(answers, len(walk(connection, [low], up=True)))
            seconds["ancestors"].append(time.perf_counter() - begun)
            seconds["ancestors_cpu"].append(time.process_time() - cpu)
            begun = time.perf_counter()
            walk(connection, [high], up=False)
            seconds["descendants"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            walk(connection, [low], up=True, depth=5)
            seconds["ancestors_5_deep"].append(time.perf_counter() - begun)
    return {"answer_edges": answers, **medians_ms(seconds)}


def _fill(catalog: CatalogDatabase, width: int) -> None:
    rng = np.random.default_rng(SEED)
    with catalog.writing() as connection:
        loader = Loader(connection)
        for layer in range(DEPTH):
            near = rng.integers(-NEAR, NEAR + 1, (width, ORIGINS))
            loader.add(_rows(layer, (np.arange(width)[:, None] + near) % width))
        loader.flush()
    # What PostgreSQL does by itself within a minute of such a fill.
    both = "VACUUM (ANALYZE)" if catalog.engine.dialect.name == "postgresql" else "ANALYZE"
    alone = catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with alone as connection:
        connection.exec_driver_sql(both)


def _rows(layer: int, origins: np.ndarray[Any, Any]) -> Iterator[Any]:
    for at, above in enumerate(origins.tolist()):
        subject = _digest(layer, at)
        for place, origin in enumerate(above):
            key = _digest(layer + 1, origin)
            told = ("model", subject, "fine-tuned-from", "model", "models/m", key, None, "{}")
            yield edge_row(subject, place, told)


def _digest(layer: int, at: int) -> str:
    # Spread as digests are: neighbours of a layer do not lie beside each other in an index.
    return f"{(layer * 1_000_003 + at) * 0x9E3779B97F4A7C15 % (1 << 64):016x}{layer:08x}{at:040x}"
