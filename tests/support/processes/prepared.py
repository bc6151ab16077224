"""Prepared `tensorrepo` commands: processes that are forked instead of started.

A fork of an interpreter that has imported the command line is the command. For shell scripts
a small program stands on the PATH, which passes its arguments, folder, environment and open
files to the process that forks.
"""

from __future__ import annotations

import marshal
import os
import runpy
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import current_process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from tensorrepo.cli.main import main
from tests.support.processes.forked import FORKED

_MOST_BYTES = 1 << 20

# Of C's modules alone: those of Python's would take longer to load than all that it does.
CALLER = """#!{python} -ISE
import _socket, marshal, posix, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({address!r})
call = marshal.dumps((sys.argv[1:], posix.getcwd(), dict(posix.environ)))
files = b"".join(each.to_bytes(4, sys.byteorder) for each in range(3))
sent = server.sendmsg(
    [len(call).to_bytes(4, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
)
while call:
    call = call[server.send(call):]
posix._exit((server.recv(1) or b"\\1")[0])
"""


@contextmanager
def prepared_commands(folder: Path) -> Iterator[Path]:
    """A folder whose `tensorrepo` is answered at once, to stand first on a PATH."""
    folder.mkdir()
    address = folder / "calls"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        process = FORKED.Process(target=_serve, args=(server,), daemon=True)
        process.start()
        caller = folder / "tensorrepo"
        caller.write_text(CALLER.format(python=sys.executable, address=str(address)))
        caller.chmod(caller.stat().st_mode | stat.S_IXUSR)
        try:
            yield folder
        finally:
            process.terminate()
            process.join()


def _serve(server: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for forks
    while True:
        caller, _ = server.accept()
        with caller:
            if not os.fork():
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # It goes on where its daemon forked, but is a command, which may have children.
                current_process()._config["daemon"] = False  # type: ignore[attr-defined]
                _say_exit_code(caller)
                os._exit(_answer(caller))


def _say_exit_code(caller: socket.socket) -> None:
    """Tell the caller what this process ends with; one that ends without a word has failed."""
    process, leave = os.getpid(), os._exit

    def said(code: int) -> NoReturn:
        if os.getpid() == process:
            caller.sendall(bytes([code % 256]))
        leave(code)

    os._exit = said


def _answer(caller: socket.socket) -> int:
    """Be a command that a shell called."""
    head, files, *_ = socket.recv_fds(caller, 4, 3)
    sent = b""
    while len(sent) < int.from_bytes(head, "little"):
        sent += caller.recv(_MOST_BYTES)
    words, folder, environment = marshal.loads(sent)
    for ours, theirs in enumerate(files):
        os.dup2(theirs, ours)
        os.close(theirs)
    with open(0) as sys.stdin, open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
        variables = {os.fsdecode(name): os.fsdecode(environment[name]) for name in environment}
        return run_command(words, folder, variables)


def finish_command(
    files: Sequence[Path],
    words: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    code: str,
) -> None:
    """Be a command that prints to two files; `code` runs before it, as Python."""
    for ours, path in enumerate(files, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), ours)
    with open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
        ended = run_command(words, folder, environment, code)
    os._exit(ended)


def run_program(
    program: Path, *words: str, environment: Mapping[str, str], timeout_seconds: float = 280
) -> tuple[int | None, str]:
    """Run a file of Python as a program that finds torch and the SDK imported.

    Returns:
        its exit code, None when it did not end in time, and all that it printed.
    """
    with TemporaryDirectory() as kept:
        printed = Path(kept, "printed")
        process = FORKED.Process(
            target=_be_program, args=(printed, program, words, {**os.environ, **environment})
        )
        process.start()
        process.join(timeout_seconds)
        ended = process.exitcode
        process.kill()
        return ended, printed.read_text()


def _be_program(
    printed: Path, program: Path, words: Sequence[str], environment: Mapping[str, str]
) -> None:
    import torch

    file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    for ours in (1, 2):
        os.dup2(file, ours)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(program), *words]
    sys.path.insert(0, str(program.parent))
    torch.set_num_threads(1)  # two would wait for each other wherever the machine has other work
    with open(1, "w") as sys.stdout, open(2, "w") as sys.stderr:
        runpy.run_path(str(program), run_name="__main__")


def run_command(
    words: Sequence[str], folder: str | Path, environment: dict[str, str], code: str = ""
) -> int:
    """Be a command; gives its exit code, unless it ends the process by itself."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tensorrepo", *words]
    try:
        exec(code, {})
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  a bug, told as an interpreter would
        traceback.print_exc()
        return 1
    return 0
