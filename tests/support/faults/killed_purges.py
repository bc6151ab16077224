"""Purges that are killed at random instants, each of a copy of one store.

Run as ``python -m tests.support.faults.killed_purges FOLDER ROUNDS SEED``: a process of its own,
because forking one that has threads is not safe. Copies ``FOLDER/store`` for each round, and prints
how the purges ended, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
from tensorrepo.formats.purging import PurgeRequest, purge_history
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.gc_collect import collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.repositories import ADA

DRIVERS: Any = {Kind.DATASET: DatasetMergeDriver(), Kind.MODEL: ModelMergeDriver()}
ROWS = PurgeRequest(("datasets/people",), where="age = 3")
TENSOR = PurgeRequest(("models/net",), tensors=("w",))
LONGEST_SECONDS = 0.3


def opened(backend: Backend) -> RepositoryCore:
    return open_repository(backend, drivers=DRIVERS)


def purge(backend: Backend, request: PurgeRequest) -> None:
    core = opened(backend)
    purge_history(core, request, actor=ADA, reason="request 17")
    core.objects.forget(core.log.refresh().state.purges)
    collect_garbage(core, actor=ADA)


def killed(store: Path, request: PurgeRequest, after_seconds: float) -> str:
    """Start a purge, kill it; how it ended."""
    reading, writing = os.pipe()
    purging = os.fork()
    if purging == 0:
        try:
            os.close(reading)
            os.write(writing, b"ready\n")
            purge(LocalBackend(store), request)
            os._exit(0)
        except BaseException:  # noqa: BLE001  whatever it is, the parent's caller shows it
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as said:
        said.readline()
        time.sleep(after_seconds)
        os.kill(purging, signal.SIGKILL)
        _, status = os.waitpid(purging, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "failed" if os.WEXITSTATUS(status) else "done"


def main(folder: str, rounds: str, seed: str) -> None:
    place, chance = Path(folder), random.Random(int(seed))
    told: Counter[str] = Counter()
    for number in range(int(rounds)):
        store = place / str(number)
        shutil.copytree(place / "store", store)
        request = (ROWS, TENSOR)[number % 2]
        told[killed(store, request, chance.uniform(0, LONGEST_SECONDS))] += 1
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
