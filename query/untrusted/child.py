"""Child processes that answer untrusted queries, and the server that forks them.

A child bounds itself first: memory, processor time, files. Then DuckDB is told to reach for
nothing, its settings are locked, and only then is the query looked at. Tables are what the other
process serves. The server has loaded what a child needs and sees nothing of any query.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.selecting.expression import expression_tree, field_names
from tensorrepo.query.sql.duck import DuckSettings, add_tables, check_select, is_of_duckdb
from tensorrepo.query.sql.functions import NAMES, add_function
from tensorrepo.query.sql.names import QueryNames
from tensorrepo.query.untrusted.pipe import (
    NO_PROCESS,
    PASSED_FILES,
    STATUS,
    Pipe,
    packed,
    packed_filter,
    unpacked,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError

_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
BATCH_ROWS = 1 << 13
FRAME_BYTES = 4 << 20  # of rows sent at once
MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class _Served:
    number: int
    schema: pa.Schema
    shown: tuple[str, ...]
    ask: Any

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows of some columns for which `where` is true, fetched as they are asked for."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        body = b"" if where is None else packed_filter(where)
        found = self._filtered(columns, where) if body is None else self._batches(columns, body)
        return pa.RecordBatchReader.from_batches(schema, found)

    def _filtered(self, columns: Sequence[str], where: Any) -> Iterator[pa.RecordBatch]:
        """Rows for which a filter that cannot be sent is true: it is applied here."""
        compared = field_names(expression_tree(where))
        read = self.schema.names if compared is None else list({*columns, *compared})
        for batch in self._batches(read, b""):
            yield batch.filter(where).select(list(columns))

    def _batches(self, columns: Sequence[str], body: Any) -> Iterator[pa.RecordBatch]:
        scan = self.ask.scan({"table": self.number, "columns": list(columns)}, body)
        try:
            while found := self.ask.batches(scan):
                yield from found
        finally:
            self.ask.ended.append(scan)


class _Asking:
    """Asks the other process for rows, one question at a time.

    Scans of `ended` are told with the next question: a scan may end wherever Python drops it, which
    is no place to wait for the lock.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = Lock()
        self._numbers = count()
        self.ended: list[int] = []

    def scan(self, head: dict[str, Any], body: Any) -> int:
        with self._lock:
            number = next(self._numbers)
            told = {"kind": "scan", "scan": number, "ended": self._newly_ended()}
            self._pipe.send(told | head, body)
        return number

    def batches(self, scan: int) -> list[pa.RecordBatch]:
        with self._lock:
            self._pipe.send({"kind": "next", "scan": scan, "ended": self._newly_ended()})
            head, body = self._pipe.receive()
        if head.get("failed"):
            raise InvalidInputError("the rows cannot be read")
        return unpacked(body).batches if body else []

    def _newly_ended(self) -> list[int]:
        return [self.ended.pop() for _ in range(len(self.ended))]


def bound_process(memory_bytes: int, seconds: float) -> None:
    """Take away from this process what a query must not use. It cannot be undone."""
    ceiling = _taken_bytes() + memory_bytes
    bounds = {
        resource.RLIMIT_DATA: min(ceiling, (1 << 63) - 1),
        resource.RLIMIT_CPU: int(resource.getrusage(resource.RUSAGE_SELF).ru_utime + seconds) + 2,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: MOST_FILES,
    }
    for which, most in bounds.items():
        resource.setrlimit(which, (most, most))


def _taken_bytes() -> int:
    """Memory that this process may write to already, as RLIMIT_DATA counts it."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:  # no Linux
        return 0
    found = next((line for line in lines if line.startswith("VmData:")), "VmData: 0 kB")
    return int(found.split()[1]) << 10


def answer(pipe: Pipe) -> None:
    """Answer the one query that comes through the pipe."""
    request, _ = pipe.receive()
    limits = request["limits"]
    asking = _Asking(pipe)
    found = {}
    for number, table in enumerate(request["tables"]):
        schema = unpacked(pipe.receive()[1]).schema
        found[tuple(table["path"])] = _Served(number, schema, tuple(table["shown"]), asking)
    memory = f"{limits['memory_bytes'] // 1000}KB"
    connection = DuckSettings(memory, threads=1, spill="", external=False).connect()
    names = QueryNames(request["query"], tuple(found), frozenset(request["words"]))
    for name in sorted({word.lower() for word in request["words"]} & NAMES):
        add_function(connection, name)
    add_tables(connection, names, found.get)
    pipe.send({"kind": "ready"})
    pipe.receive()
    bound_process(limits["memory_bytes"], limits["seconds"])
    _answer(pipe, connection, request["query"], request["params"])


def _answer(pipe: Pipe, connection: duckdb.DuckDBPyConnection, query: str, params: Any) -> None:
    check_select(connection, query)
    relation = connection.sql(query, params=params or None)
    reader = relation.to_arrow_reader(BATCH_ROWS)
    schema = pa.schema([_field_of_values(field) for field in reader.schema])
    pipe.send({"kind": "begun"}, packed([], schema))
    for batch in reader:
        plain = batch if schema == reader.schema else batch.cast(schema)
        for piece in _pieces(plain):
            pipe.send({"kind": "rows"}, packed([piece], schema))
    pipe.send({"kind": "done"})


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch cut so that none holds many bytes, unless one row does."""
    step = max(1, int(batch.num_rows * FRAME_BYTES / max(batch.nbytes, 1)))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)


def _of_values(kind: pa.DataType) -> pa.DataType:
    """`kind` without dictionaries, whose texts may be in all rows, and without extensions."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([_field_of_values(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field_of_values(kind.key_field), _field_of_values(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field_of_values(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_field_of_values(kind.value_field))
    return pa.list_(_field_of_values(kind.value_field)) if pa.types.is_list(kind) else kind


def _field_of_values(field: pa.Field) -> pa.Field:
    return field.with_type(_of_values(field.type)).remove_metadata()


def serve(control: int) -> None:
    """Fork a child for each request, until the process that asks is gone: children go with it.

    A leash is a socket with an end there: it is sent the child's exit status, and when its other
    end is closed, the child and what it began are killed.
    """
    gc.freeze()  # a collection in a child would copy the pages of all that is loaded
    requests = socket.socket(fileno=control)
    ended, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(ended, select.POLLIN)
    leashes: dict[int, tuple[int, socket.socket]] = {}  # children and leashes, by file
    while True:
        ready = {file for file, _ in poll.poll()}
        for file in ready & leashes.keys():
            poll.unregister(file)
            _kill(leashes[file][0])
        if ended in ready:
            os.read(ended, 1 << 10)
            for file in _send_statuses(leashes):
                with suppress(KeyError):  # it was killed
                    poll.unregister(file)
                leashes.pop(file)[1].close()
        if control in ready:
            request, files, _, _ = socket.recv_fds(requests, 1, PASSED_FILES)
            if not request:
                os._exit(0)
            if len(files) < PASSED_FILES:  # this process may open no more: its leash ends as well
                for file in files:
                    os.close(file)
                continue
            leash = socket.socket(fileno=files[-1])
            try:
                leashes[leash.fileno()] = _forked(files), leash
                poll.register(leash, select.POLLIN)
            except OSError:  # the machine has no more processes now
                with leash, suppress(OSError):
                    leash.send(STATUS.pack(NO_PROCESS))
            for file in files[:-1]:
                os.close(file)


def _forked(files: Sequence[int]) -> int:
    """The number of a new child, which does not return from here."""
    server = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        with suppress(OSError, AttributeError):  # no Linux: then it ends with its pipes
            ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() == server:
            for ours, file in enumerate(files[:-1]):
                os.dup2(file, ours)
            os.closerange(len(files) - 1, os.sysconf("SC_OPEN_MAX"))
            main()
    except BaseException:  # noqa: BLE001 - a child never goes on as a second server
        traceback.print_exc()
    finally:
        os._exit(1)


def _send_statuses(leashes: dict[int, tuple[int, socket.socket]]) -> list[int]:
    """Tell the exit statuses of children that have ended; gives the files of their leashes."""
    by_child = {child: file for file, (child, _) in leashes.items()}
    done = []
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            child, status = found
            file = by_child[child]
            with suppress(OSError):  # nobody asks any more
                leashes[file][1].send(STATUS.pack(os.waitstatus_to_exitcode(status)))
            done.append(file)
    return done


def _kill(child: int) -> None:
    """End a child, and what it began: it leads a group of its own."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it leads none yet
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def main() -> None:
    """Talk through standard input and output, which nothing else here writes to."""
    pipe = Pipe(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    try:
        answer(pipe)
    except (BrokenPipeError, EOFError):
        pass  # whoever asked is gone
    except MemoryError:
        pipe.send({"kind": "error", "type": "MemoryError", "text": "out of memory"})
    except BaseException as error:
        if not isinstance(error, Error) and not is_of_duckdb(error):
            raise
        pipe.send({"kind": "error", "type": type(error).__name__, "text": str(error)[:10_000]})
    os._exit(0)  # not by way of DuckDB's destructors, which a full memory breaks
