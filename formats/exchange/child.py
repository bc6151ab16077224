"""Child processes of importers, for libraries that may die of hostile bytes.

A server, started when the first such file is opened, has one thread and no files. It forks a child
for each source, within a few milliseconds; the child bounds its memory, opens the files, and sends
Arrow record batches through a socket when they are asked for. Whatever comes from it is validated
by whoever takes it, as if it came from the file.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from threading import Lock

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError, error_classes

MEMORY_BYTES = 1 << 30  # that a child may take beyond what it begins with
OPEN_SECONDS = 10.0  # of one file, until its schema is known
STALL_SECONDS = 60.0  # without a record batch: of a slow disk, perhaps
START_SECONDS = 120.0  # what a busy machine may take to start the server
MAX_FRAME_BYTES = 2 << 30
# Arrow's other allocators reserve as much at once as a child may take.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
FRAME = Struct("<BQ")  # kind, bytes
DONE, SCHEMA, BATCH, FAILED = range(4)
# Isolated, the server looks for modules where this process found them.
_SERVER = """
import json, sys
sys.path += json.loads(sys.argv[1])
from tensorrepo.formats.exchange.child_main import serve
serve(int(sys.argv[2]))
"""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, opened: `rows` is None when only reading tells."""

    schema: pa.Schema
    rows: int | None
    batches: Callable[[], Iterator[pa.RecordBatch]]


def open_files(reader: str, files: Sequence[Path]) -> dict[Path, TableFile]:
    """Open files of one source in a child, which lives until what is returned is dropped.

    Args:
        reader: one of the readers that `child_main` knows.
        files: read in any order, each as often as its batches are asked for.

    Raises:
        NotFoundError, PermissionDenied: a file that cannot be opened.
        InvalidInputError: a file that its reader refuses, or of which the child died.
    """
    for file in files:
        with refusals(file, "file"), file.open("rb"):
            pass
    child = _Child(reader, files)
    opened = {}
    for number, file in enumerate(files):
        schema, rows = child.schema(file)
        opened[file] = TableFile(schema, rows, _batches_of(child, number, file))
    return opened


def _batches_of(child: _Child, number: int, file: Path) -> Callable[[], Iterator[pa.RecordBatch]]:
    return lambda: child.batches(number, file)


class _Child:
    """The parent's side of one child; closed, and the child ended, when nothing refers to it."""

    def __init__(self, reader: str, files: Sequence[Path]) -> None:
        self._socket = _server().fork()
        self._process: int | None = None
        self._lock = Lock()
        request = {
            "reader": reader,
            "files": [str(file) for file in files],
            "folder": os.getcwd(),
            "memory_bytes": MEMORY_BYTES,
        }
        self._socket.settimeout(START_SECONDS)
        with _ends_named(files[0]):
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            self._process = _process(int.from_bytes(self._receive(8), "little"))

    def schema(self, file: Path) -> tuple[pa.Schema, int | None]:
        self._socket.settimeout(OPEN_SECONDS)
        with _ends_named(file):
            head, body = self._frame(file, SCHEMA), self._frame(file, SCHEMA)
            with refusals(file, "table", pa.ArrowException, ValueError, TypeError):
                rows = json.loads(bytes(head or b"null"))
                return pa.ipc.read_schema(pa.py_buffer(body or b"")), rows

    def batches(self, number: int, file: Path) -> Iterator[pa.RecordBatch]:
        # One file at a time: answers have no number.
        with self._lock, _ends_named(file):
            self._socket.settimeout(STALL_SECONDS)
            self._socket.sendall(b"%d\n" % number)
            try:
                while (body := self._frame(file, BATCH)) is not None:
                    with refusals(file, "table", pa.ArrowException, ValueError):
                        batches = list(pa.ipc.open_stream(pa.py_buffer(body)))
                    yield from batches
            except GeneratorExit:
                self._socket.close()  # the rest of its answer would be taken for another's
                raise

    def _frame(self, file: Path, wanted: int) -> bytearray | None:
        """The next frame's bytes; None at the end of a file."""
        kind, size = FRAME.unpack(self._receive(FRAME.size))
        if kind not in (DONE, wanted, FAILED) or size > MAX_FRAME_BYTES:
            raise damage(file, "makes its reader answer nonsense: the file is damaged")
        body = self._receive(size)
        if kind == FAILED:
            told = json.loads(bytes(body))
            classes = {known.__name__: known for known in error_classes()}
            raise classes.get(told["error"], InvalidInputError)(str(told["text"]))
        return None if kind == DONE else body

    def _receive(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            got = self._socket.recv_into(view[done:])
            if not got:
                raise EOFError
            done += got
        return buffer

    def __del__(self) -> None:
        connection = getattr(self, "_socket", None)
        if connection is not None:
            connection.close()
        # It may be busy with a file that never ends.
        process = getattr(self, "_process", None)
        if process is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)


def _process(pid: int) -> int | None:
    """A descriptor of a process: unlike its number, it never becomes another one's."""
    with suppress(OSError, AttributeError):  # no Linux, or it is gone already
        return os.pidfd_open(pid)
    return None


@contextmanager
def _ends_named(file: Path) -> Iterator[None]:
    """What ends a conversation with a child, as an error that names the file."""
    try:
        yield
    except TimeoutError as problem:
        raise damage(file, "is not read in time: it is damaged, or too large") from problem
    except (EOFError, ConnectionError) as problem:
        raise damage(
            file,
            "ended the process that read it, or took more memory than an import may: is it "
            "damaged?",
        ) from problem


class _Server:
    """The process that forks children, one for each process that imports."""

    def __init__(self) -> None:
        self._control, far = socket.socketpair()
        folders = [each for each in sys.path if os.path.isabs(each)]
        command = [sys.executable, "-I", "-c", _SERVER, json.dumps(folders), str(far.fileno())]
        with far:
            self.process = subprocess.Popen(  # noqa: S603 - nothing of it is the file's
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
                start_new_session=True,
                env=_ENVIRONMENT,
                cwd="/",
            )
        self._owner = os.getpid()
        atexit.register(self.close)

    def fork(self) -> socket.socket:
        """The end of a socket whose other end a new child has."""
        near, far = socket.socketpair()
        with far:
            try:
                socket.send_fds(self._control, [b"f"], [far.fileno()])
            except OSError as problem:
                near.close()
                raise UnsupportedError(f"the importers' process is gone: {problem}") from problem
        return near

    def close(self) -> None:
        self._control.close()
        if self._owner == os.getpid() and self.process.returncode is None:
            self.process.kill()
            self.process.wait()


_servers: dict[int, _Server] = {}  # by process: one that was forked starts its own
_starting = Lock()


def _server() -> _Server:
    with _starting:
        server = _servers.get(os.getpid())
        if server is None or server.process.poll() is not None:
            _servers[os.getpid()] = server = _Server()
        return server
