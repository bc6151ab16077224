"""Repack of a thousand models: time, memory and bytes.

They are fine-tunes of eight bases, saved in turn and without saying of which: a save looks at what
lies near by, the repack at all. `mb_per_s` is of all tensors' bytes; shares are of packs alone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, begin_peak, process_mib

import tensorrepo as tr

MODELS, FAMILIES, TENSORS, SIDE = 1_000, 8, 4, 128


def repack(folder: Path, options: Options) -> dict[str, Any]:
    """1,000 models of 256 KiB."""
    repository = tr.init(folder / "repository", author="Bench <bench@example.org>")
    count = max(FAMILIES + 1, round(MODELS * options.scale))
    for first in range(0, count, 50):
        with repository.transaction("main", f"models from {first}") as change:
            for number in range(first, min(count, first + 50)):
                change.save_model(f"m{number:05}", _tensors(number))
    begin_peak()
    begun, cpu = time.perf_counter(), time.process_time()
    report = repository.repack_models()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    raw = count * TENSORS * SIDE * SIDE * 4
    peak = process_mib("VmHWM")
    repository = tr.open(folder / "repository")
    last = repository.model(f"m{count - 1:05}").load(output="numpy")
    assert all(np.array_equal(last[name], each) for name, each in _tensors(count - 1).items())
    return {
        "models": count,
        "repack_s": round(seconds, 2),
        "cpu_ms_a_model": round(cpu / count * 1e3, 2),
        "mb_per_s": round(raw / seconds / 1e6, 1),
        "share_of_raw_before": round(report.present_bytes / raw, 3),
        "share_of_raw_after": round((report.stored_bytes or report.present_bytes) / raw, 3),
        "peak_mib": round(peak),
        "goal": "cpu_ms_a_model <= 60, peak_mib <= 1024, share_of_raw_after <= share_of_raw_before",
    }


def _tensors(number: int) -> dict[str, Any]:
    """A base of the family, moved a little."""
    base = np.random.default_rng([SEED, number % FAMILIES])
    moved = np.random.default_rng([SEED, FAMILIES + number])
    return {
        f"layers.{at}.weight": base.normal(0, 0.02, (SIDE, SIDE)).astype("<f4")
        + moved.normal(0, 1e-5, (SIDE, SIDE)).astype("<f4")
        for at in range(TENSORS)
    }


CASES = {"repack": repack}
