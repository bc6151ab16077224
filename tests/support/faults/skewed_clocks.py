"""A writer or a collector whose clock is wrong.

Run as ``python -m tests.support.faults.skewed_clocks FOLDER ROLE NUMBER SECONDS SKEW_SECONDS``. The
clock is set before anything of ours is loaded, so that all see the same wrong time.
"""

from __future__ import annotations

import sys
import time


def main(folder: str, role: str, number: str, seconds: str, skew_seconds: str) -> None:
    real, real_ns, skew = time.time, time.time_ns, float(skew_seconds)
    time.time = lambda: real() + skew
    time.time_ns = lambda: real_ns() + int(skew * 1e9)
    from pathlib import Path

    from tests.support.faults import collected_writers

    until = time.monotonic() + float(seconds)
    if role == "write":
        done = collected_writers.write(Path(folder), int(number), 1, until)
    else:
        done = collected_writers.collect_until(Path(folder), until)
    sys.stdout.write(str(done.total()))


if __name__ == "__main__":
    main(*sys.argv[1:])
