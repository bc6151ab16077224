"""Two versions of ten million rows that differ in one of a hundred: what differs, row by row.

The compared process does nothing else, so its peak is what a comparison costs beside Python and
the libraries, which take about 100 MiB. `arrow` reads the values of both sides, too.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorrepo

if TYPE_CHECKING:
    from harness import Options

ROWS, BATCH, SEED = 10_000_000, 1_000_000, 7
COLUMNS = {"id": "int64", "x": "float32", "label": "int32"}


def diff_rows(folder: Path, options: Options) -> dict[str, Any]:
    """Labels of 0.6% of the rows updated, 0.2% deleted, 0.2% appended."""
    rows = int(ROWS * options.scale)
    rng = np.random.default_rng(SEED)
    repository = _written(folder, rows)
    with repository.transaction("main", message="second") as change:
        dataset = change.dataset("x")
        chosen = np.sort(rng.choice(rows, 6 * rows // 1000, replace=False))
        dataset.update(chosen, {"label": rng.integers(1000, 2000, len(chosen), np.int32)})
        dataset.delete(np.sort(rng.choice(rows, rows // 500, replace=False)))
        dataset.append(_batch(np.arange(rows, rows + rows // 500)))
    repository.close()
    return _measured(folder, options, key=None) | {"goal": "arrow_ms <= 2000, rss_mib <= 500"}


def diff_key(folder: Path, options: Options) -> dict[str, Any]:
    """All rows written anew, labels of 1% changed; matched by their id."""
    rows = int(ROWS * options.scale)
    repository = _written(folder, rows)
    with repository.transaction("main", message="second") as change:
        change.remove("datasets/x")
    with repository.transaction("main", message="third") as change:
        change.create_dataset("x", columns=COLUMNS).append(_batches(rows, changed=0.01))
    repository.close()
    return _measured(folder, options, key="id")


def _written(folder: Path, rows: int) -> tensorrepo.Repository:
    repository = tensorrepo.init(folder / "repository")
    with repository.transaction("main", message="first") as change:
        change.create_dataset("x", columns=COLUMNS).append(_batches(rows))
    repository.create_tag("v1", "main")
    return repository


def _batches(rows: int, changed: float = 0.0) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED + 1)
    for start in range(0, rows, BATCH):
        batch = _batch(np.arange(start, min(rows, start + BATCH)))
        batch["label"][rng.random(len(batch["label"])) < changed] += 1000
        yield batch


def _batch(numbers: np.ndarray[Any, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(int(numbers[0]))
    return {
        "id": numbers,
        "x": rng.random(len(numbers), np.float32),
        "label": rng.integers(0, 1000, len(numbers), np.int32),
    }


def _measured(folder: Path, options: Options, key: str | None) -> dict[str, Any]:
    """Medians over processes of their own."""
    command = [sys.executable, __file__, str(folder / "repository"), key or ""]
    answers = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        for _ in range(options.rounds)
    ]
    middle = {name: statistics.median(each[name] for each in answers) for name in answers[0]}
    return {name: round(value, 1) for name, value in middle.items()}


def _compare(url: str, key: str | None) -> dict[str, float]:
    """What one fresh process sees: milliseconds, rows, MiB."""
    repository = tensorrepo.open(url)
    begun = time.perf_counter()
    found = repository.diff("v1", "main").datasets["datasets/x"]
    summed = time.perf_counter()
    rows = sum(batch.num_rows for batch in found.rows(key=key))
    shown = time.perf_counter()
    return {
        "summary_ms": (summed - begun) * 1e3,
        "arrow_ms": (shown - summed) * 1e3,
        "rows": rows,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


CASES = {"diff_rows": diff_rows, "diff_key": diff_key}

if __name__ == "__main__":
    print(json.dumps(_compare(sys.argv[1], sys.argv[2] or None)))
