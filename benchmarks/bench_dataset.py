"""Datasets against Lance, against bare requests, and against what a change must write.

    make bench-env
    python benchmarks/bench_dataset.py [case ...] [--folder DIR] [--rounds N] [--scale X]
        [--peers .bench/bin/python]

One JSON line for each case: medians of rounds taken in turns, so that a noisy neighbour hits all
sides; a ratio is the median of the rounds' ratios. Peers run in processes of their own, with the
python of the environment `.bench` that `make bench-env` makes of `peers.txt`; without one the cases
that need it are skipped (`write_rows` takes Lance of this environment). `--scale` shrinks, or
grows, the data of `million` (a million fragments), `labels`, `changes` (1.5 GB; 3.4 makes it 5 GB),
`ingest_*`, `write_rows`, `scan_3k`, `add_*`, `diff_*`, `nested`, `nearest_*`,
`search_text_*`, `sync_*` and `derive_*`. The cases stand in
`dataset_cases/`.
"""

from __future__ import annotations

from dataset_cases import (
    add,
    auto,
    changes,
    derive,
    diff,
    indexed,
    ingest,
    labels,
    million,
    nearest,
    nested,
    regions,
    scan,
    sync,
    take,
    write,
)
from harness import run

CASES = {
    **take.CASES,
    **scan.CASES,
    **regions.CASES,
    **million.CASES,
    **labels.CASES,
    **changes.CASES,
    **ingest.CASES,
    **write.CASES,
    **add.CASES,
    **diff.CASES,
    **auto.CASES,
    **sync.CASES,
    **nested.CASES,
    **derive.CASES,
    **nearest.CASES,
    **indexed.CASES,
}

if __name__ == "__main__":
    run(CASES, "Measure datasets.", rounds=7, fewer=("ingest_array",))
