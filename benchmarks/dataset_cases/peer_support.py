"""What the writers that are compared with share; runs in the peers' environment.

Reads lines of JSON on standard input and answers each with one: ``{"what": "write", "kind":
"jpeg", "workers": 2}`` stores the folder's data and gives the seconds until the writer returned,
until its files were on the disk, and of processors, its workers' too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def serve(version: str, write: Callable[[Path, str, Path, int], None]) -> None:
    """Answer until standard input ends; what the peer prints itself goes to standard error."""
    folder = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        place = folder / "peer"
        begun, cpu = time.perf_counter(), _cpu_seconds()
        write(folder, asked["kind"], place, asked["workers"])
        seconds, cpu = time.perf_counter() - begun, _cpu_seconds() - cpu
        _sync(place)
        synced = time.perf_counter() - begun
        shutil.rmtree(place)
        answer = {"seconds": seconds, "synced": synced, "cpu": cpu, "version": version}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def jpegs(folder: Path) -> list[tuple[str, int]]:
    """Path and label of every image, in order; a part of what is timed."""
    found = []
    for label, name in enumerate(sorted(os.listdir(folder / "jpegs"))):
        inner = folder / "jpegs" / name
        found += [(str(inner / file), label) for file in sorted(os.listdir(inner))]
    return found


def arrays(folder: Path) -> tuple[Any, Any]:
    """The rows and labels, mapped."""
    return tuple(np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))


def _cpu_seconds() -> float:
    """Of this process, and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _sync(place: Path) -> None:
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
