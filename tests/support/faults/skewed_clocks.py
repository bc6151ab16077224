"""Writers and collectors whose clocks are wrong.

Run as ``python -m tests.support.faults.skewed_clocks FOLDER SECONDS SKEW_SECONDS ROLE...``, with
"write" or "collect" for each role; prints how much each has done. The clock is set before anything
of ours is loaded, so that all see the same wrong time; then one process is forked for each role.
"""

from __future__ import annotations

import os
import sys
import time
from tempfile import TemporaryDirectory

_skew_seconds = 0.0


def set_clock() -> None:
    """Let all that is loaded from now on see a clock that is wrong by `_skew_seconds`."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _skew_seconds
    time.time_ns = lambda: real_ns() + int(_skew_seconds * 1e9)


def main(folder: str, seconds: str, skew_seconds: str, *roles: str) -> None:
    set_clock()
    from pathlib import Path

    from tests.support.faults import collected_writers

    def be(role: str, number: int) -> None:
        global _skew_seconds  # noqa: PLW0603  the clock of this process
        _skew_seconds = float(skew_seconds) * (-1) ** number
        until = time.monotonic() + float(seconds)
        if role == "write":
            done = collected_writers.write(Path(folder), number, 1, until)
        else:
            done = collected_writers.collect_until(Path(folder), until)
        Path(kept, str(at)).write_text(str(done.total()))

    with TemporaryDirectory() as kept:
        children = []
        for at, role in enumerate(roles):
            child = os.fork()
            if not child:
                be(role, roles[:at].count(role))
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        # Who failed has written nothing, which fails here.
        told = [Path(kept, str(at)).read_text() for at in range(len(roles))]
    sys.stdout.write(" ".join(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
