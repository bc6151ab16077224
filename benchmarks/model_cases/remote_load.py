"""The reader of `remote`: loads a model in a process of its own, before which nothing was read.

``python remote_load.py ENDPOINT`` loads the model ``m`` of ``s3://bucket/ours`` into memory and
prints a line of JSON. XDG_* must name empty folders.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

import tensorrepo
from tensorrepo.repo.store import ObjectStore

if TYPE_CHECKING:
    from tensorrepo.repo.ids import Buffer
    from tensorrepo.repo.objects import Link


def main() -> None:
    access = {"endpoint": sys.argv[1], "key": "any", "secret": "any", "region": "us-east-1"}
    opening = tensorrepo.open  # its import takes a second and is not what is timed
    requests = counted_ranges()
    began = time.perf_counter()
    model = opening("s3://bucket/ours", storage_options=access).model("m")
    opened = time.perf_counter()
    before, cpu = len(requests), time.process_time()
    tensors = model.load()
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    assert all(isinstance(each, np.ndarray) for each in tensors.values())
    told = {
        "open_seconds": opened - began,
        "seconds": ended - opened,
        "cpu_seconds": cpu,
        "requests": len(requests) - before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(told))


def counted_ranges() -> list[int]:
    """Collects the bytes of every range that is asked for."""
    found: list[int] = []
    whole = ObjectStore.read_range

    def ranged(self: ObjectStore, link: Link, start: int, stop: int) -> Buffer:
        found.append(stop - start)
        return whole(self, link, start, stop)

    ObjectStore.read_range = ranged  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
