"""Writers, pushes, fetches and collections at once, and somebody who kills them.

Run as ``python -m tests.support.faults.killed_crowd FOLDER KILLS SEED MODE``: a process of its own,
because forking one that has threads is not safe. Two to eight writers commit to FOLDER/store, while
others collect it without grace, push to it from FOLDER/here and fetch from it into FOLDER/copy.
Prints what each called done, as JSON. MODE ``early`` calls things done before they are.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.transfer.exchange import fetch, push
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.repositories import ADA, commit_files

LONGEST_SECONDS = 0.1  # between two kills
RULES = CollectionRules(grace_seconds=0, retention_seconds=0)
OTHERS = ("collect", "push", "fetch")
Tell = Callable[[str], None]


def opened(folder: Path) -> RepositoryCore:
    return open_repository(LocalBackend(folder), drivers={})


def write(place: Path, number: int, tell: Tell, *, early: bool) -> None:
    """Commit, tell so, and so on; some content is what others write and drop."""
    repository, chance = opened(place / "store"), random.Random(number)
    for at in count():
        files: dict[str, bytes | None] = {
            f"files/{number}/{at}": b"%d %d" % (number, at),
            f"files/{number % 8}/shared": b"%d" % chance.randrange(6) * 300,
        }
        message = f"{number} {at}"
        if early:
            tell(message)
        commit_files(repository, files, message=message)
        tell(message)


def collect(place: Path, _: int, tell: Tell, *, early: bool) -> None:
    for at in count():
        folder = place / ("copy" if early or at % 4 == 3 else "store")
        collect_garbage(opened(folder), actor=ADA, rules=RULES)
        tell("collected")


def send(place: Path, number: int, tell: Tell, *, early: bool) -> None:
    options = TransferOptions(ADA, place / "parts")
    for at in count():
        here, message = opened(place / "here"), f"push {number} {at}"
        commit_files(here, {"files/pushed": b"%d %d" % (number, at)}, message=message)
        if early:
            tell(message)
        push(here, opened(place / "store"), ["main:pushed"], options)
        tell(message)


def bring(place: Path, _: int, tell: Tell, *, early: bool) -> None:  # noqa: ARG001
    for _number in count():
        options = TransferOptions(ADA, place / "parts")
        fetch(HistorySource.of(opened(place / "store")), opened(place / "copy"), "origin", options)
        tell("fetched")


WORKS = {"write": write, "collect": collect, "push": send, "fetch": bring}


@dataclass
class Crowd:
    """Who lives, and what those who died had said."""

    place: Path
    early: bool
    living: dict[int, tuple[str, int]] = field(default_factory=dict)  # role and pipe, by process
    told: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    born: int = 0

    def bear(self, role: str) -> None:
        """Fork one more."""
        self.born += 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                self._live(role, writing)
            finally:
                os._exit(1)
        os.close(writing)
        self.living[child] = role, reading

    def _live(self, role: str, pipe: int) -> None:
        while True:
            try:
                work = WORKS[role]
                work(
                    self.place,
                    self.born,
                    lambda text: os.write(pipe, text.encode() + b"\n") and None,
                    early=self.early,
                )
            except (ConflictError, CommitExpired, NotFoundError) as refused:
                if "object" in str(refused) and role == "write":
                    os.write(pipe, f"failed: {refused}".encode() + b"\n")
                self.born += 1_000_000  # what it would repeat has been done, perhaps
            except BaseException:  # noqa: BLE001  told by the test
                told = traceback.format_exc().replace("\n", " | ")
                os.write(pipe, f"failed: {told}".encode()[:4000] + b"\n")
                return

    def kill(self, process: int) -> str:
        """Kill one, and hear what it had said; gives its role."""
        role, pipe = self.living.pop(process)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        with os.fdopen(pipe) as said:
            lines = [line.strip() for line in said if line.endswith("\n")]
        self.failed += [line for line in lines if line.startswith("failed")]
        self.told += [line for line in lines if not line.startswith("failed")]
        return role


def main(folder: str, kills: str, seed: str, mode: str) -> None:
    chance, crowd = random.Random(int(seed)), Crowd(Path(folder), mode == "early")
    for number in range(int(kills)):
        if number % 50 == 0:
            writers = chance.randrange(2, 9)
        roles = Counter(role for role, _ in crowd.living.values())
        for role in ["write"] * (writers - roles["write"]) + [
            one for one in OTHERS if not roles[one]
        ]:
            crowd.bear(role)
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        crowd.kill(chance.choice(sorted(crowd.living)))
    for process in sorted(crowd.living):
        crowd.kill(process)
    sys.stdout.write(json.dumps({"told": crowd.told, "failed": crowd.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
