"""Axes of what is stored: rows of more and more bytes, versions of one model, files of commits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from growth_cases.axes import ADA, Grown, exponent, measure
from harness import SEED, Options

import tensorrepo as tr

TENSORS, ITEMS = 10, 1 << 16
COMMITS = (300, 900, 2700)  # of fewer than 128, objects are too few for a pack
FILES_GOAL = 0.2


def wide_rows(folder: Path, sizes: Sequence[int]) -> Grown:
    """Opening a dataset and reading one row, by KiB of the row."""
    for size in sizes:
        place = folder / str(size)
        repo = tr.init(place, author=ADA)
        rows = np.random.default_rng(SEED).integers(0, 256, (4, size << 10), np.uint8)
        with repo.transaction("main", "rows") as tx:
            tx.create_dataset("d", {"x": rows})
        yield size, partial(_read_row, place, rows[2])


def _read_row(place: Path, expected: Any) -> float:
    repo = tr.open(place)
    begun = time.process_time()
    row = repo.dataset("d")[2]["x"]
    spent = time.process_time() - begun
    assert np.array_equal(row, expected)
    return spent


def versions(folder: Path, sizes: Sequence[int]) -> Grown:
    """Saving the next version of a model of ten tensors, by versions that are there."""
    repo = tr.init(folder / "repository", author=ADA)
    rng = np.random.default_rng(SEED)
    tensors = {f"w{at}": rng.standard_normal(ITEMS, np.float32) for at in range(TENSORS)}

    def save(repo: tr.Repository) -> float:
        for name, each in tensors.items():
            tensors[name] = each + np.float32(1e-4) * rng.standard_normal(ITEMS, np.float32)
        begun = time.process_time()
        with repo.transaction("main", "next") as tx:
            tx.save_model("m", tensors)
        return time.process_time() - begun

    saved = 0
    for size in sizes:
        for _ in range(saved, size):
            save(repo)
        saved = size
        yield size, lambda: save(tr.open(folder / "repository", author=ADA))


def files(folder: Path, options: Options) -> dict[str, Any]:
    """Files beside the log's after ``gc(compact=True)``, by commits; a commit's slot stays one."""
    repo = tr.init(folder / "repository", author=ADA)
    sizes = sorted({max(1, round(size * options.scale)) for size in COMMITS})
    counted, slots, done = [], [], 0
    for size in sizes:
        for at in range(done, size):
            with repo.transaction("main", str(at)) as tx:
                tx.save_file("file", str(at).encode())
        done = size
        repo.gc(grace="0s", compact=True)
        names = [path for path in (folder / "repository").rglob("*") if path.is_file()]
        log = sum("log" in path.relative_to(folder).parts for path in names)
        counted.append(len(names) - log)
        slots.append(log)
    found = exponent(sizes, counted)
    return {
        "sizes": sizes,
        "files": counted,
        "files_of_log": slots,
        "exponent": round(found, 2),
        "goal": f"exponent <= {FILES_GOAL}",
        "reached": bool(found <= FILES_GOAL),
    }


CASES = {
    "growth_wide_rows": measure(wide_rows, (64, 1024, 16_384, 65_536), 1.1, least=2.0),
    "growth_versions": measure(versions, (10, 40, 160), 0.2, least=5.0),
    "growth_files": files,
}
