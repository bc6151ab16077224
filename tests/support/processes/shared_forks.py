"""One process for all workers of pytest-xdist to fork processes from, see `forked`.

Each worker's own imports torch and the SDK, five seconds of a processor. The controller begins one
while workers collect, with the environment that tests have; they are told where it listens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.support.processes.forked import FORKED

NAME = "shared-forks"


def begin_server(log: Path) -> str:
    """Begin it, where it has not begun; gives its address. It ends with this process.

    Args:
        log: file for what forks print that do not say where to.
    """
    assert FORKED.get_start_method() == "forkserver", "and what it imports has been told"
    with _printing_to(log):
        forkserver.ensure_running()
    address: str = _server()._forkserver_address
    return address


def use_server(address: str) -> None:
    """Let this process fork from it. It is nobody's child here: nobody waits for it."""
    server = _server()
    server._forkserver_address = address
    server._forkserver_alive_fd = os.dup(0)  # passed to forks as what keeps a server of theirs
    server.ensure_running = lambda: None


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """What is started inherits these files; a worker's are those that pytest reads."""
    kept = [os.dup(file) for file in (1, 2)]
    with log.open("ab") as written:
        for file in (1, 2):
            os.dup2(written.fileno(), file)
    try:
        yield
    finally:
        for file, ours in zip((1, 2), kept, strict=True):
            os.dup2(ours, file)
            os.close(ours)


def _server() -> Any:
    return forkserver._forkserver
