"""Growth and starting: what costs become as things grow, and what a command costs before it works.

    python benchmarks/bench_growth.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One JSON line for each axis, with its exponent: 0 is flat, 1 linear. Costs are CPU seconds.
"""

from __future__ import annotations

from growth_cases import axes, listing, starting, stored
from harness import run

CASES = {**starting.CASES, **axes.CASES, **listing.CASES, **stored.CASES}

if __name__ == "__main__":
    run(CASES, "Measure growth.", rounds=3)
