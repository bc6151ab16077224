"""Child processes of importers: the server that forks them, and the readers that they run.

Run as a script. It imports nothing of ours, and no numpy, so that it starts in a third of the
time; `child` is its counterpart in the importing process, and names files in what goes wrong.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from struct import Struct
from types import ModuleType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

FRAME = Struct("<BQ")  # kind, bytes; those of a batch lie in a file in memory
DONE, SCHEMA, BATCH, FAILED, PLACED_BATCH = range(5)  # see `BatchSender`
NO_PROCESS = 0  # said by the server, where a child says its number
BATCHES_AHEAD = 2  # that are sent before the first of them is acknowledged
BATCH_BYTES = 8 << 20  # of one record batch, unless a single row is larger
# How pyarrow says that bytes are wrong. A lying length fails as an allocation.
ARROW_ERRORS = (pa.ArrowException, ValueError, OverflowError, MemoryError)
_MAX_ROWS = 65_536
POINTER_BYTES = 8  # what a row of any type costs in memory, however well it is encoded
_MARK_ROWS = 4096  # in which null elements are looked for, at a time
# In the metadata of a field of lists: that some of the numbers in them are null.
NULL_ELEMENTS_KEY = b"tensorrepo.null_elements"
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_NAME = "tensorrepo.formats.exchange.child_main"  # of this module, for scripts that import it


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
    batches: Callable[..., Iterator[pa.RecordBatch]]


def open_parquet(path: str) -> TableFile:
    """A Parquet file, read by row groups in steps of bounded bytes."""
    with _parquet_file(path) as file:
        names = [name for name in number_lists(file.schema_arrow) if not _has_no_nulls(file, name)]

        def batches() -> Iterator[pa.RecordBatch]:
            yield from file.iter_batches(_MARK_ROWS, columns=names, use_threads=False)

        schema = marked(file.schema_arrow, names, batches)
        return TableFile(schema, file.metadata.num_rows, lambda: _row_groups(path))


def _has_no_nulls(file: pq.ParquetFile, name: str) -> bool:
    """Whether the footer says so of a column: it counts null and empty lists as well."""
    leaves = [leaf for field in file.schema_arrow for leaf in _leaves(field)]
    at = next(at for at, leaf in enumerate(leaves) if leaf[0] == name)
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    known = [group.column(at).statistics for group in groups if group.num_columns == len(leaves)]
    told = [each is not None and each.has_null_count and not each.null_count for each in known]
    return len(told) == len(groups) and all(told)


def number_lists(schema: pa.Schema) -> list[str]:
    """Columns of lists of numbers, or of such of fixed size, one in the other."""
    types, found = pa.types, []
    with suppress(UnicodeDecodeError):  # which the importing process refuses in its own words
        for field in schema if len(set(schema.names)) == len(schema) else ():
            kind = field.type.value_type if isinstance(field.type, _LISTS) else field.type
            while types.is_fixed_size_list(kind):
                kind = kind.value_type
            number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
            if kind != field.type and number:
                found.append(field.name)
    return found


_LISTS = (pa.ListType, pa.LargeListType)


def marked(
    schema: pa.Schema, names: list[str], batches: Callable[[], Iterator[pa.RecordBatch]]
) -> pa.Schema:
    """`schema`, with a mark on those of the columns in whose lists a number is null."""
    left = list(names)
    for batch in batches() if left else ():
        for name in [name for name in left if holds_null(batch.column(name))]:
            left.remove(name)
            at = schema.get_field_index(name)
            noted = {**(schema.field(at).metadata or {}), NULL_ELEMENTS_KEY: b"1"}
            schema = schema.set(at, schema.field(at).with_metadata(noted))
        if not left:
            break
    return schema


def holds_null(array: pa.Array) -> bool:
    """Whether a number is null inside of lists, or of such of fixed size, one in the other."""
    while isinstance(array.type, (*_LISTS, pa.FixedSizeListType)):
        array = array.flatten()
        if array.null_count:
            return True
    return False


def _row_groups(path: str) -> Iterator[pa.RecordBatch]:
    read = _script("child_parquet")["read_row_groups"]
    yield from read(path, batch_bytes=BATCH_BYTES, least_bytes=POINTER_BYTES, most_rows=_MAX_ROWS)


def _parquet_file(path: str) -> pq.ParquetFile:
    return _script("child_parquet")["open_file"](path)


def library(module: str, what: str, extra: str, package: str = "") -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise Refusal(
            f"{what} need {package or module}, which is not installed: "
            f"`pip install tensorrepo[{extra}]`",
            "UnsupportedError",
        ) from problem


_FOOTER_SCHEMA = pa.schema(
    [
        ("rows", pa.int64()),  # of the row group
        ("path", pa.list_(pa.string())),
        ("compressed_bytes", pa.int64()),
        ("uncompressed_bytes", pa.int64()),
        ("nulls", pa.int64()),  # null where the file does not say
    ]
)


def open_footer(path: str) -> TableFile:
    """What the footer of a Parquet file says of columns' chunks, a batch for each row group."""
    metadata = pq.read_metadata(path)
    leaves = [leaf for field in metadata.schema.to_arrow_schema() for leaf in _leaves(field)]
    if len(leaves) != metadata.num_columns:
        raise Refusal(f"{metadata.num_columns} columns, its schema has {len(leaves)}")
    return TableFile(_FOOTER_SCHEMA, None, lambda: _footer_groups(metadata, leaves))


def _leaves(field: pa.Field, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the columns that a field is stored as."""
    kind, path = getattr(field.type, "storage_type", field.type), (*above, field.name)
    inner: list[pa.Field] = []
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    elif pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif getattr(kind, "value_field", None) is not None:
        inner = [kind.value_field]
    if not inner:
        yield path
    for each in inner:
        yield from _leaves(each, path)


def _footer_groups(
    metadata: pq.FileMetaData, leaves: list[tuple[str, ...]]
) -> Iterator[pa.RecordBatch]:
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        told = [chunk.statistics for chunk in chunks]
        nulls = [each.null_count if each and each.has_null_count else None for each in told]
        columns = [
            [group.num_rows] * len(chunks),
            leaves,
            [chunk.total_compressed_size for chunk in chunks],
            [chunk.total_uncompressed_size for chunk in chunks],
            nulls,
        ]
        arrays = [pa.array(c, kind) for c, kind in zip(columns, _FOOTER_SCHEMA.types, strict=True)]
        yield pa.record_batch(arrays, schema=_FOOTER_SCHEMA)


STREAM_MAGIC = b"\xff\xff\xff\xff"
_END_MARK = STREAM_MAGIC + bytes(4)


def open_arrow(path: str) -> TableFile:
    """An Arrow file or stream, told apart by content."""
    with pa.OSFile(path) as file:
        if file.read(len(STREAM_MAGIC)) != STREAM_MAGIC:
            schema, read = pa.ipc.open_file(file).schema, _file_batches
            schema = marked(schema, number_lists(schema), lambda: read(path))
            return TableFile(schema, None, lambda: read(path))
        # A stream may lack its end mark, but then nobody can tell whether rows are missing.
        file.seek(max(0, file.size() - len(_END_MARK)))
        if file.read() != _END_MARK:
            raise Refusal("ends without the end mark of an Arrow stream. Is it cut short?")
        file.seek(0)
        schema = pa.ipc.open_stream(file).schema
        schema = marked(schema, number_lists(schema), lambda: _stream_batches(path))
        return TableFile(schema, None, lambda: _stream_batches(path))


def _file_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _stream_batches(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        yield from pa.ipc.open_stream(file)


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
            batch_size_bytes=BATCH_BYTES,
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
    lance = library("lance", "Lance datasets", "lance", package="pylance")
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


def open_lmdb(path: str, **options: Any) -> TableFile:
    """The entries of one database of an LMDB file; see `child_lmdb`."""
    opened: TableFile = _script("child_lmdb")["open_lmdb"](path, **options)
    return opened


def open_hdf5(path: str, **options: Any) -> TableFile:
    """The datasets of an HDF5 file; see `child_hdf5`."""
    opened: TableFile = _script("child_hdf5")["open_hdf5"](path, **options)
    return opened


def open_search_index(path: str, **options: Any) -> TableFile:
    """A search index of Lance, which answers questions."""
    return TableFile(*_script("child_search")["open_index"](path, Refusal, **options))


@cache
def _script(name: str) -> dict[str, Any]:
    """What a script beside this one defines: of ours it can import this module alone."""
    return runpy.run_path(os.path.join(os.path.dirname(__file__), f"{name}.py"))


_READERS: dict[str, Callable[..., TableFile]] = {
    "parquet": open_parquet,
    "arrow": open_arrow,
    "lmdb": open_lmdb,
    "lance": open_lance,
    "hdf5": open_hdf5,
    "footer": open_footer,
    "search": open_search_index,
}
READERS = tuple(_READERS)
# What the server loads once, for all later children: it starts no threads. Lance's core does.
_PRELOADED = {"hdf5": "h5py"}
_SCRIPTS = {"hdf5": "child_hdf5", "lmdb": "child_lmdb"}  # to compile one takes milliseconds
_LOADED = {"lance": "lance", "search": "lance"}  # by the child


def serve(control: int) -> None:
    """Fork a child for each socket that comes, until the importing process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: sockets tell their end
    server = socket.socket(fileno=control)
    process = os.getpid()
    known = ModuleType(_NAME)
    known.__dict__.update(globals())
    sys.modules[_NAME] = known
    for name in ("child_batches", "child_parquet"):
        _script(name)
    while True:
        reader, passed, _, _ = socket.recv_fds(server, 1, 1)
        if not reader:
            return
        wanted = READERS[reader[0]]
        _load(_PRELOADED.get(wanted))
        if wanted in _SCRIPTS:
            _script(_SCRIPTS[wanted])
        with socket.socket(fileno=passed[0]) as connection:
            try:
                child = os.fork()
            except OSError:  # the machine has no more of them now
                with suppress(OSError):
                    connection.send(NO_PROCESS.to_bytes(8, "little"))
                continue
            if not child:
                server.close()
                _die_with(process)
                _answer(connection)


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


def _load(library: str | None) -> None:
    if library is not None:
        if sys.modules.get("numpy", "") is None:  # it needs it, whatever pyarrow does without
            del sys.modules["numpy"]
        with suppress(ImportError):  # said by its reader
            import_module(library)


def _read(request: dict[str, Any], questions: IO[bytes], answers: socket.socket) -> None:
    _load(_LOADED.get(request["reader"]))  # before the time that a file may take begins to run
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
    sender = _script("child_batches")["BatchSender"](FRAME, BATCH, PLACED_BATCH)
    while question := questions.readline():
        number, _, asked = question.partition(b" ")
        waiting = 0
        with _Telling(answers):
            for batch in opened[int(number)].batches(**json.loads(asked or b"{}")):
                sender.send(answers, batch)
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
