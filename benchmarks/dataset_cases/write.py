"""Writing rows from memory, against Lance with an fsync of its files, and against a copy with one.

Both sides have the rows in memory and take them in batches of 4,096; ours counts from `init` to a
commit that is durable. `cpu_ns_byte_` is what all threads of a side took, which a busy machine
changes less than the clock.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, Peer, medians_ms, portions, ratio, take_turns

import tensorrepo

ROW, ROWS, STEP = 3072, 200_000, 4096


def write_rows(folder: Path, options: Options) -> dict[str, Any]:
    """614 MB of rows of 3 KiB with a label."""
    count = max(STEP, int(ROWS * options.scale))
    rng = np.random.default_rng(SEED)
    values = np.frombuffer(rng.bytes(count * ROW), np.uint8).reshape(count, ROW)
    labels = rng.integers(0, 10, count)
    np.save(folder / "x.npy", values)
    np.save(folder / "y.npy", labels)
    lance = Peer(
        replace(options, peers=options.peers or sys.executable),
        "dataset_cases/peer_lance_write.py",
        folder,
    )
    cpu: dict[str, list[float]] = {"ours": [], "lance": [], "copy": []}
    versions: list[str] = []

    def ours() -> float:
        begun, used = time.perf_counter(), time.process_time()
        repository = tensorrepo.init(folder / "ours")
        with repository.transaction("main", message="write") as change:
            draft = change.create_dataset(
                "x", columns={"x": tensorrepo.Tensor("uint8", (ROW,)), "y": "int64"}
            )
            draft.append({"x": values[part], "y": labels[part]} for part in portions(count, STEP))
        repository.close()
        cpu["ours"].append(time.process_time() - used)
        seconds = time.perf_counter() - begun
        shutil.rmtree(folder / "ours")
        return seconds

    def peer() -> float:
        answer = lance.ask("write", kind="rows", workers=0)
        cpu["lance"].append(answer["cpu"])
        versions.append(answer["version"])
        return float(answer["synced"])

    def copy() -> float:
        begun, used = time.perf_counter(), time.process_time()
        with (folder / "x.npy").open("rb") as source, (folder / "copy").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        cpu["copy"].append(time.process_time() - used)
        seconds = time.perf_counter() - begun
        (folder / "copy").unlink()
        return seconds

    found = take_turns(options.rounds + 1, {"ours": ours, "lance": peer, "copy": copy})
    lance.close()
    found = {name: seconds[1:] for name, seconds in found.items()}  # the first warms up
    size = count * ROW
    each = {
        f"cpu_ns_byte_{name}": round(statistics.median(used[1:]) / size * 1e9, 3)
        for name, used in cpu.items()
    }
    least = round(min(cpu["ours"][1:]) / size * 1e9, 3)
    return (
        medians_ms(found)
        | each
        | {
            "ratio_lance": ratio(found["lance"], found["ours"]),
            "ratio_copy": ratio(found["copy"], found["ours"]),
            "ratio_cpu_lance": ratio(cpu["lance"][1:], cpu["ours"][1:]),
            "cpu_ns_byte_ours_least": least,
            "rows": count,
            "bytes": size,
            "lance": versions[-1],
            "goal": "ratio_lance >= 1, cpu_ns_byte_ours <= 1.2, ratio_copy >= 0.8",
        }
    )


CASES = {"write_rows": write_rows}
