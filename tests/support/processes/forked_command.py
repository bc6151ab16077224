"""Commands that are forked instead of started, and can be spoken to while they run.

For a test they are what `subprocess.Popen` is: they have pipes, are sent signals, are waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import current_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from tests.support.processes.forked import FORKED
from tests.support.processes.prepared import run_command


class ForkedProcess:
    """A process forked to call `target`, whose output can be read."""

    def __init__(
        self,
        target: Callable[..., int | None],
        *words: object,
        folder: Path,
        environment: Mapping[str, str],
        stderr: Path | None = None,
        session: bool = False,
        takes_input: bool = False,
    ) -> None:
        """Begin.

        Args:
            target: what the process does; gives its exit code.
            words: what it is called with.
            folder: where the process works.
            environment: all of its environment.
            stderr: a file for what it says there; None: a pipe.
            session: whether it begins a session of its own, as a terminal's shell.
            takes_input: whether its standard input is a pipe; otherwise it reads nothing.
        """
        pipes = [FORKED.Pipe(duplex=False) for _ in range(1 if stderr else 2)]
        typed = FORKED.Pipe(duplex=False) if takes_input else None
        ends = [end for _, end in pipes] + ([typed[0]] if typed else [])
        about = (folder, dict(environment), stderr, session, takes_input)
        # As a daemon it ends with this process, where a test left it behind.
        self._process = FORKED.Process(target=_be, args=(ends, about, target, words), daemon=True)
        self._process.start()
        for end in ends:
            end.close()
        files = [_as_file(reader) for reader, _ in pipes]
        self.stdin: TextIO | None = _as_file(typed[1], "w") if typed else None
        self.stdout: TextIO = files[0]
        self.stderr: TextIO | None = None if stderr else files[1]
        assert self._process.pid is not None, "it was started"
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()
        self._close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; gives what it had still to say."""
        files = [file for file in (self.stdout, self.stderr) if file and not file.closed]
        with ThreadPoolExecutor(len(files) or 1) as threads:
            read = {file: threads.submit(file.read) for file in files}
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # else its pipes never end
                raise
        told = [read[file].result() if file in read else "" for file in (self.stdout, self.stderr)]
        self._close()
        return told[0], told[1]

    def _close(self) -> None:
        if self.stdin is not None:
            self.stdin.close()
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()


def forked_command(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    code: str = "",
    **options: Any,
) -> ForkedProcess:
    """A `tensorrepo` command; `code` runs before it, as Python. Options are a `ForkedProcess`'s."""
    told = (list(words), folder, dict(environment), code)
    return ForkedProcess(run_command, *told, folder=folder, environment=environment, **options)


def _as_file(end: Connection, mode: Literal["r", "w"] = "r") -> TextIO:
    with end:
        return os.fdopen(os.dup(end.fileno()), mode)


def _be(
    ends: Sequence[Connection],
    about: tuple[Path, Mapping[str, str], Path | None, bool, bool],
    target: Callable[..., int | None],
    words: Sequence[Any],
) -> None:
    folder, environment, stderr, session, takes_input = about
    if session:
        os.setsid()
    # It goes on where its daemon forked, but is a command, which may have children.
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # What it reads comes last, if anything does.
    for ours, end in zip([*range(1, len(ends) + 1 - takes_input), 0], ends, strict=False):
        os.dup2(end.fileno(), ours)
        end.close()
    if not takes_input:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if stderr is not None:
        file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 2)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Whoever reads the other end waits for lines.
    with open(0) as sys.stdin, open(1, "w", 1) as sys.stdout, open(2, "w", 1) as sys.stderr:
        ended = target(*words)
    os._exit(ended or 0)
