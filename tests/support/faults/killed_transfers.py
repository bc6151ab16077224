"""A process that forks transfers and kills them, until one comes to its end.

Run as ``python -m tests.support.faults.killed_transfers FOLDER VERB KILLS SEED``: a process of its
own, because forking one that has threads is not safe. Prints how often it killed, and how many
bytes of the origin were read in all, as JSON. With ``ENDPOINT COUNTS`` behind it the far side is
``s3://bucket/far`` behind a `MeteredLink`, and it is that which counts; kills come evenly spread
over ``WHOLE`` bytes.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import TypeVar

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.registry import open_backend
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
LIMITED = RateLimit(BYTES_PER_SECOND)


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


@dataclass(frozen=True)
class Attempts:
    """Transfers of one kind: `endpoint` is that of the far side, "" where there is no link."""

    folder: Path
    verb: str
    shared: mmap.mmap
    endpoint: str = ""

    def moved_bytes(self) -> int:
        """What was read of the origin, or crossed the link, in the direction of the transfer."""
        at = COUNT.size if self.endpoint and self.verb == "push" else 0
        return int(COUNT.unpack_from(self.shared, at)[0])

    def run(self) -> None:
        """One attempt."""
        if not self.endpoint:
            source = MeteredBackend(LocalBackend(self.folder / "origin"), self.shared)
            transfer(self.verb, source, LocalBackend(self.folder / "here"), self.folder, LIMITED)
            return
        access = {"endpoint": self.endpoint, "key": "any", "secret": "any", "region": "us-east-1"}
        far = open_backend("s3://bucket/far", access, environment={})
        near = LocalBackend(self.folder / ("here" if self.verb == "clone" else "origin"))
        sides = (far, near) if self.verb == "clone" else (near, far)
        transfer(self.verb, *sides, self.folder, RateLimit(None))


def transfer(verb: str, source: Backend, target: Backend, folder: Path, limit: RateLimit) -> None:
    origin, here = open_repository(source, drivers={}), open_repository(target, drivers={})
    options = TransferOptions(ADA, folder / "parts", limit)
    if verb == "clone":
        clone(HistorySource.of(origin), here, "origin", options)
    else:
        push(origin, here, ["main"], options)


def killed(attempts: Attempts, is_time: Callable[[float], bool] | None) -> bool:
    """Start a transfer and kill it when it is time; whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        try:
            attempts.run()
            os._exit(0)
        except BaseException:  # noqa: BLE001  told by the exit code, too
            traceback.print_exc()
        finally:
            os._exit(1)  # only reached by failing
    began, ended, status = time.monotonic(), 0, 0
    while is_time is not None and not ended and not is_time(time.monotonic() - began):
        time.sleep(0.001)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        if is_time is not None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed"
    return os.WIFSIGNALED(status)


def main(folder: str, verb: str, kills: str, seed: str, *link: str) -> None:
    chance, count = random.Random(int(seed)), int(kills)
    if link:
        endpoint, counts, whole = link
        with open(counts, "r+b") as file:
            attempts = Attempts(Path(folder), verb, mmap.mmap(file.fileno(), 0), endpoint)
        bounds = [int(whole) * number // (count + 1) for number in range(1, count + 1)]
        moments = [lambda _, bound=bound: attempts.moved_bytes() >= bound for bound in bounds]
    else:
        attempts = Attempts(Path(folder), verb, mmap.mmap(-1, COUNT.size))
        waits = [chance.uniform(0.01, LONGEST_SECONDS) for _ in range(count)]
        moments = [lambda now, wait=wait: now >= wait for wait in waits]
    done = sum(killed(attempts, moment) for moment in moments)
    killed(attempts, None)
    sys.stdout.write(json.dumps({"kills": done, "read_bytes": attempts.moved_bytes()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
