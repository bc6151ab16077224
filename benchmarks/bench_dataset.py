"""Datasets against Lance, against bare requests, and against what a change must write.

    make bench-env
    python benchmarks/bench_dataset.py [case ...] [--folder DIR] [--rounds N] [--scale X]
        [--peers .bench/bin/python]

One JSON line for each case: medians of rounds taken in turns, so that a noisy neighbour hits all
sides; a ratio is the median of the rounds' ratios. Peers run in processes of their own, with the
python of the environment `.bench` that `make bench-env` makes of `peers.txt`; without one the cases
that need it are skipped. `--scale` shrinks, or grows, the data of `million` (a million fragments),
`labels`, `changes` (1.5 GB; 3.4 makes it 5 GB), `ingest_*` and `diff_*`. The cases stand in
`dataset_cases/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset_cases import changes, diff, ingest, labels, million, regions, take
from dataset_cases.support import Options, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable

CASES: dict[str, Callable[[Path, Options], dict[str, Any]]] = {
    **take.CASES,
    **regions.CASES,
    **million.CASES,
    **labels.CASES,
    **changes.CASES,
    **ingest.CASES,
    **diff.CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure datasets.")
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", help="python of an environment with benchmarks/peers.txt")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the data, where a case says so"
    )
    chosen = parser.parse_args()
    options = Options(chosen.rounds, chosen.peers, chosen.scale)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for name in chosen.cases or CASES:
            place = Path(folder) / name
            place.mkdir()
            try:
                found = CASES[name](place, options)
            except Skipped as why:
                found = {"skipped": str(why)}
            print(json.dumps({"case": name, **found, **machine()}), flush=True)
            shutil.rmtree(place)


def machine() -> dict[str, Any]:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"cores": os.cpu_count(), "python": platform.python_version(), "commit": commit}


if __name__ == "__main__":
    main()
