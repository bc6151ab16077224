"""SQL over data beside a heavy column: as fast as over a file that has nothing else?

A million rows of a label, a sorted number and 8 KiB. `group_by_ratio` is the processor time of
GROUP BY over the label here, the connection included, to that of DuckDB over a Parquet file of the
labels alone; `selective_pages_share` of all pages are read for one number of the sorted column.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from harness import SEED, Options

import tensorrepo as tr
from tensorrepo.formats.dataset.read import column_index
from tensorrepo.query.sql.pushdown import DatasetTable, Scanned

ROWS, STEP, ROW_BYTES, CLASSES = 1_000_000, 10_000, 8192, 10
QUERY = "SELECT label, count(*) FROM {} GROUP BY label"


def sql(folder: Path, options: Options) -> dict[str, Any]:
    """GROUP BY over a light column, and one row by a sorted one."""
    rows = max(STEP, int(ROWS * options.scale) // STEP * STEP)
    repo = tr.init(folder / "sql", author="Ada <ada@example.org>")
    labels = np.random.default_rng(SEED).integers(0, CLASSES, rows)
    with repo.transaction("main", message="rows") as tx:
        columns = {"image": tr.Tensor("uint8", (ROW_BYTES,)), "label": "int64", "at": "int64"}
        tx.create_dataset("d", columns=columns).append(_batches(labels))
    file = folder / "labels.parquet"
    pq.write_table(pa.table({"label": labels}), file)

    def theirs() -> pa.Table:
        with duckdb.connect() as connection:
            return connection.sql(QUERY.format(f"'{file}'")).to_arrow_table()

    seconds = _in_turns([lambda: repo.sql(QUERY.format("d")).arrow(), theirs], options.rounds)
    ratios = [ours / parquet for ours, parquet in zip(*seconds, strict=True)]
    return {
        "rows": rows,
        "group_by_ms": round(1000 * float(np.median(seconds[0])), 1),
        "parquet_ms": round(1000 * float(np.median(seconds[1])), 1),
        "group_by_ratio": round(float(np.median(ratios)), 2),
        "selective_pages_share": _selective(repo, rows),
        "goal": "group_by_ratio <= 2, selective_pages_share <= 0.05",
    }


def _batches(labels: np.ndarray[Any, Any]) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    for first in range(0, len(labels), STEP):
        one = rng.integers(0, 255, (1, ROW_BYTES)).astype("u1")
        image = np.broadcast_to(one, (STEP, ROW_BYTES))
        at = np.arange(first, first + STEP)
        yield {"image": image, "label": labels[first : first + STEP], "at": at}


def _in_turns(sides: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Processor seconds of each side, after one turn that warms up."""
    seconds: list[list[float]] = [[] for _ in sides]
    for turn in range(rounds + 1):
        for side, found in zip(sides, seconds, strict=True):
            begun = time.process_time()
            side()
            if turn:
                found.append(time.process_time() - begun)
    return seconds


def _selective(repo: tr.Repository, rows: int) -> float:
    stored, scanned = repo.dataset("d").stored, Scanned()
    names = ["image", "label", "at"]
    found = DatasetTable(stored, scanned).reader(names, pc.field("at") == rows // 2).read_all()
    assert found.num_rows == 1
    pages = sum(column_index(stored, name).pages for name in names)
    return round(scanned.pages / pages, 5)
