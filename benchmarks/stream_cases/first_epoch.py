"""The first epoch of a new process against its later ones, and those against torch in memory.

The page cache holds all of the repository. In the first epoch every page is mapped, and proved as a
whole, before its rows are compared with their sums as in each later one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options
from stream_cases.memory import selected
from stream_cases.warm import timed

import tensorrepo

ROWS, SHAPE, BATCH, EPOCHS = 400_000, (32, 32, 3), 256, 5


def first_epoch(folder: Path, options: Options) -> dict[str, Any]:
    """Rows of 3 KiB with a label, shuffled within 128 MiB."""
    count = max(4096, int(ROWS * options.scale))
    rng = np.random.default_rng(SEED)
    values = np.frombuffer(rng.bytes(count * 3072), np.uint8).reshape(count, *SHAPE)
    labels = np.arange(count)
    repository = tensorrepo.init(folder / "ours")
    with repository.transaction("main", message="rows") as change:
        columns = {"x": tensorrepo.Tensor("uint8", SHAPE), "y": "int64"}
        change.create_dataset("x", columns=columns).append({"x": values, "y": labels})
    repository.close()
    select = timed(selected(values.copy(), labels, BATCH))
    select(0)
    runs, selects = [], []
    for _ in range(options.rounds + 1):
        script = str(Path(__file__).with_name("first_epoch_run.py"))
        command = [sys.executable, script, str(folder / "ours"), "x", str(EPOCHS)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        runs.append(json.loads(answer))
        selects.append(select(0).wall)
    runs, selects = runs[1:], selects[1:]  # the first warms the page cache
    later = [statistics.median(run["wall"][1:]) for run in runs]
    later_cpu = [statistics.median(run["cpu"][1:]) for run in runs]
    pairs = list(zip(runs, later, later_cpu, selects, strict=True))
    return {
        "first_rows_per_s": round(count / statistics.median(run["wall"][0] for run in runs)),
        "later_rows_per_s": round(count / statistics.median(later)),
        "ratio_first": _median(one / run["wall"][0] for run, one, _, _ in pairs),
        "ratio_first_cpu": _median(one / run["cpu"][0] for run, _, one, _ in pairs),
        "ratio_to_select": _median(given / one for _, one, _, given in pairs),
        "rows": count,
        "goal": "ratio_first >= 0.7, ratio_to_select >= 0.5",
    }


def _median(ratios: Any) -> float:
    return round(statistics.median(ratios), 2)


CASES = {"first_epoch": first_epoch}
