"""One client that commits through a service as fast as it can.

    python benchmarks/api_cases/committer.py URL NUMBER SECONDS FOLDER

waits for a line on its standard input, then prints how many commits were acknowledged.
"""

from __future__ import annotations

import os
import sys
import time

from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.trees import file_entry
from tensorrepo.repo.objects.envelope import Kind


def main() -> None:
    """Commit files of 1 KiB, each under a path of its own, to one branch."""
    url, number, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    options = {"token": os.environ["TENSORREPO_TOKEN"]}
    repository = open_repository(open_http(url, options, environment={}), drivers={})
    repository.log.refresh()
    print("ready", flush=True)
    sys.stdin.readline()
    done, stop_at = 0, time.monotonic() + seconds
    while time.monotonic() < stop_at:
        transaction = begin(repository, "main", pin=repository.log.latest)
        link = transaction.objects.put(Kind.BLOB, os.urandom(1024))
        transaction.stage(f"{number}/{done % 100}", file_entry(link))
        transaction.commit("change", author="Bench <bench@example.org>")
        done += 1
    print(done, flush=True)


if __name__ == "__main__":
    main()
