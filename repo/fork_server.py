"""Fork servers: a process without threads beside this one, which forks children in milliseconds.

What children need is loaded there once, and nothing that this process holds is there: no files, no
environment, no memory. Each process that asks starts a server of its own, with its first request,
and ends it when it ends itself. A request is one message with files: what the server does with it
is its own business, as is what it starts.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import StorageError

_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class ForkServerProgram:
    """How a server is started.

    Attributes:
        code: its program. Its arguments are the folders of modules of this process, as a JSON
            array, then `arguments`, then the number of the socket by which requests come; that one
            ends with this process.
        arguments: what is told to the program.
        options: options of Python, next to `-I`.
        environment: all of its environment.
        stdout: as of `subprocess`, and so is `stderr`.
        stderr: where what it says goes.
    """

    code: str
    environment: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stdout: int | None = None
    stderr: int | None = None


class ForkServer:
    """One server, of the process that started it."""

    def __init__(self, program: ForkServerProgram) -> None:
        # Isolated, it looks for modules where Python is installed, and not where its environment,
        # the folder it stands in or a script says. What this process found elsewhere comes last.
        folders = json.dumps([each for each in sys.path if os.path.isabs(each)])
        with ExitStack() as begun:  # what fails in the middle leaves no socket open
            self._requests, far = map(begun.enter_context, socket.socketpair())
            command = [sys.executable, "-I", *program.options, "-c", program.code]
            command += [folders, *program.arguments, str(far.fileno())]
            self.process = subprocess.Popen(  # noqa: S603 - nothing of it is a file's or a query's
                command,
                stdin=subprocess.DEVNULL,
                stdout=program.stdout,
                stderr=program.stderr,
                pass_fds=[far.fileno()],
                start_new_session=True,
                env=program.environment,
                cwd="/",
            )
            begun.pop_all()
            far.close()
        self._owner = os.getpid()
        atexit.register(self.close)

    def request(self, message: bytes, files: Sequence[int]) -> None:
        """Send a request; copies of `files` go with it. Raises OSError when the server is gone."""
        socket.send_fds(self._requests, [message], files)

    def close(self) -> None:
        """End it, where this process started it."""
        self._requests.close()
        if self._owner == os.getpid() and self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


class ForkServers:
    """The servers of a program: one for each process, as one that was forked starts its own."""

    def __init__(self, program: ForkServerProgram) -> None:
        self.program = program
        self._by_process: dict[int, ForkServer] = {}
        self._starting = Lock()

    def server(self) -> ForkServer:
        """The server of this process, which is started where there is none, or none any more.

        Raises:
            StorageError: the machine has no files or processes to give.
        """
        with self._starting:
            server = self._by_process.get(os.getpid())
            if server is None or server.process.poll() is not None:
                with scarcity_told("a process of its own"):
                    server = ForkServer(self.program)
                self._by_process[os.getpid()] = server
        return server


@contextmanager
def scarcity_told(what: str) -> Iterator[None]:
    """Say in our words that the machine gives no more files or processes, for `what`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SCARCE:
            raise
        raise no_room(what, error.strerror) from error


def no_room(what: str, why: str | None) -> StorageError:
    """The error of a machine that gives no more."""
    return StorageError(
        f"this machine has no room for {what} ({why}): nothing was done. Try again when less goes "
        "on at once; if it lasts, raise `ulimit -n` and `ulimit -u`.",
        transient=True,
        busy=True,
    )
