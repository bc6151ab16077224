"""Listing ten thousand entries: from a folder, and from a store that answers late."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from growth_cases.axes import ADA
from harness import Options, slow_s3

import tensorrepo as tr

ENTRIES = 10_000


def ls(folder: Path, options: Options) -> dict[str, Any]:
    """`tensorrepo ls --json` of datasets in a folder."""
    url = str(folder / "store")
    return _measured(folder, url, {}, options) | {"goal": "wall_s < 1"}


def ls_20ms(folder: Path, options: Options) -> dict[str, Any]:
    """The same from a store whose answers take 20 ms; what is remembered is emptied before each."""
    with slow_s3(folder, 0) as (url, environment):
        _make(url, environment, options)
    with slow_s3(folder, 20) as (url, environment):
        return _listed(folder, url, environment, options) | {"goal": "wall_s < 5"}


def _measured(
    folder: Path, url: str, environment: Mapping[str, str], options: Options
) -> dict[str, Any]:
    _make(url, environment, options)
    return _listed(folder, url, environment, options)


def _make(url: str, environment: Mapping[str, str], options: Options) -> None:
    os.environ.update(environment)
    repo = tr.init(url, author=ADA)
    with repo.transaction("main", "datasets") as tx:
        for at in range(max(1, round(ENTRIES * options.scale))):
            tx.create_dataset(f"{at:07}", {"a": np.arange(3)})


def _listed(
    folder: Path, url: str, environment: Mapping[str, str], options: Options
) -> dict[str, Any]:
    wall, cpu, lines = [], [], 0
    for at in range(options.rounds):
        homes = {f"XDG_{name}_HOME": str(folder / f"{name}-{at}") for name in ("CACHE", "STATE")}
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tensorrepo", "ls", "--json", "--repo", url],
            env={**os.environ, **environment, **homes},
            capture_output=True,
            check=True,
        )
        wall.append(time.perf_counter() - begun)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        lines = len(done.stdout.splitlines())
    return {
        "entries": lines,
        "wall_s": round(statistics.median(wall), 2),
        "cpu_s": round(min(cpu), 2),
    }


CASES = {"ls": ls, "ls_20ms": ls_20ms}
