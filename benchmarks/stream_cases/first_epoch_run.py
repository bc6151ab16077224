"""Epochs of a process that has just begun: a line of JSON, see `first_epoch`.

python first_epoch_run.py REPOSITORY DATASET EPOCHS
"""

from __future__ import annotations

import json
import sys
import time

import tensorrepo


def measured(place: str, name: str, epochs: int) -> dict[str, list[float]]:
    """Seconds, and processor seconds, of each epoch; every row must have come."""
    dataset = tensorrepo.open(place).dataset(name)
    stream = dataset.stream(
        batch_size=256, seed=7, output="torch", sampling=tensorrepo.Sampling(window=128 << 20)
    )
    found: dict[str, list[float]] = {"wall": [], "cpu": []}
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        begun, used = time.perf_counter(), time.process_time()
        total = sum(int(batch["y"].sum()) for batch in stream)
        found["wall"].append(time.perf_counter() - begun)
        found["cpu"].append(time.process_time() - used)
        assert total == len(dataset) * (len(dataset) - 1) // 2, "not every row came once"
    return found


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
