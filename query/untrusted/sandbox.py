"""Untrusted queries: a child process with limits, watched and served by its parent.

DuckDB runs in a child process of its own, which gets no credentials, no environment and no files:
this process reads the datasets, and hands over the columns and rows that DuckDB asks for. The child
bounds itself before it sees the query (`child`), and is killed at the deadline. DuckDB's own
limits are set as well, but did not hold: `repeat` took 1.9 GB under a limit of 256 MB.

Children are forked by a server, which starts with the first such query and has loaded DuckDB: that
takes a third of a second, and a fork some milliseconds.
"""

from __future__ import annotations

import math
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, field, replace
from threading import TIMEOUT_MAX, Timer
from time import monotonic
from typing import Any, Final

import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.query.sql.duck import Params, QueryTables, is_listing, reworded, table_listing
from tensorrepo.query.sql.names import QueryNames, as_utf8, names_of
from tensorrepo.query.sql.pushdown import DatasetTable, Scanned, ScannedTable
from tensorrepo.query.sql.results import Result
from tensorrepo.query.untrusted.pipe import (
    NO_PROCESS,
    STATUS,
    Begun,
    Done,
    Failed,
    Next,
    Pipe,
    Ready,
    RowsMessage,
    Said,
    ScanRequest,
    filter_in,
    misbehaved,
    packed,
    said_in,
    unpacked,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.fork_server import ForkServerProgram, ForkServers, no_room, scarcity_told
from tensorrepo.repo.tables import printable

_CODE = """
import json, sys
sys.path += json.loads(sys.argv[1])
from tensorrepo.query.untrusted.isolation import leave_network
leave_network()
from tensorrepo.query.untrusted.child import serve
serve(int(sys.argv[2]))
"""
_SERVERS = ForkServers(
    ForkServerProgram(
        _CODE,
        {"OPENBLAS_NUM_THREADS": "1"},  # NumPy's: whoever forks has one thread
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
)
_A_PROCESS = "the process of an untrusted query"
MOST_QUERY_BYTES = 64 << 10
MOST_NAMES = 200  # each is looked up, which costs about a millisecond
MOST_TOLD_BYTES = 2 << 10  # of what a process says before it goes
START_SECONDS = 120.0  # what a busy machine may take to start a process: no part of the query
MOST_ERROR_CHARACTERS = 10_000
MOST_FRAME_BYTES = 256 << 20  # the rows that a process sends at once, or one row
SLACK_BYTES = 16 << 20  # of a frame beyond the result's limit: one batch
_ZONE = re.compile(r"[+-]?[A-Za-z0-9][A-Za-z0-9_+:/-]{0,63}")  # names files where zones are read
_GONE_SECONDS = 10.0  # until a server that closed its sockets has ended
_PIECE_MS = 100  # of waiting for what a process said before it went
_PLAIN = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What a query that nobody vouches for may take.

    Attributes:
        seconds: time to look its names up, and from when its process is ready until its last row is
            taken; then it is killed.
        memory_bytes: memory of the process that answers it, beyond what it takes to begin; also
            as a text such as "512MB", and so are `bytes` and `served_bytes`.
        rows: number of rows of the result.
        bytes: size of the result; a value counts as one at least, null too.
        served_bytes: memory that this process takes at once for the rows that it hands over, about.
    """

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    rows: int = 100_000
    bytes: int = 64 << 20
    served_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "bytes", "served_bytes"):
            if isinstance(text := getattr(self, name), str):
                object.__setattr__(self, name, byte_size(name, text))
        for name, value in asdict(self).items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if not is_number or value <= 0:
                raise InvalidInputError(f"Limits need {name} above 0, got {value!r:.80}")


def query_sandboxed(
    tables: QueryTables, query: str, limits: QueryLimits, params: Params = None
) -> Result:
    """Rows of one SELECT, from a process of its own.

    Raises:
        InvalidInputError: it is no single SELECT, it is wrong, or it went beyond a limit.
        NotFoundError: a table that is not there.
        PermissionDenied: it asks for files, extensions or settings.
    """
    begun = monotonic()
    if len(as_utf8(query)) > MOST_QUERY_BYTES:
        raise InvalidInputError(
            f"an untrusted query of more than {MOST_QUERY_BYTES:,} bytes is not taken: join a table"
            " that has the values, or ask it as your own"
        )
    given = _plain(params)
    scanned = Scanned()
    tables.begin()
    query = table_listing(tables.known()) if is_listing(query) else query
    names = names_of(query)
    found = list(_found(names, tables, scanned, begun + limits.seconds))
    left = replace(limits, seconds=max(limits.seconds - (monotonic() - begun), 1e-3))
    child = _Child(found, left, scanned, tables.known, limits.seconds)
    child.begin({"query": query, "params": given, "words": sorted(names.words)})
    return Result(child, child, scanned, child.reworded)


def _found(
    names: QueryNames, tables: QueryTables, scanned: Scanned, until: float
) -> Iterator[tuple[tuple[str, ...], ScannedTable]]:
    if len(names.paths) > MOST_NAMES:
        raise InvalidInputError(
            f"a query of {len(names.paths):,} different names is not taken: at most {MOST_NAMES}"
        )
    for path in names.paths:
        if monotonic() > until:
            raise InvalidInputError(
                "the query took too long: its names could not all be looked up in time"
            )
        table = tables.find(path, scanned)
        if isinstance(table, DatasetTable):
            table = replace(table, threads=1)  # the child may open many scans, and not end them
        if table is not None:
            yield path, table


def _plain(params: Params) -> Any:
    values = params.values() if isinstance(params, Mapping) else (params or ())
    for value in values:
        if not isinstance(value, _PLAIN):
            raise InvalidInputError(
                "parameters of an untrusted query are text, numbers, bools and null, got "
                f"{value!r:.80}"
            )
        if isinstance(value, str):
            as_utf8(value)
    return dict(params) if isinstance(params, Mapping) else list(params or ())


def new_process() -> _Process:
    """A new child of this process's server, which waits for its query.

    Raises:
        StorageError: the machine has no files or processes to give.
    """
    server = _SERVERS.server()
    # Where there are no more files, all go that were opened.
    with scarcity_told(_A_PROCESS), ExitStack() as ours, ExitStack() as theirs:
        question, questions = _pipe(theirs, ours)
        answers, answer = _pipe(ours, theirs)
        errors, error = _pipe(ours, theirs)
        leash, far = socket.socketpair()
        ours.enter_context(leash)
        theirs.enter_context(far)
        with suppress(BrokenPipeError):  # a server that is gone ends all pipes
            server.request(b"\0", [question, answer, error, far.fileno()])
        theirs.close()
        ours.pop_all()
    return _Process(server.process, leash, questions, answers, errors)


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, each of which a stack closes."""
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer


@dataclass(slots=True, eq=False)
class _Process:
    """A child, at the other ends of its pipes and of its leash."""

    _server: subprocess.Popen[bytes]
    _leash: socket.socket
    questions: int
    answers: int
    errors: int
    _status: int | None = None

    def wait(self) -> int:
        """Its exit status; the server's, where that is gone; else there was no child."""
        if self._status is None:
            sent = self._leash.recv(STATUS.size)
            self._status = STATUS.unpack(sent)[0] if sent else self._end_of_server()
        return self._status

    def _end_of_server(self) -> int:
        try:
            return self._server.wait(_GONE_SECONDS)
        except subprocess.TimeoutExpired:
            return NO_PROCESS

    def kill(self) -> None:
        """End it, and what it began: the server does, who alone knows whether it lives."""
        with suppress(OSError):
            self._leash.shutdown(socket.SHUT_WR)

    def told(self) -> bytes:
        """The last that it wrote to its standard error, which is gone now; else the server."""
        said = _last_of(self.errors)
        pipe = self._server.stderr
        if not said and self._server.returncode is not None and pipe and not pipe.closed:
            said = _last_of(pipe.fileno())
        return said

    def close(self) -> None:
        if self._leash.fileno() >= 0:
            self._leash.close()
            for file in (self.questions, self.answers, self.errors):
                os.close(file)


def _last_of(file: int) -> bytes:
    """The last bytes of a pipe."""
    said = b""
    ready = select.poll()
    ready.register(file, select.POLLIN)
    # What the process began itself may hold the other end, and never close it.
    while ready.poll(_PIECE_MS) and (part := os.read(file, 1 << 16)):
        said = (said + part)[-MOST_TOLD_BYTES:]
    return said


@dataclass(slots=True, eq=False)
class _Child:
    """The process, as `Result` knows a connection and a relation."""

    tables: list[tuple[tuple[str, ...], ScannedTable]]
    limits: QueryLimits
    scanned: Scanned
    known: Callable[[], Iterable[str]]
    seconds: float  # of the whole query; `limits` has what is left of them
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    _serving: Any = None
    _process: Any = None
    _pipe: Any = None
    _timer: Any = None
    _is_ready: bool = False
    _is_late: bool = False

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def begin(self, request: dict[str, Any]) -> None:
        """Start it, and wait until it has understood the query."""
        self._process = new_process()
        most_bytes = min(int(self.limits.bytes), MOST_FRAME_BYTES) + SLACK_BYTES
        self._pipe = Pipe(
            self._process.answers, self._process.questions, most_bytes, lambda: self._is_late
        )
        tables_of_query = [table for _, table in self.tables]
        self._serving = Serving(tables_of_query, self.scanned, self.limits.served_bytes)
        tables = [{"path": path, "shown": list(table.shown)} for path, table in self.tables]
        head = request | {"limits": asdict(self.limits), "tables": tables}
        with self._watched():
            self._stop_after(START_SECONDS)
            self._pipe.send(head)
            for _, table in self.tables:
                self._pipe.send({}, packed([], table.schema))
            self._until(Ready)
            self._timer.cancel()
            self._is_ready = True
            self._stop_after(min(self.limits.seconds, TIMEOUT_MAX))
            self._pipe.send({})
            _, body = self._until(Begun)
            self.schema = unpacked(body).schema.remove_metadata()
            _check_types(self.schema)

    def to_arrow_reader(self, _: int) -> pa.RecordBatchReader:
        """The rows, while this process serves what the child reads."""
        return pa.RecordBatchReader.from_batches(self.schema, self._rows())

    def interrupt(self) -> None:
        self._end()

    def reworded(self) -> AbstractContextManager[None]:
        """What goes wrong is said in our words already."""
        return nullcontext()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        rows = size = 0
        while True:
            with self._watched():
                said, body = self._until(RowsMessage, Done)
                if isinstance(said, Done):
                    self._end()
                    return
                found = unpacked(body, self.schema)
            rows += sum(map(len, found.batches))
            size += max(len(body), found.values)
            if rows > self.limits.rows or size > self.limits.bytes:
                self._end()
                raise InvalidInputError(
                    f"the result has more than {self.limits.rows:,} rows or {self.limits.bytes:,} "
                    "bytes: ask for less, or add LIMIT"
                )
            yield from found.batches

    def _until(self, *wanted: type) -> tuple[Said, bytes]:
        """Serve the child's reads until it says one of these."""
        while True:
            head, body = self._pipe.receive()
            said = said_in(head)
            match said:
                case Failed(kind, text):
                    failed, self.scanned.failed = self.scanned.failed, None
                    shown = printable(text[:MOST_ERROR_CHARACTERS], keep="\n")
                    raise failed or reworded(kind, shown, self.known)
                case ScanRequest() if self._is_ready:
                    self._serving.begin(said, body)
                case Next() if self._is_ready:
                    self._pipe.send(*self._serving.next(said))
                case _ if isinstance(said, wanted):
                    return said, body
                case _:
                    raise misbehaved(f"it said {type(said).__name__} where that has no meaning")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """The end of the child becomes the reason of it."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - it is raised again
            raise self._ended(error) from None

    def _ended(self, error: BaseException) -> BaseException:
        """Why the child went away, or the error that has another reason."""
        if not isinstance(error, EOFError | BrokenPipeError):
            self._end()
            return out_of_memory(error) if isinstance(error, MemoryError) else error
        status = self._process.wait()
        told = printable(self._process.told().decode(errors="replace").strip(), keep="\n")
        self._end()
        if status == NO_PROCESS:
            return no_room(_A_PROCESS, "no more processes")
        if not self._is_ready:
            why = f"nothing within {START_SECONDS:g} s" if self._is_late else f"status {status}"
            return UnsupportedError(
                f"the process for untrusted queries did not start: {why}. {told}".rstrip()
            )
        if self._is_late or status == -signal.SIGXCPU:
            return InvalidInputError(
                f"the query took longer than {self.seconds:g} s and was stopped: ask for less"
            )
        return InvalidInputError(
            f"the query was stopped (status {status}): it took more than "
            f"{self.limits.memory_bytes:,} bytes of memory, or broke DuckDB. Ask for less. "
            f"{told}".rstrip()
        )

    def _stop_after(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._at_deadline)
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError as error:
            raise no_room("a thread that watches the query", str(error)) from error

    def _at_deadline(self) -> None:
        self._is_late = True
        self.scanned.stop.set()
        self._process.kill()

    def _end(self) -> None:
        self._timer.cancel()
        self.scanned.stop.set()
        self._process.kill()
        self._process.wait()
        self._serving.close()
        self._process.close()


def out_of_memory(error: MemoryError) -> InvalidInputError:
    """What the caller is told when this process, which serves the query, gets no more memory."""
    return InvalidInputError(
        "the query was stopped: this process has no memory for the rows that it reads "
        f"({error!s:.200}). Name fewer columns, or smaller ones, or give the process more memory"
    )


def _check_types(schema: pa.Schema) -> None:
    """Refuse types whose rows take far more than the bytes that they come in."""
    kinds = list(schema.types)
    while kinds:
        kind = kinds.pop()
        is_dense = pa.types.is_union(kind) and kind.mode == "dense"
        if is_dense or any(is_shared(kind) for is_shared in _SHARED):
            raise InvalidInputError(f"rows of type {kind} of an untrusted query are not taken")
        if pa.types.is_timestamp(kind) and not _ZONE.fullmatch(kind.tz or "UTC"):
            raise misbehaved(f"it names a time zone that is none: {kind.tz!r:.80}")
        kinds += [kind.field(at).type for at in range(kind.num_fields)]


_SHARED = (
    pa.types.is_dictionary, pa.types.is_run_end_encoded, pa.types.is_list_view,
    pa.types.is_large_list_view, pa.types.is_string_view, pa.types.is_binary_view,
)  # fmt: skip


# ------------------------------------------------------------------------------ tables

MOST_COLUMNS: Final = 64  # that are being read: each may have threads, and some megabytes ahead
LEAST_SCANS: Final = 4  # that stay open, however wide
CATALOG_BYTES: Final = 8 << 20  # of rows of the catalog at once
CATALOG_COLUMNS: Final = 8  # what a table of the catalog counts as: it holds a connection


@dataclass(slots=True)
class _Scan:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    columns: int
    bytes: int


@dataclass(slots=True)
class Serving:
    """The scans of one query, those that were asked last at the end.

    DuckDB begins scans, and takes their rows batch by batch. What it says is checked first, as it
    may be hostile. It keeps a scan until the query ends, also when LIMIT has all of its rows, so
    scans that wait the longest are given up where many are open. Only queries that read very many
    tables in turns ask for more of those.
    """

    tables: Sequence[ScannedTable]
    scanned: Scanned
    most_bytes: int
    _scans: dict[int, _Scan] = field(default_factory=dict)
    _given_up: set[int] = field(default_factory=set)
    _newest: int = -1

    def begin(self, asked: ScanRequest, body: bytes) -> None:
        """Begin a scan; nothing is read yet. Raises InvalidInputError for what nobody can mean."""
        self._end(asked.ended)
        if asked.scan <= self._newest:
            raise misbehaved(f"it began scan {asked.scan} after {self._newest}")
        if asked.table >= len(self.tables):
            raise misbehaved(f"it asked for table {asked.table} of {len(self.tables)}")
        table = self.tables[asked.table]
        unknown = [name for name in asked.columns if name not in table.schema.names]
        if unknown or len(set(asked.columns)) < len(asked.columns):
            raise misbehaved(f"it asked for the columns {asked.columns!r:.200}")
        try:
            where = filter_in(body) if body else None
        except InvalidInputError as error:
            raise misbehaved(f"it sent a filter that cannot be read: {error}") from error
        self._newest = asked.scan
        columns = len(asked.columns) if isinstance(table, DatasetTable) else CATALOG_COLUMNS
        self._make_room(columns)
        size = self._checked_bytes(table, asked, where)
        try:
            reader = table.reader(asked.columns, where)
        except pa.ArrowException as error:
            raise misbehaved(f"it sent a filter that fits no rows: {error!s:.200}") from error
        self._scans[asked.scan] = _Scan(reader.schema, iter(reader), columns, size)

    def _checked_bytes(
        self, table: ScannedTable, asked: ScanRequest, where: pc.Expression | None
    ) -> int:
        """Memory that a scan takes here. Raises InvalidInputError where all take too much."""
        size = CATALOG_BYTES
        if isinstance(table, DatasetTable):
            size = table.bytes_at_once(asked.columns, where)
        held = sum(scan.bytes for scan in self._scans.values())
        if held + size > self.most_bytes:
            raise InvalidInputError(
                f"reading {', '.join(asked.columns)!s:.200} takes {held + size:,} bytes at once, "
                f"with what the query reads beside it, and {self.most_bytes:,} are given to one: "
                "name fewer columns, or smaller ones"
            )
        return size

    def next(self, asked: Next) -> tuple[dict[str, Any], pa.Buffer | bytes]:
        """The next rows of a scan as a frame, one without a body at its end.

        An error is kept in `scanned` for the caller, and the process is told that there was one.
        """
        self._end(asked.ended)
        if asked.scan in self._given_up:
            self._note(InvalidInputError(_TOO_MANY))
            return {"failed": True}, b""
        scan = self._scans.pop(asked.scan, None)
        if scan is None:
            raise misbehaved(f"it asked for rows of scan {asked.scan}, which is none")
        self._scans[asked.scan] = scan  # at the end
        try:
            batch = next(scan.batches, None)
            return {}, b"" if batch is None else packed([batch], scan.schema)
        except Exception as error:  # noqa: BLE001 - the process is told, and the caller gets it
            self._note(error)
            return {"failed": True}, b""

    def close(self) -> None:
        """Give up all scans."""
        self._scans.clear()

    def _end(self, scans: list[int]) -> None:
        for number in scans:
            self._scans.pop(number, None)
            self._given_up.discard(number)

    def _make_room(self, columns: int) -> None:
        held = columns + sum(scan.columns for scan in self._scans.values())
        while len(self._scans) >= LEAST_SCANS and held > MOST_COLUMNS:
            oldest = next(iter(self._scans))
            held -= self._scans.pop(oldest).columns
            self._given_up.add(oldest)

    def _note(self, error: Exception) -> None:
        if isinstance(error, MemoryError):
            error = out_of_memory(error)
        elif isinstance(error, pa.ArrowException):
            error = InvalidInputError(f"SQL: the rows cannot be read: {error!s:.500}")
        self.scanned.failed = self.scanned.failed or error


_TOO_MANY: Final = (
    f"the untrusted query reads more than {MOST_COLUMNS} columns of tables in turns, which is not "
    "taken: name fewer columns or tables, or ask several queries"
)
