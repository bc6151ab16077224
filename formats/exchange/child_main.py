"""Child processes of importers: the server that forks them, and the readers that they run.

Run as a script. It imports nothing of ours, and no numpy, so that it starts in a third of the
time; `child` is its counterpart in the importing process, and names files in what goes wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

if sys.platform == "linux":
    import fcntl

    # Nobody changes what the importing process has validated, or cuts it off under its feet.
    SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

FRAME = Struct("<BQ")  # kind, bytes; those of a batch lie in the file that comes with its frame
DONE, SCHEMA, BATCH, FAILED = range(4)
BATCHES_AHEAD = 2  # that are sent before the first of them is acknowledged
_BATCH_BYTES = 8 << 20  # of one record batch, unless a single row is larger
# How pyarrow says that bytes are wrong. A lying length fails as an allocation.
ARROW_ERRORS: tuple[type[Exception], ...] = (
    pa.ArrowException,
    ValueError,
    OverflowError,
    MemoryError,
)
_MAX_ROWS = 65_536
_POINTER_BYTES = 8  # what a row of any type costs in memory, however well it is encoded
_STREAM_BYTES = 1 << 20
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


class Refusal(Exception):
    """A file that a reader refuses in words of its own: what follows the file's name.

    Attributes:
        error: name of the error's class in the importing process.
    """

    def __init__(self, text: str, error: str = "InvalidInputError") -> None:
        super().__init__(text)
        self.error = error


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table, opened: `rows` is None when only reading tells."""

    schema: pa.Schema
    rows: int | None
    batches: Callable[[], Iterator[pa.RecordBatch]]


def open_parquet(path: str) -> TableFile:
    """A Parquet file, read by row groups in steps of bounded bytes."""
    with _parquet_file(path) as file:
        return TableFile(file.schema_arrow, file.metadata.num_rows, lambda: _row_groups(path))


def _row_groups(path: str) -> Iterator[pa.RecordBatch]:
    with _parquet_file(path) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            least = _POINTER_BYTES * len(file.schema_arrow)
            row_bytes = max(least, group.total_byte_size // max(1, group.num_rows))
            step = min(_MAX_ROWS, max(1, _BATCH_BYTES // row_bytes))
            yield from file.iter_batches(step, row_groups=[number], use_threads=False)


def _parquet_file(path: str) -> pq.ParquetFile:
    """A file opened for streaming: pages are read as they are needed, not row groups whole."""
    return pq.ParquetFile(
        path, buffer_size=_STREAM_BYTES, pre_buffer=False, page_checksum_verification=True
    )


STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_MARK = STREAM_MAGIC + bytes(4)


def open_arrow(path: str) -> TableFile:
    """An Arrow file or stream, told apart by content."""
    with pa.OSFile(path) as file:
        if file.read(len(STREAM_MAGIC)) != STREAM_MAGIC:
            return TableFile(pa.ipc.open_file(file).schema, None, lambda: _file_batches(path))
        # A stream may lack its end mark, but then nobody can tell whether rows are missing.
        file.seek(max(0, file.size() - len(_END_MARK)))
        if file.read() != _END_MARK:
            raise Refusal("ends without the end mark of an Arrow stream. Is it cut short?")
        file.seek(0)
        return TableFile(pa.ipc.open_stream(file).schema, None, lambda: _stream_batches(path))


def _file_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _stream_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        yield from pa.ipc.open_stream(file)


LMDB_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
LMDB_MAGIC = 0xBEEFC0DE
LMDB_MAGIC_AT = 16
_DATABASE_BYTES = 48  # of the record that a named database has in the unnamed one
_ENTRY_BYTES = 10  # that an entry takes at least
_MAX_DATABASES = 128


def open_lmdb(path: str, database: str | None = None) -> TableFile:
    """The entries of one database of an LMDB file in the order of keys, read without locking it."""
    try:
        import lmdb
    except ImportError as problem:
        raise Refusal(
            "LMDB files need lmdb, which is not installed: `pip install tensorrepo[lmdb]`",
            "UnsupportedError",
        ) from problem
    with open(path, "rb") as file:
        if file.read(LMDB_MAGIC_AT + 4)[LMDB_MAGIC_AT:] != LMDB_MAGIC.to_bytes(4, "little"):
            raise Refusal("is no LMDB file: its first page does not say so. Is it cut short?")
    try:
        environment = lmdb.open(
            path, subdir=False, readonly=True, create=False, lock=False, max_dbs=_MAX_DATABASES
        )
        transaction = environment.begin(buffers=True)
        chosen = _find_database(lmdb, environment, transaction, database)
        entries = transaction.stat(chosen)["entries"]
        stored = os.stat(path).st_size
        pages = environment.info()["last_pgno"] + 1
    except lmdb.Error as problem:
        raise Refusal(f"is no readable LMDB file: {_said(problem)}") from problem
    if pages * environment.stat()["psize"] > stored or entries > stored // _ENTRY_BYTES:
        raise Refusal(f"says that it has {pages} pages and {entries} entries. Is it cut short?")

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            entries = iter(transaction.cursor(chosen))
            if database is None:  # then named ones may stand between the entries
                entries = (
                    (key, value)
                    for key, value in entries
                    if _named(lmdb, environment, transaction, bytes(key), value) is None
                )
            yield from _lmdb_batches(entries, stored)
        except lmdb.Error as problem:
            raise Refusal(f"is damaged: {_said(problem)}") from problem

    return TableFile(LMDB_SCHEMA, entries, batches)


def _said(problem: Exception) -> str:
    """What LMDB says, without the path that it says first."""
    return str(problem).rpartition(": ")[2]


def _find_database(lmdb: Any, environment: Any, transaction: Any, name: str | None) -> Any:
    """The database of this name, by default the unnamed one."""
    main = environment.open_db(None, transaction, create=False)
    names: list[Any] = []
    for key, value in transaction.cursor(main):
        inner = _named(lmdb, environment, transaction, bytes(key), value)
        if inner is None and name is None:
            names = []
            break
        if inner is not None and bytes(key) == (name or "").encode():
            return _single_valued(inner, transaction)
        if inner is not None:
            names.append(bytes(key).decode("utf-8", "replace"))
    there = ", ".join(map(repr, sorted(names))) or "only the one without a name"
    if name is not None:
        raise Refusal(f"holds no database {name!r}; there are {there}", "NotFoundError")
    if names:
        raise Refusal(f"holds several databases: {there}. Choose one: database=...")
    return _single_valued(main, transaction)


def _single_valued(database: Any, transaction: Any) -> Any:
    if database.flags(transaction)["dupsort"]:
        raise Refusal("its keys may have several values, which is not read", "UnsupportedError")
    return database


def _named(lmdb: Any, environment: Any, transaction: Any, key: bytes, value: Any) -> Any:
    """The database that an entry of the unnamed one stands for; None for a plain entry."""
    if len(value) != _DATABASE_BYTES:
        return None
    with suppress(lmdb.IncompatibleError, lmdb.NotFoundError):
        return environment.open_db(key, transaction, create=False)
    return None


def _lmdb_batches(entries: Iterable[tuple[Any, Any]], stored: int) -> Iterator[pa.RecordBatch]:
    """The entries of a database, which together cannot be more than the file."""
    keys: list[bytes] = []
    values: list[bytes] = []
    held = total = 0
    for key, value in entries:
        keys.append(bytes(key))
        values.append(bytes(value))
        held += len(key) + len(value)
        total += len(key) + len(value) + _ENTRY_BYTES
        if total > stored:
            raise Refusal("is damaged: its tree has a loop")
        if held >= _BATCH_BYTES:
            yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)
            keys, values, held = [], [], 0
    if keys:
        yield pa.record_batch([keys, values], schema=LMDB_SCHEMA)


LANCE_VERSION_KEY = b"tensorrepo.lance_version"  # of the schema's metadata
_BLOB_KEYS = (b"lance-encoding:blob", b"ARROW:extension:name")
_LANCE_BUFFER_BYTES = 64 << 20


def open_lance(
    path: str, columns: list[str] | None = None, version: int | str | None = None
) -> TableFile:
    """A Lance dataset as it is now, or as it was. Its core may abort on damaged files."""
    opened = _lance_dataset(path, version)
    _refuse_references(opened)
    names = opened.schema.names
    for name in columns or ():
        if name not in names:
            raise Refusal(f"has no column {name!r}; there are {', '.join(names)}", "NotFoundError")

    def scanner() -> Any:
        return opened.scanner(
            columns=names if columns is None else columns,
            batch_size_bytes=_BATCH_BYTES,
            io_buffer_size=_LANCE_BUFFER_BYTES,
            batch_readahead=2,
            scan_in_order=True,
            blob_handling="all_binary",
        )

    schema = scanner().projected_schema
    noted = {**(schema.metadata or {}), LANCE_VERSION_KEY: str(opened.version).encode()}
    rows = int(opened.count_rows())
    return TableFile(schema.with_metadata(noted), rows, lambda: scanner().to_batches())


def _lance_dataset(path: str, version: int | str | None) -> Any:
    try:
        import lance
    except ImportError as problem:
        raise Refusal(
            "Lance datasets need pylance, which is not installed: `pip install tensorrepo[lance]`",
            "UnsupportedError",
        ) from problem
    wanted = int(version) if isinstance(version, str) and version.isdigit() else version
    try:
        return lance.dataset(path, version=wanted)
    except ValueError as problem:
        if version is not None and "not found" in str(problem).lower():
            raise Refusal(f"has no version {version!r}", "NotFoundError") from problem
        raise


def _refuse_references(opened: Any) -> None:
    """Refuse data that a reader would fetch from elsewhere.

    A blob may be a place in any file that this process may read.
    """
    for fragment in opened.get_fragments():
        for file in fragment.data_files():
            leads_out = os.path.isabs(file.path) or ".." in file.path.split("/")
            if leads_out or getattr(file, "base_id", None) is not None:
                raise Refusal(f"refers to data outside of it: {file.path}")
    blobs = [
        field.name
        for field in opened.schema
        if any(key in (field.metadata or {}) for key in _BLOB_KEYS)
        or pa.types.is_struct(getattr(field.type, "storage_type", field.type))
    ]
    if not blobs:
        return
    for batch in opened.to_batches(columns=blobs, blob_handling="all_descriptions"):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _refers(column):
                raise Refusal(f"column {name!r} refers to data outside of the dataset")


def _refers(column: pa.Array) -> bool:
    held = column.storage if isinstance(column, pa.ExtensionArray) else column
    if not pa.types.is_struct(held.type) or held.type.get_field_index("blob_uri") < 0:
        return False
    return any(uri for uri in held.field("blob_uri").to_pylist())


_READERS: dict[str, Callable[..., TableFile]] = {
    "parquet": open_parquet,
    "arrow": open_arrow,
    "lmdb": open_lmdb,
    "lance": open_lance,
}


def serve(control: int) -> None:
    """Fork a child for each socket that comes, until the importing process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: sockets tell their end
    server = socket.socket(fileno=control)
    process = os.getpid()
    while True:
        message, passed, _, _ = socket.recv_fds(server, 1, 1)
        if not message:
            return
        if not os.fork():
            server.close()
            _die_with(process)
            _answer(socket.socket(fileno=passed[0]))
        for each in passed:
            os.close(each)


def _die_with(server: int) -> None:
    """Have this child killed when the server ends: a reader that spins looks at no socket.

    The server waits on its socket alone, so it ends with the importing process.
    """
    with suppress(OSError, AttributeError):  # no Linux: then it ends at its next answer
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)


def _answer(connection: socket.socket) -> None:
    """All of one child; does not return."""
    try:
        with connection.makefile("rb") as questions:
            _read(json.loads(questions.readline()), questions, connection)
    except ConnectionError:
        pass  # the importing process wants no more
    except BaseException:  # noqa: BLE001 - a child never goes on as a second server
        traceback.print_exc()
    finally:
        os._exit(0)


def _read(request: dict[str, Any], questions: IO[bytes], answers: socket.socket) -> None:
    if request["reader"] == "lance":
        sys.modules.pop("numpy", None)  # Lance needs it, whatever pyarrow does without
        with suppress(ImportError):  # said by its reader
            import lance  # noqa: F401 - before the time that a file may take begins to run
    answers.sendall(os.getpid().to_bytes(8, "little"))
    os.chdir(request["folder"])
    _bound(request["memory_bytes"])
    open_file = _READERS[request["reader"]]
    opened = []
    for name in request["files"]:
        with _Telling(answers):
            opened.append(open_file(name, **request["options"]))
            _send(answers, SCHEMA, json.dumps(opened[-1].rows).encode())
            _send(answers, SCHEMA, opened[-1].schema.serialize())
    while question := questions.readline():
        waiting = 0
        with _Telling(answers):
            for batch in opened[int(question)].batches():
                _send_batch(answers, batch)
                waiting += 1
                if waiting > BATCHES_AHEAD:
                    questions.readline()
                    waiting -= 1
            _send(answers, DONE, b"")
        for _ in range(waiting):
            questions.readline()


def _send(answers: socket.socket, kind: int, body: bytes | pa.Buffer) -> None:
    answers.sendall(FRAME.pack(kind, len(body)))
    answers.sendall(body)


def _send_batch(answers: socket.socket, batch: pa.RecordBatch) -> None:
    """Pass the descriptor of a file in memory that holds a batch as an Arrow stream."""
    if sys.platform == "linux":
        file = os.memfd_create("batch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as named:
            file = os.dup(named.fileno())
    try:
        with (
            pa.OSFile(f"/dev/fd/{file}", "wb") as sink,
            pa.ipc.new_stream(sink, batch.schema) as stream,
        ):
            stream.write_batch(batch)
        if sys.platform == "linux":
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        frame = FRAME.pack(BATCH, os.fstat(file).st_size)
        if socket.send_fds(answers, [frame], [file]) < len(frame):
            raise ConnectionError("a frame was sent in part")
    finally:
        os.close(file)


class _Telling:
    """Sends the error that ends a block, as the name of its class and its text."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: object, _: object) -> bool:
        # A panic of Rust's is no `Exception` in Python.
        ours = kind is not None and (
            issubclass(kind, Exception) or kind.__name__ == "PanicException"
        )
        if kind is None or not ours or issubclass(kind, ConnectionError):
            return False
        error = problem.error if isinstance(problem, Refusal) else None
        text = str(problem) or kind.__name__
        _send(self._answers, FAILED, json.dumps({"error": error, "text": text}).encode())
        return True


def _bound(memory_bytes: int) -> None:
    """No core, and no more memory than is taken and `memory_bytes`. It cannot be undone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, StopIteration):  # no Linux: then without this limit
        with open("/proc/self/status", encoding="ascii") as status:
            taken = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory_bytes,) * 2)
