"""A transform of which 1% of the rows take 50 times as long, on two threads, against none that do.

The transform waits, as one does that calls a service or a native decoder, so that the figure says
what the order costs and not what the processor does. Each round takes both streams in turns; what
is compared is the time of an epoch over the work in it: the seconds that its transforms waited,
by two. A batch that takes long must not hold up those behind it.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, ratio, reopen, store_dataset

from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Loading, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import stream

ROWS = 20_000
BATCHES = {"slow_rows": 64, "slow_rows_batch_8": 8}
ROW_SECONDS = 0.2e-3
SLOW = 50
THREADS = 2


def _case(batch_size: int) -> Any:
    def measure(folder: Path, options: Options) -> dict[str, Any]:
        rows = int(ROWS * options.scale)
        rng = np.random.default_rng(SEED)
        slow = (rng.random(rows) < 0.01).astype("u1")
        batch = {"x": rng.integers(0, 256, (rows, 64), "u1"), "slow": slow}
        schema = Schema.of({"x": Tensor("uint8", (64,)), "slow": "uint8"})
        place = str(folder / "store")
        digest = store_dataset(place, {}, schema, [batch])
        dataset = reopen(place, {}, digest)
        took: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for has_slow in (False, True):
                took[has_slow].append(_epoch(dataset, batch_size, has_slow))
        return {
            "rows": rows,
            "none_over_work": round(statistics.median(took[False]), 3),
            "slow_over_work": round(statistics.median(took[True]), 3),
            "ratio": ratio(took[True], took[False]),
            "goal": "ratio to 1.3",
        }

    return measure


def _epoch(dataset: Any, batch_size: int, has_slow: bool) -> float:
    """Seconds of an epoch, over those that two threads need for its work alone."""

    def transform(batch: Any) -> Any:
        slow = int(batch["slow"].sum()) if has_slow else 0
        time.sleep(ROW_SECONDS * (len(batch.rows) + slow * (SLOW - 1)))
        return batch

    options = StreamOptions(
        batch_size=batch_size, transform=transform, loading=Loading(work_threads=THREADS)
    )
    with stream(dataset, options) as made:
        began = time.perf_counter()
        for _ in made:
            pass
        return (time.perf_counter() - began) / (made.stats().transform_seconds / THREADS)


CASES = {name: _case(size) for name, size in BATCHES.items()}
