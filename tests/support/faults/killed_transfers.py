"""A process that forks transfers and kills them, until one comes to its end.

Run as ``python -m tests.support.faults.killed_transfers FOLDER VERB KILLS SEED``: a process of its
own, because forking one that has threads is not safe. Prints how often it killed, and how many
bytes of the origin were read in all, as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import TypeVar

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.transfer.exchange import clone, push
from tensorrepo.repo.transfer.pace import RateLimit
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.repositories import ADA
from tests.support.faults.backends import WrappedBackend

T = TypeVar("T")
COUNT = Struct("<Q")
BYTES_PER_SECOND = 50e6
LONGEST_SECONDS = 0.2


class MeteredBackend(WrappedBackend):
    """Adds up the bytes of values that are read, in memory that survives the process."""

    def __init__(self, inner: Backend, shared: mmap.mmap) -> None:
        super().__init__(inner)
        self.shared = shared

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        result = work()
        if isinstance(result, (bytes, bytearray, memoryview)):
            (before,) = COUNT.unpack_from(self.shared)
            COUNT.pack_into(self.shared, 0, before + len(result))
        return result


def transfer(folder: Path, verb: str, shared: mmap.mmap) -> None:
    """One attempt."""
    source = MeteredBackend(LocalBackend(folder / "origin"), shared)
    origin = open_repository(source, drivers={})
    here = open_repository(LocalBackend(folder / "here"), drivers={})
    options = TransferOptions(ADA, folder / "parts", RateLimit(BYTES_PER_SECOND))
    if verb == "clone":
        clone(HistorySource.of(origin), here, "origin", options)
    else:
        push(origin, here, ["main"], options)


def killed(folder: Path, verb: str, shared: mmap.mmap, after_seconds: float | None) -> bool:
    """Start a transfer and kill it; whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        try:
            transfer(folder, verb, shared)
            os._exit(0)
        finally:
            os._exit(1)  # only reached by failing
    if after_seconds is not None:
        time.sleep(after_seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed"
    return os.WIFSIGNALED(status)


def main(folder: str, verb: str, kills: str, seed: str) -> None:
    chance, shared = random.Random(int(seed)), mmap.mmap(-1, COUNT.size)
    done = sum(
        killed(Path(folder), verb, shared, chance.uniform(0.01, LONGEST_SECONDS))
        for _ in range(int(kills))
    )
    killed(Path(folder), verb, shared, None)
    (read_bytes,) = COUNT.unpack_from(shared)
    sys.stdout.write(json.dumps({"kills": done, "read_bytes": read_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
