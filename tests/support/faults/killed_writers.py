"""A process that forks writers and kills them.

Run as ``python -m tests.support.faults.killed_writers FOLDER ROUNDS SEED``:
a process of its own, because
forking one that has threads is not safe. Prints what each writer said before it died, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from itertools import count
from pathlib import Path

from tensorrepo.repo.changes.repository import LocalState, open_repository
from tests.support.builders.repositories import commit_files
from tests.support.servers.sql_logs import backend_at

LARGE = bytes(1_200_000)  # synced by a thread of its own
LONGEST_SECONDS = 0.08


def write_for_ever(folder: Path, number: int, pipe: int) -> None:
    """Commit, tell the digest, and so on."""
    backend = backend_at(folder)
    local = LocalState(pending=folder / "pending" / str(number))
    repository = open_repository(backend, drivers={}, local=local)
    os.write(pipe, b"ready\n")
    for at in count():
        files: dict[str, bytes | None] = {
            f"files/{number}/{at}-{name}": b"%d %d %s" % (number, at, name.encode())
            for name in ("a", "b", "c")
        }
        if at % 3 == 2:
            files[f"files/{number}/{at}-large"] = LARGE + b"%d %d" % (number, at)
        made = commit_files(repository, files, message=f"{number} {at}")
        os.write(pipe, made.digest.encode() + b"\n")


def killed(folder: Path, number: int, chance: random.Random) -> list[str]:
    """Start a writer, kill it at a random moment; the commits that it called done."""
    reading, writing = os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            os.close(reading)
            write_for_ever(folder, number, writing)
        finally:
            os._exit(1)  # only reached by failing
    os.close(writing)
    with os.fdopen(reading) as said:
        said.readline()
        first = [said.readline()] if number == 0 else []  # one of them shall have called one done
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WIFSIGNALED(status), f"writer {number} failed before it was killed"
        return [line.strip() for line in [*first, *said] if line.endswith("\n")]


def main(folder: str, rounds: str, seed: str) -> None:
    chance = random.Random(int(seed))
    told = [killed(Path(folder), number, chance) for number in range(int(rounds))]
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
