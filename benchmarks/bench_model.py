"""Models: stored, loaded, sliced, read from afar, and saved while training.

    python benchmarks/bench_model.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One JSON line for each case. Sides are measured in turns, so that a noisy neighbour hits all of
them; a ratio is the median of the rounds' ratios. `remote_*` bound a link, which needs root. Some
cases train a small model first, which takes a minute; needs the extras `torch` and `demo`.
"""

from __future__ import annotations

from harness import run
from model_cases import checkpoints, loads, progressive, remote, repack, saves, slices, transfer

CASES = {
    **transfer.CASES,
    **loads.CASES,
    **saves.CASES,
    **slices.CASES,
    **remote.CASES,
    **checkpoints.CASES,
    **repack.CASES,
    **progressive.CASES,
}

if __name__ == "__main__":
    run(CASES, "Measure models.", rounds=5)
