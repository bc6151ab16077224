"""Workers of pytest-xdist that are forked from one process that has collected, ``--fork-workers``.

Each worker collects all tests. What that takes is, for the most part, to import their modules, the
product and its libraries: twenty seconds of a processor, four times. Here one process does so, and
is forked where execnet would start an interpreter: a worker finds all modules, and makes the items.

pytest-xdist knows nothing of it. The "interpreter" that it starts for a worker is a small program
(`_CLIENT`) that hands its standard streams to the process that has collected, and ends when its
fork does; so a worker that dies is missed, and another takes its place, as always.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import execnet
import numpy as np
import pytest

from tests.support.processes.forked_python import be_python

# Standard streams are closed here once they are handed on: else nobody would see that the worker
# closed them. The last word is the code by which execnet makes a worker of an interpreter.
_CLIENT = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
socket.send_fds(server, [sys.argv[-1].encode()], [0, 1, 2])
os.close(0), os.close(1)
status = server.recv(1)
os._exit(status[0] if status else 1)
"""
_CODE_BYTES = 1 << 16
# What tests import when they run, in nearly every worker; neither reads its settings then, nor
# starts a thread.
_LIBRARIES = ("pandas", "sklearn.datasets")


class ForkedWorkers:
    """A plugin of pytest: its session's workers are forks of one process that collects first."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments` are those of the session, which say what is collected."""
        self._arguments = arguments
        self._held = contextlib.ExitStack()

    @pytest.hookimpl
    def pytest_xdist_setupnodes(self, specs: Sequence[execnet.XSpec]) -> None:
        """Let execnet start clients of the process that collects; they wait until it has."""
        folder = Path(self._held.enter_context(TemporaryDirectory(prefix="workers-")))
        (folder / "client.py").write_text(_CLIENT)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen()
            said = [str(listener.fileno()), *self._arguments]
            server = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve()", *said],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )
        self._held.callback(server.wait)
        assert server.stdin is not None, "it is a pipe"
        self._held.callback(server.stdin.close)  # which is where it ends
        client = [sys.executable, "-I", "-S", str(folder / "client.py"), str(folder / "socket")]
        for spec in specs:
            spec.python = shlex.join(client)

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """Let that process end, which outlives nobody who started it."""
        self._held.close()


def serve() -> None:
    """Collect by the arguments of this process, and fork for each client until its input ends."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    # What cannot be collected each worker finds again, and tells.
    pytest.main([*sys.argv[2:], "-n", "0", "--collect-only", "-qq"])
    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.freeze()  # else a collection in a fork would touch, and so copy, all that it shares
    workers = []
    while 0 not in select.select([0, listener], [], [])[0]:
        connection, _ = listener.accept()
        workers.append(worker := os.fork())
        if not worker:
            listener.close()
            os._exit(_work(connection))
        connection.close()
    for worker in workers:  # their clients have ended, or xdist has given them up
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    os._exit(0)  # nothing is left to be done, and much to be torn down


def _work(connection: socket.socket) -> int:
    """Be the interpreter that a client is taken for."""
    code, streams, _, _ = socket.recv_fds(connection, _CODE_BYTES, 3)
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    np.random.seed()  # noqa: NPY002  else all workers would draw the same; `random` sees to it itself
    status = be_python("-c", code.decode())
    connection.send(bytes([status]))
    return status
