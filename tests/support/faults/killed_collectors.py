"""Collectors that are killed or interrupted at random instants, beside a writer that goes on.

Run as ``python -m tests.support.faults.killed_collectors FOLDER ROUNDS SEED``: a process of its
own, because forking one that has threads is not safe. Prints how the collectors ended, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import LocalState, open_repository
from tensorrepo.repo.errors import CommitExpired, CommitOutcomeUnknown, NotFoundError
from tests.support.faults.collected_writers import CollectedWriter, collect

LONGEST_SECONDS = 0.06
INTERRUPTED = 3  # exit code of a collector


def collect_for_ever(folder: Path, pipe: int) -> None:
    """Collect in a loop, each time by somebody who remembers nothing."""
    backend = LocalBackend(folder / "store")
    os.write(pipe, b"ready\n")
    while True:
        try:
            collect(backend)
        except CommitOutcomeUnknown as unknown:
            if isinstance(unknown.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
        except (NotFoundError, CommitExpired):  # another collection was faster, see `collect_until`
            continue


def ended(folder: Path, number: int, chance: random.Random) -> str:
    """Start a collector and end it at a random moment."""
    reading, writing = os.pipe()
    collector = os.fork()
    if collector == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            os.close(reading)
            collect_for_ever(folder, writing)
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        except BaseException:  # noqa: BLE001  whatever it is, the parent's caller shows it
            traceback.print_exc()
        finally:
            os._exit(1)  # only reached by failing
    os.close(writing)
    with os.fdopen(reading) as said:
        said.readline()
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        os.kill(collector, signal.SIGINT if number % 3 == 2 else signal.SIGKILL)
        _, status = os.waitpid(collector, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "interrupted" if os.WEXITSTATUS(status) == INTERRUPTED else "failed"


def main(folder: str, rounds: str, seed: str) -> None:
    place, chance = Path(folder), random.Random(int(seed))
    local = LocalState(pending=place / "pending")
    repository = open_repository(LocalBackend(place / "store"), drivers={}, local=local)
    writer = CollectedWriter(repository, 0, random.Random(f"writer {seed}"))
    told: Counter[str] = Counter()
    for number in range(int(rounds)):
        for _ in range(3):
            writer.step()
        told[ended(place, number, chance)] += 1
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
