"""Our side of `remote`: reads in a process of its own, beside which nothing was read before.

``python remote_ours.py FOLDER ENDPOINT ROWS BATCH EPOCHS CACHE_BYTES`` opens the dataset ``x`` of
the repository ``s3://bucket/ours`` and prints a line of JSON: what opening took, the first batch,
and every epoch. CACHE_BYTES 0 is without a page cache. XDG_* must name empty folders.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tensorrepo
from tensorrepo.datasets.stream import Stream

WINDOW_BYTES = 64 << 20


def main() -> None:
    folder, endpoint, rows, batch, epochs, cache_bytes = sys.argv[1:]
    assert torch.zeros(1) is not None  # imports take seconds, ours too, and are not what is timed
    opening = tensorrepo.open
    gc.collect()  # so is the garbage of imports: 150 ms in which no thread can do anything
    begun = time.perf_counter()
    found = opened(opening, Path(folder), endpoint, int(batch), int(cache_bytes))
    told: dict[str, Any] = {"open_seconds": time.perf_counter() - begun, "epochs": []}
    explained = found.explain()
    told |= {"lanes": explained.lanes, "runs": explained.runs, "read_bytes": explained.read_bytes}
    told["window_bytes"] = WINDOW_BYTES
    for number in range(int(epochs)):
        told["epochs"].append(epoch(found, number, int(rows)))
    told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(told))


def opened(opening: Any, folder: Path, endpoint: str, batch: int, cache_bytes: int) -> Stream:
    access = {"endpoint": endpoint, "key": "any", "secret": "any", "region": "us-east-1"}
    repository = opening("s3://bucket/ours", storage_options=access)
    return repository.dataset("x").stream(
        batch_size=batch,
        sampling=tensorrepo.Sampling(window=WINDOW_BYTES),
        seed=7,
        output="torch",
        loading=tensorrepo.Loading(cache_dir=folder / "pages", cache_limit=cache_bytes),
    )


def epoch(found: Stream, number: int, rows: int) -> dict[str, Any]:
    found.set_epoch(number)
    begun, cpu = time.perf_counter(), time.process_time()
    first = first_cpu = 0.0
    total = 0
    for batch in found:
        if not first:
            first, first_cpu = time.perf_counter() - begun, time.process_time() - cpu
        total += int(batch["y"].sum())
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    assert total == rows * (rows - 1) // 2, "not every row came once"
    stats = found.stats()
    return asdict(stats) | {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "first_batch_seconds": first,
        "first_batch_cpu_seconds": first_cpu,
        "goodput": stats.goodput,
        "cache_hit_rate": stats.cache_hit_rate,
    }


if __name__ == "__main__":
    main()
