"""Opens a dataset in a process of its own: a line of JSON with milliseconds and memory.

python million_open.py REPOSITORY DATASET ROW
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import numpy as np

import tensorrepo
from tensorrepo.formats.dataset.read import column_index


def main() -> None:
    place, name, row = sys.argv[1], sys.argv[2], int(sys.argv[3])
    open_repository = tensorrepo.open  # its modules come when it is first named
    imported_mib = _peak_mib()
    begun = time.perf_counter()
    dataset = open_repository(place).dataset(name)
    assert row < len(dataset)
    opened = time.perf_counter()
    index = column_index(dataset.stored, "label")
    page = int(index.page_of(np.array([row]))[0])
    assert index.first_row[page] <= row < index.first_row[page + 1]
    found = time.perf_counter()
    answer = {
        "open_ms": (opened - begun) * 1e3,
        "place_ms": (found - opened) * 1e3,
        "ready_ms": (found - begun) * 1e3,
        "rss_mib": _peak_mib(),
        "rss_imported_mib": imported_mib,
    }
    print(json.dumps(answer))


def _peak_mib() -> float:
    """Not by getrusage, which counts what the process was before it became this one."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux says so"
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
