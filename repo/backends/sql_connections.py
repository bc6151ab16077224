"""Connections to a SQL database: a small pool for each process, turns of writers, drivers' errors.

Each statement commits by itself and is durable then. A connection is made when it is first needed,
again after it was lost, and anew in a forked child. A thread waits where all of them are in use.

A turn is a place in the queue of all writers: an advisory lock that the server gives to one after
the other, in a transaction that ends with the writer's record. Nobody therefore waits for what a
writer does afterwards, nor for one that is gone.

Source:
    docs/spec/log.md, section "Log in SQL".
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from queue import SimpleQueue
from typing import Any, Final, Self
from urllib.parse import unquote

from tensorrepo.repo.backends.postgres_connection import Question, Rows, ServerConnection
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)

SQLITE: Final = "sqlite:///"
POOL_SIZE: Final = 4  # connections of a process to one log: one for its turn, some to read with
CONTENDED_SECONDS: Final = 1.0
WAITED_SECONDS: Final = 0.001  # a lock that was free takes less
_POSTGRESQL: Final = ("postgresql://", "postgres://")
_BUSY_SECONDS: Final = 30
_SETTINGS: Final = (
    # Who sees a record relies on it, so it must not be seen before it is on the server's disk.
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'; "
    "SET default_transaction_isolation = 'read committed'; "
    # A server that says nothing for so long is taken for lost, and so is a writer that hangs.
    "SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'"
)
# SQLSTATE of PostgreSQL, or its class; names of SQLite.
_CUT_OFF: Final = {"", "08", "57P01", "57P02", "57P03", "57P05", "SQLITE_IOERR"}
_PASSING: Final = {*_CUT_OFF, "40", "53", "55", "57", "SQLITE_BUSY", "SQLITE_LOCKED"}
_FULL: Final = {"53100", "SQLITE_FULL"}
_FORBIDDEN: Final = {"28", "42501", "25006", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM"}
_ABANDONED: list[object] = []  # connections of a parent process, which a child must not close


@dataclass(slots=True, weakref_slot=True)
class _Pool:
    """The connections of one process. Those that are idle are closed when nobody refers to it."""

    open: Callable[[], Any]
    process: int = field(default_factory=os.getpid)
    room: SimpleQueue[None] = field(default_factory=SimpleQueue)  # an item for each that is free
    idle: list[Any] = field(default_factory=list)
    turns: threading.Lock = field(default_factory=threading.Lock)
    turn: WriterTurn | None = None  # of the one thread that holds the lock
    waited_at: float = -CONTENDED_SECONDS  # when somebody else had the lock

    def __post_init__(self) -> None:
        for _ in range(POOL_SIZE):
            self.room.put(None)
        # No `__del__`: where a cycle is collected, the connections' own might come before it.
        weakref.finalize(self, _close_all, self.idle, self.process)

    def borrow(self) -> Any:
        self.room.get()
        try:
            return self.idle.pop() if self.idle else self.open()
        except BaseException:
            self.room.put(None)
            raise

    def give_back(self, connection: Any, error: BaseException | None = None) -> None:
        """After an error, Ctrl-C too, it may be in the midst of an answer: of no more use."""
        if error is None:
            self.idle.append(connection)
        else:
            with suppress(Exception):
                connection.close()
            if _is(error, _CUT_OFF):
                self.close()  # a server that was started again knows none of them
        self.room.put(None)

    def close(self) -> None:
        _close_all(self.idle, self.process)


def _close_all(connections: list[Any], process: int) -> None:
    """Close connections, in the process that opened them alone."""
    while connections and process == os.getpid():
        with suppress(Exception):  # it may have died before
            connections.pop().close()


class SqlConnections:
    """What is asked of one database. Thread-safe; usable in forked children.

    Args:
        url: ``postgresql://...`` or ``sqlite:///path``.
        what: what lies there, for messages; never with a secret.
        table: the table that must be there.
    """

    def __init__(self, url: str, what: str, table: str) -> None:
        self.url = check_database(url)
        self.is_sqlite = url.startswith(SQLITE)
        self._where = f"{what} in {shown(url)}"
        self._table = table
        self._own = self._fresh()

    @property
    def pool(self) -> _Pool:
        """That of this process."""
        if self._own.process != os.getpid():
            _ABANDONED.append(self._own)
            self._own = self._fresh()
        return self._own

    def ask(self, query: str, values: Sequence[object] = (), *, writes: bool = False) -> Rows:
        """The rows of one statement with ``?`` for each of `values`, committed by itself.

        What `writes` ends the turn of this thread, if it has one.
        """
        pool = self.pool
        if pool.turn is not None and pool.turn.thread == threading.get_ident():
            return pool.turn.ask(query, values, writes=writes)
        with self.explained():
            connection = pool.borrow()
            try:
                rows = _rows(connection, query, values)
            except BaseException as error:
                pool.give_back(connection, error)
                raise
            pool.give_back(connection)
        return rows

    def turn(self, lock: int, first: Callable[[], Question | None] = lambda: None) -> WriterTurn:
        """A place among those who want this advisory lock of a PostgreSQL server.

        Args:
            lock: its number.
            first: what will be asked first in the turn: sent with the wish for the lock, and
                answered right after it is given.
        """
        return WriterTurn(self, lock, first)

    def close(self) -> None:
        """Let go of all connections that are not in use."""
        self._own.close()

    def explained(self) -> _Explained:
        """What a driver raises in the body, as one of our errors."""
        return _Explained(self)

    def _fresh(self) -> _Pool:
        return _Pool(_Opening(self.url))

    def explain(self, error: BaseException) -> Error | None:
        """One of our errors for one of a driver's; None for what is none of a driver's."""
        if not isinstance(error, sqlite3.Error) and not _is_of_psycopg(error):
            return None
        reason = self._reason(error)
        found: Error
        if _is(error, {"42P01"}) or "no such table" in reason:
            found = NotFoundError(
                f"{self._where}: that database has no table {self._table}: it is another database. "
                "Set TENSORREPO_LOG, or `tensorrepo config --global log.url`, to the right one."
            )
        elif _is(error, _FORBIDDEN):
            advice = "Look at the rights of that file" if self.is_sqlite else "Ask who runs it"
            found = PermissionDenied(f"{self._where}: {reason}. {advice}.")
        elif _is(error, _FULL):
            found = StorageError(f"{self._where}: {reason}. Free some space there, then repeat.")
        elif not _code(error) and type(error).__name__ == "ProgrammingError":
            found = InvalidInputError(
                f"{self._where}: that URL cannot be read. Expected "
                "postgresql://user@host/database, and in a password characters such as @ / : % "
                "written as %40 %2F %3A %25."
            )
        else:
            passing = _is(error, _PASSING)
            advice = "Is the server up? Try again." if passing else "Look at that database."
            found = StorageError(f"{self._where}: {reason}. {advice}", transient=passing)
        found.refused = not _is(error, _CUT_OFF)
        return found

    def _reason(self, error: BaseException) -> str:
        """What the driver says, unless a part of the password is in it."""
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if not self.is_sqlite and any(part in reason for part in _secrets(self.url)):
            return "the server cannot be reached as the URL says"
        return reason


class _Explained:
    """See `SqlConnections.explained`."""

    __slots__ = ("_connections",)

    def __init__(self, connections: SqlConnections) -> None:
        self._connections = connections

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, at: object) -> None:
        if error is None or isinstance(error, Error):
            return
        found = self._connections.explain(error)
        if found is not None:
            # A driver that cannot connect repeats parts of the URL, even of a password.
            raise found from (error if _code(error) else None)


class WriterTurn:
    """A place in the queue of a log's writers, of the thread that made it."""

    def __init__(
        self, connections: SqlConnections, lock: int, first: Callable[[], Question | None]
    ) -> None:
        self.thread = threading.get_ident()
        self._connections = connections
        self._pool = connections.pool
        self._lock = lock
        self._first = first
        self._answer: tuple[Question, Rows] | None = None  # till it is asked for
        self._connection: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None and self._pool.process == os.getpid():
            self._end("ROLLBACK")

    @property
    def is_contended(self) -> bool:
        """Whether somebody had to be waited for a moment ago."""
        return time.monotonic() - self._pool.waited_at < CONTENDED_SECONDS

    def take(self, wait_seconds: float) -> bool:
        """Whether all who came before are done; waits for them so long."""
        began = time.monotonic()
        is_taken = self._take(wait_seconds)
        ended = time.monotonic()
        if not is_taken or ended - began > WAITED_SECONDS:
            self._pool.waited_at = ended
        return is_taken

    def _take(self, wait_seconds: float) -> bool:
        if not self._pool.turns.acquire(timeout=wait_seconds):  # another thread's turn
            return False
        try:
            with self._connections.explained():
                self._connection = self._locked(wait_seconds)
        finally:
            if self._connection is None:
                self._pool.turns.release()
        if self._connection is not None:
            self._pool.turn = self
        return self._connection is not None

    def ask(self, text: str, values: Sequence[object], *, writes: bool) -> Rows:
        """As `SqlConnections.ask`, in the transaction that has the lock."""
        answer, self._answer = self._answer, None
        if answer is not None and answer[0] == (text, values):
            return answer[1]
        with self._connections.explained():
            try:
                if writes:
                    rows = _rows_of_last(self._connection, text, values)
                else:
                    rows = _rows(self._connection, text, values)
            except BaseException as error:
                self._leave(error)
                raise
        if writes:
            self._leave()
        return rows

    def _locked(self, wait_seconds: float) -> Any:
        """A connection that has the lock; None: somebody else has it."""
        connection = self._pool.borrow()
        try:
            question = self._first()
            is_locked, rows = _lock(connection, self._lock, wait_seconds, question)
            self._answer = (question, rows) if is_locked and question is not None else None
            if not is_locked:
                connection.ask("ROLLBACK")
        except BaseException as error:
            self._pool.give_back(connection, error)
            raise
        if not is_locked:
            self._pool.give_back(connection)
            return None
        return connection

    def _end(self, how: str) -> None:
        failure: BaseException | None = None
        try:
            self._connection.ask(how)
        except Exception as error:  # noqa: BLE001  any of a driver's
            failure = error
        self._leave(failure)

    def _leave(self, error: BaseException | None = None) -> None:
        connection, self._connection = self._connection, None
        self._pool.turn = None
        self._pool.give_back(connection, error)
        self._pool.turns.release()


def check_database(url: str) -> str:
    """`url` itself when it names a database that a log can be in.

    Raises:
        InvalidInputError: another kind of database, or no URL.
    """
    if url.startswith(_POSTGRESQL) or (url.startswith(SQLITE) and len(url) > len(SQLITE)):
        return url
    kind = url.partition("://")[0] + "://..." if "://" in url else "what was given"
    raise InvalidInputError(
        f"a log cannot be in {kind:.40}: expected postgresql://user@host/database or "
        "sqlite:////absolute/path.db"
    )


def shown(url: str) -> str:
    """A database's URL for people: without user, password and options."""
    if url.startswith(SQLITE):
        return url
    scheme, _, rest = url.partition("://")
    # Where "@" or "?" come more than once it cannot be told what is a part of a password.
    plain = re.fullmatch(r"(?:[^@?]*@)?([^@?]*)(?:\?[^@]*)?", rest)
    return f"{scheme}://{plain[1] if plain else '...'}"


def _secrets(url: str) -> set[str]:
    """What could be a part of a password in a URL, however it is to be read."""
    before, _, after = url.partition("://")[2].rpartition("@")
    told = re.split("[:@/?#]", before)[1:] + re.findall(r"password=([^&]*)", after)
    return {part for each in told for part in (each, unquote(each)) if part}


@dataclass(frozen=True, slots=True)
class _Opening:
    """Opens a connection to the database at `url`."""

    url: str

    def __call__(self) -> Any:
        is_sqlite = self.url.startswith(SQLITE)
        return _open_sqlite(self.url) if is_sqlite else _open_server(self.url)


def _open_sqlite(url: str) -> sqlite3.Connection:
    # Autocommit, and synced with each commit: what was answered is on the disk.
    file = url.removeprefix(SQLITE)
    connection = sqlite3.connect(
        file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _open_server(url: str) -> ServerConnection:
    try:
        return ServerConnection(url, _SETTINGS)
    except ImportError as error:
        raise UnsupportedError(
            f"the log in {shown(url)} needs the package psycopg: install tensorrepo[postgres]"
        ) from error


def _lock(
    connection: ServerConnection, lock: int, wait_seconds: float, question: Question | None
) -> tuple[bool, Rows]:
    """Begin a transaction of a PostgreSQL server, take the lock in it, and ask what comes first.

    Each statement sees what was committed when it begins: the question, all of those who had the
    lock before.

    Returns:
        Whether it has the lock, and the rows of the question.
    """
    import psycopg

    asked: list[Question] = [("BEGIN", ())]
    if wait_seconds:
        asked.append((f"SET LOCAL lock_timeout = {round(wait_seconds * 1000)}", ()))
    asked.append((f"SELECT pg_{'' if wait_seconds else 'try_'}advisory_xact_lock({lock})", ()))
    try:
        answers = connection.ask_together(asked if question is None else [*asked, question])
    except psycopg.errors.LockNotAvailable:
        return False, []
    is_locked = bool(wait_seconds) or answers[len(asked) - 1][0][0]
    return is_locked, [] if question is None else answers[-1]


def _rows(connection: Any, text: str, values: Sequence[object]) -> Rows:
    if isinstance(connection, ServerConnection):
        return connection.ask(text, values)
    rows: Rows = connection.execute(text, values).fetchall()
    return rows


def _rows_of_last(connection: ServerConnection, text: str, values: Sequence[object]) -> Rows:
    """The rows of the statement that ends a transaction of a PostgreSQL server.

    It goes together with the COMMIT: everybody waits for this answer.
    """
    return connection.ask_together([(text, values), ("COMMIT", ())])[0]


def _is_of_psycopg(error: BaseException) -> bool:
    return type(error).__module__.startswith("psycopg")


def _code(error: BaseException) -> str:
    """SQLSTATE, or SQLite's name of an error; empty where the server never answered."""
    return str(getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", ""))


def _is(error: BaseException, codes: set[str]) -> bool:
    """Whether an error is among those, or of a class, or a subclass, of them."""
    code = _code(error)
    main = "_".join(code.split("_")[:2]) if code.startswith("SQLITE_") else code[:2]
    return not codes.isdisjoint({code, main})
