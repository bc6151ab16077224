"""What the loaders that are compared with share; runs in the peers' environment.

``python peer_x.py FOLDER`` finds rows in ``FOLDER/x.npy`` and ``y.npy``. It reads lines of JSON on
standard input and answers each with one:

    {"what": "prepare"}                          stores the rows in the peer's own format
    {"what": "epoch", "epoch": 1, "batch_size": 256, "workers": 0}
                                                 gives seconds, of processors too, and what came
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Prepare = Callable[[Path], None]
Loader = Callable[[Path, int, int, int], Iterable[Any]]


def serve(version: str, prepare: Prepare, loader: Loader) -> None:
    """Answer until standard input ends; what the peer prints itself goes to standard error.

    Args:
        version: of the peer.
        prepare: stores what is in a folder.
        loader: of a folder, an epoch, a batch size and a number of workers; its batches are
            ``(x, y)`` or a dict of them, tensors both.
    """
    folder = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        found: dict[str, Any] = {"version": version}
        if asked["what"] == "prepare":
            prepare(folder)
        else:
            found |= _epoch(folder, loader, asked)
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def _epoch(folder: Path, loader: Loader, asked: dict[str, Any]) -> dict[str, Any]:
    batches = loader(folder, asked["epoch"], asked["batch_size"], asked["workers"])
    begun, cpu = time.perf_counter(), _cpu_seconds()
    rows, total, shape = 0, 0, ()
    for batch in batches:
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        rows, total, shape = rows + len(y), total + int(y.sum()), tuple(x.shape[1:])
    seconds = time.perf_counter() - begun
    del batches  # ends its workers, so that their time counts
    return {
        "seconds": seconds,
        "cpu": _cpu_seconds() - cpu,
        "rows": rows,
        "sum": total,
        "shape": shape,
    }


def arrays(folder: Path) -> tuple[Any, Any]:
    """The rows and labels, mapped."""
    return tuple(np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))


def _cpu_seconds() -> float:
    """Of this process, and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
