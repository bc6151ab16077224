"""One client that commits through a service as fast as it can.

    python benchmarks/api_cases/committer.py URL NUMBER SECONDS [empty]

waits for a line on its standard input, then prints how many commits were acknowledged, and the
seconds of the processor that they took here. With ``empty`` it sends as many bytes as a commit has
to `empty_answers.py`, by the same calls: more commits than that no client makes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from tensorrepo.repo.backends.service import ServiceBackend, open_http
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.trees import file_entry
from tensorrepo.repo.objects.envelope import Kind

MESSAGE_BYTES = 1600


def committing(url: str, number: str) -> Callable[[int], object]:
    """What makes one commit: a file of 1 KiB under a path of its own, to the one branch."""
    options = {"token": os.environ["TENSORREPO_TOKEN"]}
    repository = open_repository(open_http(url, options, environment={}), drivers={})
    repository.log.refresh()

    def commit(done: int) -> object:
        transaction = begin(repository, "main", pin=repository.log.latest)
        link = transaction.objects.put(Kind.BLOB, os.urandom(1024))
        transaction.stage(f"{number}/{done % 100}", file_entry(link))
        return transaction.commit("change", author="Bench <bench@example.org>")

    return commit


def asking(url: str) -> Callable[[int], object]:
    """What makes one call that is answered at once."""
    backend = ServiceBackend(url, url, os.environ["TENSORREPO_TOKEN"], {})
    return lambda _: backend.call("POST", "/append", content=os.urandom(MESSAGE_BYTES), tries=1)


def main() -> None:
    """Do it until the time is over."""
    url, number, seconds, *empty = sys.argv[1:]
    work = asking(url) if empty else committing(url, number)
    work(0)
    print("ready", flush=True)
    sys.stdin.readline()
    done, began, stop_at = 0, time.process_time(), time.monotonic() + float(seconds)
    while time.monotonic() < stop_at:
        done += 1
        work(done)
    print(done, time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
