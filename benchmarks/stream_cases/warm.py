"""Shuffled streaming from a local repository, warm and verified, against torch in memory.

Both sides hand out whole shuffled batches of the same rows as torch tensors. Torch's own
`DataLoader` over a `TensorDataset` holds the data in memory and shuffles single rows; ours reads
pages from disk through the page cache, proves every row in every epoch, and shuffles within a
window. Three more peers show what memory gives: `memory[index]` and `index_select(out=)` with an
order made before, and plain copies on two threads.

`others_cpu` is the share of the machine that other processes used meanwhile: ours needs two cores,
torch one, so noise is against us. With patience, rounds go on for so long until as many as asked
for were quiet, and those count.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import MIB, SEED, Options, reopen, store_dataset
from stream_cases.memory import copied, copied_bytes, indexed, selected
from torch.utils.data import DataLoader, TensorDataset

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import BatchStream, stream
from tensorrepo.formats.native.rows import BEST

QUIET = 0.05  # share of the machine that others may use in a quiet round


@dataclass(frozen=True)
class Case:
    """Rows of one shape with a label, and how they are streamed."""

    dtype: str
    shape: tuple[int, ...]
    rows: int
    batch_size: int = 256
    window_bytes: int = 128 * MIB
    goal: str = ""


SHAPES = {
    "rows_3k": Case(
        "uint8", (32, 32, 3), 400_000, goal="ratio_to_index >= 1, ratio_to_select >= 0.5"
    ),
    "rows_3k_batch_32": Case("uint8", (32, 32, 3), 100_000, batch_size=32),
    "rows_3k_batch_1024": Case("uint8", (32, 32, 3), 200_000, batch_size=1024),
    "rows_784": Case("uint8", (28, 28), 400_000),
    "features_64": Case("float32", (16,), 1_000_000, batch_size=1024),
    "tokens_8k": Case("int32", (2048,), 60_000, batch_size=64, goal="share_of_copy >= 0.6"),
    "images_150k": Case("uint8", (224, 224, 3), 4000, batch_size=64),
}


def _case(case: Case, folder: Path, options: Options) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    element = np.dtype(case.dtype)
    values = rng.integers(0, 256, (case.rows, *case.shape, element.itemsize), np.uint8)
    values = values.view(element).reshape(case.rows, *case.shape)
    labels = np.arange(case.rows)
    asked = StreamOptions(
        batch_size=case.batch_size,
        seed=SEED,
        sampling=Sampling(window=case.window_bytes),
        output="torch",
    )
    ours = stream(store(folder, values, labels), asked)
    theirs = in_memory(values, labels, case.batch_size)
    sides = {
        "ours": lambda epoch: epoch_of(ours, epoch),
        "loader": lambda _: epoch_of(theirs, 0),
        "index": timed(indexed(values, labels, case.batch_size)),
        "select": timed(selected(values, labels, case.batch_size)),
        "copy": timed(copied(values.nbytes)),
    }
    for side in sides.values():
        side(0)  # all are warm
    taken = take_turns(sides, options.rounds, options.patience)
    wall = {name: statistics.median(one[name].wall for one in taken) for name in sides}
    cpu_ns = [
        round(statistics.median(one[name].cpu for one in taken) * 1e9 / case.rows)
        for name in ("ours", "loader")
    ]
    ours.set_epoch(0)
    begun = time.perf_counter()
    next(iter(ours))
    first_batch_seconds = time.perf_counter() - begun
    explained = ours.explain()
    return {
        "rows_per_s": round(case.rows / wall["ours"]),
        "torch_rows_per_s": round(case.rows / wall["loader"]),
        "ratio": ratio_to("loader", taken),
        "index_rows_per_s": round(case.rows / wall["index"]),
        "ratio_to_index": ratio_to("index", taken),
        "select_rows_per_s": round(case.rows / wall["select"]),
        "ratio_to_select": ratio_to("select", taken),
        "copy_mb_per_s": round(copied_bytes(values.nbytes) / wall["copy"] / 1e6),
        "share_of_copy": round(
            ratio_to("copy", taken, digits=4) * values.nbytes / copied_bytes(values.nbytes), 2
        ),
        "goal": case.goal,
        "cpu_ns_per_row": cpu_ns[0],
        "torch_cpu_ns_per_row": cpu_ns[1],
        "mb_per_s": round(values.nbytes / wall["ours"] / 1e6),
        "first_batch_ms": round(first_batch_seconds * 1e3, 1),
        "batch": case.batch_size,
        "order": explained.order,
        "lanes": explained.lanes,
        "runs": explained.runs,
        "kernel": BEST.name,
        "rounds": len(taken),
        "others_cpu": round(
            statistics.median(side.others for one in taken for side in one.values()), 2
        ),
    }


def store(folder: Path, values: np.ndarray, labels: np.ndarray) -> StoredDataset:
    schema = Schema.of({"x": Tensor(values.dtype, values.shape[1:]), "y": "int64"})
    digest = store_dataset(str(folder), {}, schema, portions(values, labels))
    return reopen(str(folder), {}, digest)


def portions(values: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    step = max(1, 16 * MIB // (values.nbytes // len(values)))
    for start in range(0, len(values), step):
        yield {"x": values[start : start + step], "y": labels[start : start + step]}


def in_memory(values: np.ndarray, labels: np.ndarray, batch_size: int) -> DataLoader:
    data = TensorDataset(torch.from_numpy(values), torch.from_numpy(labels))
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(data, batch_size=batch_size, shuffle=True, generator=generator)


@dataclass(frozen=True)
class Seconds:
    """Of one epoch: by the clock on the wall, and of all threads of this process together.

    `others` is the share of all cores that other processes used.
    """

    wall: float
    cpu: float
    others: float


def epoch_of(batches: BatchStream | DataLoader, epoch: int) -> Seconds:
    """One epoch whose batches are taken and dropped; every row must have come."""
    if isinstance(batches, BatchStream):
        batches.set_epoch(epoch)
        rows = batches.rows
    else:
        rows = len(batches.dataset)
    found = timed(lambda: sum_of_labels(batches))
    return found(epoch, expected=rows * (rows - 1) // 2)


def timed(work: Callable[[], int | None]) -> Callable[..., Seconds]:
    """What `work` takes; it returns the sum of the labels, where there are any."""

    def measured(_: int, *, expected: int | None = None) -> Seconds:
        wall, cpu, busy = time.perf_counter(), time.process_time(), busy_seconds()
        total = work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        busy = busy_seconds() - busy
        assert expected in (None, total), "not every row came once"
        return Seconds(wall, cpu, max(0.0, busy - cpu) / wall / (os.cpu_count() or 1))

    return measured


def busy_seconds() -> float:
    """CPU seconds of all processes since the machine started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system = map(int, fields[:3])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def take_turns(
    sides: dict[str, Callable[[int], Seconds]], rounds: int, patience: float
) -> list[dict[str, Seconds]]:
    """So many rounds, or so many quiet ones when there is time to wait for them."""
    begun = time.perf_counter()
    taken: list[dict[str, Seconds]] = []
    quiet: list[dict[str, Seconds]] = []
    while len(taken) < rounds or time.perf_counter() - begun < patience:
        epoch = len(taken) + 1
        taken.append({name: side(epoch) for name, side in sides.items()})
        if max(one.others for one in taken[-1].values()) < QUIET:
            quiet.append(taken[-1])
        if len(quiet) == rounds:
            return quiet
    return quiet if len(quiet) >= 3 else taken


def ratio_to(peer: str, taken: list[dict[str, Seconds]], *, digits: int = 2) -> float:
    """How many times as fast as a peer: the median of the rounds."""
    return round(statistics.median(one[peer].wall / one["ours"].wall for one in taken), digits)


def sum_of_labels(batches: Iterable[Any]) -> int:
    total = 0
    for batch in batches:
        labels = batch["y"] if isinstance(batch, dict) else batch[1]
        total += int(labels.sum())
    return total


CASES = {name: partial(_case, case) for name, case in SHAPES.items()}
