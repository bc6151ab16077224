"""Starting: CPU of commands that look around, beside Python's own and its libraries'."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from growth_cases.axes import ADA
from harness import Options

import tensorrepo as tr

FLOOR = {
    "python": "pass",
    "typer_rich_msgspec": "import typer, rich.console, rich.table, msgspec",
    "click": "import click",
    "numpy": "import numpy",
    "open": "import tensorrepo as tr; tr.open('.tensorrepo/store')",
}
COMMANDS = {
    "status": ("status",),
    "log": ("log",),
    "diff": ("diff",),
    "ls": ("ls",),
    "show_of_files": ("show",),
    "diff_of_rows": ("diff", "HEAD~2", "HEAD~1"),
}


def starting(folder: Path, options: Options) -> dict[str, Any]:
    """Milliseconds of CPU (user and system) of whole processes, the least of some in turns."""
    home = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "STATE", "CONFIG")}
    environment = {name: each for name, each in os.environ.items() if name != _NO_BYTECODE} | home
    place = folder / "work"
    place.mkdir()
    _run(("-m", "tensorrepo", "init"), place, environment)
    _fill(place)
    runs = {name: ("-c", code) for name, code in FLOOR.items()}
    runs |= {name: ("-m", "tensorrepo", *words) for name, words in COMMANDS.items()}
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + options.rounds):  # the first compiles what was never imported
        for name, words in runs.items():
            spent[name].append(_run(words, place, environment))
    found = {f"{name}_cpu_ms": round(min(each) * 1e3) for name, each in spent.items()}
    medians = {name: round(statistics.median(each) * 1e3) for name, each in spent.items()}
    goal = "status, log, diff, ls, show 200, diff of rows 350, open 250"
    beside = {"ours": medians["status"]} | {name: medians[name] for name in FLOOR if name != "open"}
    return {"median_cpu_ms": beside, **found, "medians_ms": medians, "goal": goal}


def _fill(place: Path) -> None:
    repo = tr.open(place / ".tensorrepo/store", author=ADA)
    with repo.transaction("main", "Rows") as tx:
        tx.create_dataset("pets", {"age": np.arange(1000), "name": ["x"] * 1000})
    with repo.transaction("main", "Older") as tx:
        tx.dataset("pets").update([1, 5], {"age": 7})
    with repo.transaction("main", "Words") as tx:
        tx.save_file("words", b"of a file")


def _run(words: Sequence[str], place: Path, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
CASES = {"starting": starting}
