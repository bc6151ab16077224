"""Plans and resumes in a process of its own: a line of JSON with seconds, see `million_runs`.

python million_runs_open.py REPOSITORY DATASET POSITION
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import tensorrepo
from tensorrepo.formats.dataset.read import column_index
from tensorrepo.formats.dataset.streaming.plan.pages import make_plan

BATCH, SEED, EPOCH = 256, 7, 1


def measured(place: str, name: str, position: int) -> dict[str, float]:
    """What a process finds that has just begun."""
    begun = time.perf_counter()
    dataset = tensorrepo.open(place).dataset(name)
    indexes = [(column, column_index(dataset.stored, column)) for column in ("image", "label")]
    read = time.perf_counter()
    before = _resident_bytes()
    plan = make_plan(indexes, batch_size=BATCH, window_bytes=512 << 20)
    order = plan.order(SEED, EPOCH)
    planned = time.perf_counter()
    held = _resident_bytes() - before
    runs = plan.runs
    del plan, order

    first = dataset.stream(batch_size=BATCH, seed=SEED)
    first.set_epoch(EPOCH)
    state = first.state_dict(position)
    loaded = time.perf_counter()
    stream = dataset.stream(batch_size=BATCH)
    stream.load_state_dict(state)
    asked = _until_a_page_is_asked_for(stream)
    return {
        "indexes_s": read - begun,
        "plan_s": planned - read,
        "plan_bytes_a_run": held / runs,
        "resume_s": asked - loaded,
        "process_s": (read - begun) + (asked - loaded),
    }


def _until_a_page_is_asked_for(stream: Any) -> float:
    try:
        next(iter(stream))
    except tensorrepo.Error:  # the page holds nothing
        return time.perf_counter()
    raise AssertionError("pages of the generated dataset hold nothing, yet one was read")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
