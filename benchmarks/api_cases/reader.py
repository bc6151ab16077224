"""One cold epoch of the dataset ``x`` of a repository; prints its seconds, opening included.

    python benchmarks/api_cases/reader.py URL ROWS

reads storage options as JSON from its standard input. XDG_* must name empty folders.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import torch

import tensorrepo

BATCH = 256
WINDOW_BYTES = 64 << 20


def main() -> None:
    """Read all rows in shuffled batches."""
    url, rows, options = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
    assert torch.zeros(1) is not None  # imports take seconds, and are not what is timed
    opening = tensorrepo.open
    gc.collect()
    began = time.perf_counter()
    stream = (
        opening(url, storage_options=options)
        .dataset("x")
        .stream(
            batch_size=BATCH,
            sampling=tensorrepo.Sampling(window=WINDOW_BYTES),
            seed=7,
            output="torch",
        )
    )
    total = sum(int(batch["y"].sum()) for batch in stream)
    seconds = time.perf_counter() - began
    assert total == rows * (rows - 1) // 2, "not every row came once"
    print(seconds)


if __name__ == "__main__":
    main()
