"""The client of `clone`: what one process gets out of the link, and what a clone makes of it.

``python transfer_clone.py ENDPOINT HOW FOLDER`` clones ``s3://bucket/team`` into FOLDER and prints
a line of JSON; with HOW ``plain`` its packs are fetched, and dropped, in pieces of 8 MiB by 8
threads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorrepo.repo.backends.base import StoredKey
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes.repository import LocalState, create_repository, open_repository
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions

PIECE_BYTES = 8 << 20


def main() -> None:
    endpoint, how, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    access = {"endpoint": endpoint, "key": "any", "secret": "any", "region": "us-east-1"}
    backend = open_backend("s3://bucket/team", access, environment=os.environ)
    stored = list(backend.list("objects/"))
    began, cpu = time.perf_counter(), time.process_time()
    if how == "plain":
        pieces = [(one.key, start, one) for one in stored for start in starts(one)]
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(
                lambda piece: backend.read_range(
                    piece[0], piece[1], min(piece[1] + PIECE_BYTES, piece[2].bytes)
                ),
                pieces,
            ):
                pass
    else:
        here = create_repository(LocalBackend(folder), drivers={}, local=LocalState())
        source = HistorySource.of(open_repository(backend, drivers={}))
        options = TransferOptions("Bench <bench@example.org>", folder / "parts")
        clone(source, here, "origin", options)
    told = {
        "bytes": sum(one.bytes for one in stored),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": peak_mib(),
    }
    print(json.dumps(told))


def peak_mib() -> int:
    """What this program took at most; `ru_maxrss` knows the one that forked it, too."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) >> 10


def starts(one: StoredKey) -> range:
    return range(0, one.bytes, PIECE_BYTES)


if __name__ == "__main__":
    main()
