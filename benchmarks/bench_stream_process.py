"""When does a process of its own pay? A training loop with transforms of two kinds, both ways.

    python benchmarks/bench_stream_process.py [case ...] [--folder DIR] [--rounds N]

Rows are 256 words of text. The quick transform asks for lengths only; the heavy one looks words up
in a dict, in Python. The loop is a small model of torch on one thread. One JSON line a case: steps
a second, medians of rounds taken in turns, after a warm-up; the first batch is measured apart,
since a process has to start for it. Needs two idle cores: a busy machine says nothing.
"""

from __future__ import annotations

import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Case, Options, run
from torch import nn

import tensorrepo as tr

ROWS, BATCH, WORDS, STEPS = 20_000, 256, 256, 60
VOCABULARY = {f"word{number}": number for number in range(4096)}


def process(transform: Any) -> Case:
    """Steps a second, and seconds until the first batch, by who makes the batches."""

    def case(folder: Path, options: Options) -> dict[str, Any]:
        torch.set_num_threads(1)
        data = texts(folder / "store")
        rounds: dict[str, list[tuple[float, float]]] = {"thread": [], "process": []}
        for _ in range(options.rounds):
            for workers, found in rounds.items():
                found.append(measured(data, transform, workers))
        told: dict[str, Any] = {}
        for workers, found in rounds.items():
            steps, first = (statistics.median(each) for each in zip(*found, strict=True))
            told |= {f"{workers}_steps_per_s": round(steps, 1)}
            told |= {f"{workers}_first_batch_s": round(first, 2)}
        return told

    return case


def texts(where: Path) -> tr.Dataset:
    repo = tr.init(where, author="Bench <bench@example.org>")
    drawn = np.random.default_rng(0).integers(0, len(VOCABULARY), (ROWS, WORDS))
    rows = [" ".join(f"word{number}" for number in row) for row in drawn.tolist()]
    with repo.transaction("main") as tx:
        tx.create_dataset("texts", columns={"text": tr.Text()}).append({"text": rows})
    return repo.dataset("texts")


def quick(batch: Any) -> dict[str, Any]:
    lengths = [len(text) for text in batch["text"]]
    return {"tokens": torch.from_numpy(np.resize(lengths, (len(lengths), WORDS)))}


def heavy(batch: Any) -> dict[str, Any]:
    tokens = [[VOCABULARY[word] for word in text.split(" ")] for text in batch["text"]]
    return {"tokens": torch.tensor(tokens)}


def measured(data: tr.Dataset, transform: Any, workers: Any) -> tuple[float, float]:
    """Steps a second, and seconds until the first batch."""
    model = nn.Sequential(nn.Embedding(8192, 16), nn.Flatten(), nn.Linear(16 * WORDS, 64))
    model = nn.Sequential(model, *(nn.Linear(64, 64) for _ in range(100)))
    stream = data.stream(
        batch_size=BATCH,
        columns=["text"],
        output="torch",
        transform=transform,
        loading=tr.Loading(workers=workers),
    )
    begun = time.perf_counter()
    batches = iter(stream)
    step(model, next(batches))
    first = time.perf_counter() - begun
    for batch in islice(batches, 10):
        step(model, batch)
    begun = time.perf_counter()
    count = sum(step(model, batch) for batch in islice(batches, STEPS))
    seconds = time.perf_counter() - begun
    stream.close()
    return count / seconds, first


def step(model: nn.Module, batch: dict[str, Any]) -> int:
    model(batch["tokens"] % 8192).square().mean().backward()
    return 1


CASES = {"process_quick": process(quick), "process_heavy": process(heavy)}

if __name__ == "__main__":
    run(CASES, "Measure processes beside a training loop.", rounds=3)
