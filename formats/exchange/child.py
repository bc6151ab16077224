"""Child processes of importers, for libraries that may die of hostile bytes.

A server, started when the first such file is opened, has one thread and no files. It forks a child
for each source, within a few milliseconds; the child bounds its memory, opens the files, and gives
Arrow record batches when they are asked for, in files in memory that this process copies out of, or
maps where they are sealed. Whatever comes from it is validated by whoever takes it, as if it came
from the file.

Small files go to a child as well, since the files that end processes are small. What they pay is
the start of the server, once a process.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.exchange import child_batches, child_main
from tensorrepo.formats.exchange.child_batches import SLOT_BYTES, SLOTS
from tensorrepo.formats.exchange.child_main import (
    BATCH,
    DONE,
    FAILED,
    FRAME,
    PLACED_BATCH,
    SCHEMA,
    TableFile,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError, error_classes
from tensorrepo.repo.fork_server import ForkServerProgram, ForkServers, no_room, scarcity_told

if sys.platform == "linux":
    import fcntl

MEMORY_BYTES = 1 << 30  # that a child may take beyond what it begins with
OPEN_SECONDS = 10.0  # of one file, until its schema is known
STALL_SECONDS = 60.0  # without a record batch: of a slow disk, perhaps
START_SECONDS = 120.0  # what a busy machine may take to start the server
MAX_FRAME_BYTES = 2 << 30
# A mapping keeps its descriptor, of which a process has few: smaller batches are copied.
_MAPPED_BYTES = 1 << 20
# Arrow's other allocators reserve as much at once as a child may take. glibc's maps and unmaps each
# large buffer unless told to keep them, which takes more time than reading does.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's: whoever forks has one thread
    "LANCE_LOG": "error",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
# pyarrow does without numpy, which takes as long to load as the rest.
_CODE = """
import json, runpy, sys
sys.path += json.loads(sys.argv[1])
sys.modules["numpy"] = None
runpy.run_path(sys.argv[2])["serve"](int(sys.argv[3]))
"""
_TITLES = {
    "parquet": "Parquet file",
    "arrow": "Arrow file",
    "lmdb": "LMDB file",
    "lance": "Lance dataset",
    "hdf5": "HDF5 file",
    "footer": "Parquet footer",
    "search": "search index",
}


class _Unreadable(Exception):
    """What the library in a child says of bytes that are wrong."""


def open_files(
    reader: str, files: Sequence[Path], *, memory_bytes: int | None = None, **options: object
) -> dict[Path, TableFile]:
    """Open files of one source in a child, which lives until what is returned is dropped.

    Args:
        reader: one of the readers that `child_main` knows.
        files: read in any order, each as often as its batches are asked for.
        memory_bytes: bytes that the child may take beyond what it begins with; None: those of an
            import.
        options: options of the reader.

    Raises:
        NotFoundError, PermissionDenied: a file that cannot be opened.
        InvalidInputError: a file that its reader refuses, or of which the child died.
    """
    for file in files:
        with refusals(file, "file"):
            if not file.is_dir():
                file.open("rb").close()
    child = _Child(reader, files, options, memory_bytes)
    opened = {}
    for number, file in enumerate(files):
        schema, rows = child.schema(file)
        opened[file] = TableFile(schema, rows, partial(child.batches, number, file))
    return opened


class _Child:
    """The parent's side of one child; closed, and the child ended, when nothing refers to it."""

    def __init__(
        self,
        reader: str,
        files: Sequence[Path],
        options: dict[str, object],
        memory_bytes: int | None = None,
    ) -> None:
        self._title = _TITLES[reader]
        self._socket = _forked(reader)
        self._process: int | None = None
        self._lock = Lock()
        self._slots = _Slots()
        request = {
            "reader": reader,
            "files": [str(file) for file in files],
            "options": options,
            "folder": os.getcwd(),
            "memory_bytes": MEMORY_BYTES if memory_bytes is None else memory_bytes,
        }
        self._socket.settimeout(START_SECONDS)
        with self._ends_named(files[0]):
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            number = int.from_bytes(self._receive(8), "little")
            if number == child_main.NO_PROCESS:
                raise no_room("a process that reads files", "no more processes")
            self._process = _process(number)

    def schema(self, file: Path) -> tuple[pa.Schema, int | None]:
        self._socket.settimeout(OPEN_SECONDS)
        with self._ends_named(file):
            rows = json.loads(self._frame(file, SCHEMA) or b"null")
            return pa.ipc.read_schema(pa.py_buffer(self._frame(file, SCHEMA) or b"")), rows

    def batches(self, number: int, file: Path, **asked: object) -> Iterator[pa.RecordBatch]:
        """The batches of a file; `asked` is what its reader is asked for, as JSON values."""
        question = f"{number} {json.dumps(asked)}\n" if asked else f"{number}\n"
        # One file at a time: answers have no number.
        with self._lock, self._ends_named(file):
            self._socket.settimeout(STALL_SECONDS)
            self._socket.sendall(question.encode())
            try:
                while (body := self._frame(file, BATCH)) is not None:
                    self._socket.sendall(b"\n")
                    yield from pa.ipc.open_stream(body)
            except GeneratorExit:
                self._socket.close()  # the rest of its answer would be taken for another's
                raise

    def _frame(self, file: Path, wanted: int) -> bytearray | pa.Buffer | None:
        """The next frame's content; None at the end of a file."""
        head, descriptors, _, _ = socket.recv_fds(
            self._socket, FRAME.size, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        try:
            if not head:
                raise EOFError
            kind, size = FRAME.unpack(head + self._receive(FRAME.size - len(head)))
            if kind == PLACED_BATCH and wanted == BATCH:
                return self._slots.copied(self._receive(1)[0], size, descriptors)
            if kind not in (DONE, wanted, FAILED) or size > MAX_FRAME_BYTES:
                raise damage(file, "makes its reader answer nonsense: the file is damaged")
            if kind == BATCH:
                return _shared(descriptors, size)
        finally:
            for each in descriptors:
                os.close(each)
        body = self._receive(size)
        if kind == FAILED:
            self._raise(file, **json.loads(body))
        return None if kind == DONE else body

    def _raise(self, file: Path, error: str | None, text: str) -> NoReturn:
        if error is None:
            raise _Unreadable(text)
        classes = {each.__name__: each for each in error_classes()}
        raise classes.get(error, InvalidInputError)(f"{file}: {text}")

    @contextmanager
    def _ends_named(self, file: Path) -> Iterator[None]:
        """What ends a conversation with a child, as an error that names the file."""
        with refusals(file, self._title, _Unreadable, pa.ArrowException, ValueError, TypeError):
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


def _shared(descriptors: Sequence[int], size: int) -> pa.Buffer:
    """The content of a file in memory, which its child can change no more."""
    if len(descriptors) != 1:
        raise ValueError("a record batch came without its bytes")
    (file,) = descriptors
    if sys.platform != "linux":
        return pa.py_buffer(os.pread(file, size, 0))
    seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    if seals & child_batches.SEALS != child_batches.SEALS or os.fstat(file).st_size != size:
        raise ValueError("a record batch is not sealed")
    if size < _MAPPED_BYTES:
        return pa.py_buffer(os.pread(file, size, 0))
    flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
    return pa.py_buffer(mmap.mmap(file, size, flags=flags, prot=mmap.PROT_READ))


class _Slots:
    """Files in memory that a child uses again: what lies there is copied, and then is ours."""

    def __init__(self) -> None:
        self._mapped: dict[int, NDArray[np.uint8]] = {}
        self._pool = Pool((SLOTS + 1) * SLOT_BYTES)

    def copied(self, slot: int, size: int, descriptors: Sequence[int]) -> pa.Buffer:
        """The first `size` bytes of a slot, whose file comes when it is named first."""
        if descriptors:
            self._map(slot, *descriptors)
        shared = self._mapped.get(slot)
        if shared is None or size > SLOT_BYTES:
            raise ValueError(f"a record batch of {size} bytes in place {slot}")
        copy = self._pool.array((size,), np.dtype(np.uint8))
        np.copyto(copy, shared[:size])
        return pa.py_buffer(copy)

    def _map(self, slot: int, file: int) -> None:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        is_whole = seals & child_batches.SLOT_SEALS == child_batches.SLOT_SEALS
        if slot >= SLOTS or not is_whole or os.fstat(file).st_size != SLOT_BYTES:
            raise ValueError(f"the place {slot} for record batches may be cut short")
        place = mmap.mmap(file, SLOT_BYTES, prot=mmap.PROT_READ)
        self._mapped[slot] = np.frombuffer(place, np.uint8)


_SERVERS = ForkServers(
    ForkServerProgram(_CODE, _ENVIRONMENT, arguments=(child_main.__file__,), options=("-S",))
)


def _forked(reader: str) -> socket.socket:
    """The end of a socket whose other end a new child has, to run a reader in."""
    server = _SERVERS.server()
    with scarcity_told("a process that reads files"):
        near, far = socket.socketpair()
    with far:
        try:
            server.request(bytes([child_main.READERS.index(reader)]), [far.fileno()])
        except OSError as problem:
            near.close()
            raise UnsupportedError(f"the importers' process is gone: {problem}") from problem
    return near
