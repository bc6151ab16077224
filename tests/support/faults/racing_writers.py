"""One of several processes that commit to one repository at once.

Run as ``python -m tests.support.faults.racing_writers FOLDER NUMBER COMMITS``.
Says "ready", waits for a
line, commits paths of its own, and prints as JSON how often each commit was tried, and the seconds
that they took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tensorrepo.repo.changes.repository import open_repository
from tests.support.builders.repositories import commit_files
from tests.support.servers.sql_logs import backend_at


def main(folder: str, number: str, commits: str) -> None:
    repository = open_repository(backend_at(Path(folder)), drivers={})
    repository.log.refresh()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began = time.monotonic()
    attempts = [
        commit_files(repository, {f"files/{number}/{at}": f"{number} {at}".encode()}).attempts
        for at in range(int(commits))
    ]
    sys.stdout.write(json.dumps([attempts, time.monotonic() - began]))


if __name__ == "__main__":
    main(*sys.argv[1:])
