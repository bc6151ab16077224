"""What a change of a dataset costs, against the bytes of the change itself.

Each change is a commit in a repository that was opened anew. Bytes are those of all files that it
wrote: pages, indexes, leaf, root, trees, commit and log. `--scale 3.4` makes the dataset 5 GB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, begin_peak, portions, process_mib, written

import tensorrepo
from tensorrepo.repository import Repository

DATASET_BYTES, ROW = 1_500_000_000, 3072
STEP, LABELS, FIXED = 8192, 10, 100
NAME = "images"


def changes(folder: Path, options: Options) -> dict[str, Any]:
    """Add a column, delete a tenth, fix 100 labels, rename a column, branch, tag."""
    place = folder / "repository"
    rows = max(STEP, int(DATASET_BYTES * options.scale) // ROW)
    rng = np.random.default_rng(SEED)
    with tensorrepo.init(place).transaction("main", message="begin") as change:
        columns = {"x": tensorrepo.Tensor("uint8", (ROW,)), "label": "int64"}
        change.create_dataset(NAME, columns=columns).append(_batches(rows, rng))
    score = rng.random(rows, np.float32)
    wrong = rng.choice(rows, FIXED, replace=False)
    deleted = rng.choice(rows, rows // 10, replace=False)

    def dataset(edit: Callable[[Any], object]) -> Callable[[Repository], None]:
        def run(repository: Repository) -> None:
            with repository.transaction("main", message="change") as change:
                edit(change.dataset(NAME))

        return run

    steps: dict[str, tuple[Callable[[Repository], None], int | None]] = {
        "fix_labels": (
            dataset(lambda draft: draft.update(wrong, {"label": np.full(FIXED, LABELS)})),
            FIXED * 8,
        ),
        "rename_column": (dataset(lambda draft: draft.rename_column("x", "pixels")), None),
        "add_default": (dataset(lambda draft: draft.add_column("seen", "int64", default=0)), None),
        "add_values": (
            dataset(lambda draft: draft.add_column("score", "float32", score)),
            score.nbytes,
        ),
        "delete_tenth": (dataset(lambda draft: draft.delete(deleted)), rows // 8),
        "branch": (lambda repository: repository.create_branch("other"), None),
        "tag": (lambda repository: repository.create_tag("v1"), None),
    }
    found: dict[str, Any] = {"rows": rows, "bytes": rows * (ROW + 8)}
    for name, (step, own_bytes) in steps.items():
        found[name] = _measured(place, step, own_bytes)
    assert len(tensorrepo.open(place).dataset(NAME)) == rows - len(deleted)
    return found | {"goal": "kib in proportion to own_kib; branch and tag constant"}


def _measured(
    place: Path, step: Callable[[Repository], None], own_bytes: int | None
) -> dict[str, float]:
    repository = tensorrepo.open(place)
    rest = begin_peak()
    begun = time.perf_counter()
    with written(place) as change:
        step(repository)
    seconds = time.perf_counter() - begun
    found = {
        "kib": round(change.bytes / 1024, 1),
        "seconds": round(seconds, 3),
        "peak_mib": round(process_mib("VmHWM") - rest, 1),
    }
    return found if own_bytes is None else {**found, "own_kib": round(own_bytes / 1024, 1)}


def _batches(rows: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    pixels = rng.integers(0, 256, (STEP, ROW), np.uint8)
    for part in portions(rows, STEP):
        count = part.stop - part.start
        pixels[:, :8] = rng.integers(0, 256, (STEP, 8), np.uint8)
        yield {"x": pixels[:count], "label": rng.integers(0, LABELS, count)}


CASES = {"changes": changes}
