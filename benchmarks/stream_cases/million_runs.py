"""A dataset of a million pages: planning an epoch, and resuming in the middle of one.

Its metadata is made by a generator (see `dataset_cases/million.py`) and the pages that it names
hold nothing, so the first request for a page fails, and says when it came. A process that has just
begun opens the repository, plans, loads a state, and asks for the next batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from dataset_cases.million import FRAGMENTS, ROWS, generate
from harness import Options

import tensorrepo
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind

NAME = "large"
SCRIPT = Path(__file__).with_name("million_runs_open.py")


def million_runs(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of a plan, and from loading a state to the first request for a page."""
    place = folder / "repository"
    pages = max(2000, int(FRAGMENTS * options.scale))
    repository = tensorrepo.init(place)
    with repository.transaction("main", message="generate") as change:
        root = generate(change.core.objects, pages)
        change.core.stage(f"datasets/{NAME}", Entry(Kind.DATASET, root.digest))
    command = [sys.executable, str(SCRIPT), str(place), NAME, str(pages * ROWS // 2)]
    rounds = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(options.rounds)
    ]
    middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {
        "runs": pages,
        **{name: round(value, 3) for name, value in middle.items()},
        "goal": "plan_s < 0.2, plan_bytes_a_run <= 64, resume_s < 1",
    }


CASES = {"million_runs": million_runs}
