"""Shuffled batches from a warm local disk, beside the loaders that people use.

Every side hands out whole batches of the same rows as torch tensors, shuffled; the rows of an epoch
are counted and their labels summed. Each peer stores the rows in its own format, with the settings
that were fastest here, and runs in a process of its own with no workers and with as many as there
are cores. Ours has one process. Ours compares every page with its checksum in every epoch; no peer
verifies anything.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import MIB, SEED, Options, Peer, Skipped, reopen, store_dataset

from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import BatchStream, stream

PEERS = ("litdata", "mosaic", "huggingface", "webdataset", "lance")
ROWS, SHAPE, BATCH = 100_000, (32, 32, 3), 256
PEER_ROWS = 30_000  # of the slower ones an epoch of all rows takes minutes


def rows_beside_loaders(folder: Path, options: Options) -> dict[str, Any]:
    """Rows of 3 KiB in batches of 256: rows and processor seconds, and the best peer's."""
    if options.peers is None:
        raise Skipped("needs --peers PYTHON, of an environment with benchmarks/peers.txt")
    rows = round(ROWS * options.scale)
    values = np.random.default_rng(SEED).integers(0, 256, (rows, *SHAPE), np.uint8)
    ours = _ours(folder, values)
    few = min(PEER_ROWS, rows)
    np.save(folder / "x.npy", values[:few])
    np.save(folder / "y.npy", np.arange(few))
    peers = _prepared(options, folder)
    try:
        found = _measured(ours, rows, peers, few, options.rounds)
    finally:
        for peer in peers.values():
            peer.close()
    return _told(found)


def _ours(folder: Path, values: np.ndarray) -> BatchStream:
    schema = Schema.of({"x": Tensor(values.dtype, values.shape[1:]), "y": "int64"})
    digest = store_dataset(str(folder / "ours"), {}, schema, _portions(values))
    dataset = reopen(str(folder / "ours"), {}, digest)
    sampling = Sampling(window=128 * MIB)
    options = StreamOptions(batch_size=BATCH, seed=SEED, sampling=sampling, output="torch")
    return stream(dataset, options)


def _portions(values: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    labels = np.arange(len(values))
    step = 16 * MIB // values[0].nbytes
    for start in range(0, len(values), step):
        yield {"x": values[start : start + step], "y": labels[start : start + step]}


def _prepared(options: Options, folder: Path) -> dict[str, Peer]:
    peers = {name: Peer(options, f"stream_cases/peer_{name}.py", folder) for name in PEERS}
    for peer in peers.values():
        peer.ask("prepare")
    return peers


Side = list[tuple[float, float]]  # wall and processor seconds of a million rows, per round


def _measured(
    ours: BatchStream, rows: int, peers: dict[str, Peer], peer_rows: int, rounds: int
) -> dict[str, Side]:
    """Rounds in turns; the first one warms everything and does not count."""
    found: dict[str, Side] = {}
    for turn in range(rounds + 1):
        sides = {"ours": _epoch(ours, turn, rows)}
        for name, peer in peers.items():
            for workers in (0, os.cpu_count() or 1):
                told = peer.ask("epoch", epoch=turn, batch_size=BATCH, workers=workers)
                assert told["rows"] == peer_rows, f"{name} gave {told['rows']} rows"
                assert told["sum"] == peer_rows * (peer_rows - 1) // 2, f"{name}: not every row"
                millions = peer_rows / 1e6
                sides[f"{name}_{workers}"] = told["seconds"] / millions, told["cpu"] / millions
        if turn:
            for name, side in sides.items():
                found.setdefault(name, []).append(side)
    return found


def _epoch(ours: BatchStream, epoch: int, rows: int) -> tuple[float, float]:
    ours.set_epoch(epoch)
    wall, cpu = time.perf_counter(), time.process_time()
    total = sum(int(batch["y"].sum()) for batch in ours)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert total == rows * (rows - 1) // 2, "not every row came once"
    return wall / (rows / 1e6), cpu / (rows / 1e6)


def _told(found: dict[str, Side]) -> dict[str, Any]:
    walls = {name: statistics.median(wall for wall, _ in side) for name, side in found.items()}
    cpus = {name: statistics.median(cpu for _, cpu in side) for name, side in found.items()}
    best = min((name for name in walls if name != "ours"), key=walls.__getitem__)
    leanest = min((name for name in cpus if name != "ours"), key=cpus.__getitem__)
    return {
        "rows_per_s": {name: round(1e6 / wall) for name, wall in walls.items()},
        "cpu_s_per_million_rows": {name: round(cpu, 2) for name, cpu in cpus.items()},
        "best_peer": best,
        "ratio": round(walls[best] / walls["ours"], 1),
        "goal": "ratio >= 8",
        "leanest_peer": leanest,
        "cpu_ratio": round(cpus["ours"] / cpus[leanest], 3),
        "cpu_goal": "cpu_ratio <= 0.5",
    }


CASES = {"loaders": rows_beside_loaders}
