"""Streaming: beside torch in memory and the loaders people use, from a slow store, from a cache.

    make bench-env
    python benchmarks/bench_stream.py [case ...] [--folder DIR] [--rounds N] [--scale X]
        [--patience SECONDS] [--peers .bench/bin/python]

One JSON line for each case: medians of rounds taken in turns, so that a noisy neighbour hits all
sides; a ratio is the median of the rounds' ratios. Peers run in processes of their own, with the
python of the environment `.bench` that `make bench-env` makes of `peers.txt`; without one the cases
that need it are skipped. `remote_*` bound a link, which needs root. The cases stand in
`stream_cases/`.
"""

from __future__ import annotations

from harness import run
from stream_cases import (
    first_epoch,
    images,
    loaders,
    million_runs,
    million_runs_memory,
    progressive,
    reading_bound,
    remote,
    slow_rows,
    warm,
)

CASES = {
    **warm.CASES,
    **first_epoch.CASES,
    **loaders.CASES,
    **images.CASES,
    **remote.CASES,
    **million_runs.CASES,
    **million_runs_memory.CASES,
    **progressive.CASES,
    **slow_rows.CASES,
    **reading_bound.CASES,
}

if __name__ == "__main__":
    run(CASES, "Measure streaming.", rounds=7, fewer=("loaders", "images"))
