"""SQL log backend: keys below `log/` in PostgreSQL or SQLite, all others in a store.

A database commits a small record faster than an object store does. One table holds the logs of any
number of repositories; its primary key gives what the log stands on, a create with one winner. The
log is the same, byte for byte; only where its keys lie differs.

Each process has one connection, made when it is first needed, again after it was lost and anew in
a forked child. A read is repeated once on a new connection. A create is not: whether it happened is
for the caller to find out (`append`).

Source:
    docs/spec/log.md, section "Log in SQL".
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from tensorrepo.repo.backends.base import (
    Backend,
    CommonBackend,
    StoredKey,
    Uploads,
    check_key,
    check_length,
    check_prefix,
)
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Buffer

T = TypeVar("T")
_Rows: TypeAlias = list[tuple[Any, ...]]

LOG_PREFIX: Final = "log/"
IDENTITY_KEY: Final = "repo.json"  # its bytes say that a log of this repository is here
SQLITE: Final = "sqlite:///"
_POSTGRESQL: Final = ("postgresql://", "postgres://")
_TABLE: Final = "tensorrepo_log"
_BUSY_SECONDS: Final = 30
_PAGE: Final = 1000
_LOST_LIMIT: Final = "60s"  # a server that says nothing for so long is taken for lost
_ABANDONED: list[object] = []  # connections of a parent process, which a child must not close
_SHAPE: Final = (
    "CREATE TABLE IF NOT EXISTS tensorrepo_log (repository TEXT NOT NULL, key {text} NOT NULL, "
    "value {blob} NOT NULL, written DOUBLE PRECISION NOT NULL, PRIMARY KEY (repository, key))"
)


@dataclass(slots=True)
class _Session:
    """The connection of one process, used by one thread at a time."""

    process: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Any = None

    def __del__(self) -> None:
        if self.process == os.getpid():
            _drop(self)


class SqlLogBackend(CommonBackend):
    """A store whose keys below `log/` are in a SQL database.

    Args:
        store: holds all other keys.
        database: ``postgresql://...`` or ``sqlite:///path``.
        repository: id of the repository: tells its rows from those of others.
    """

    def __init__(self, store: Backend, database: str, repository: str) -> None:
        self.store = store
        self.database = check_database(database)
        self.repository = repository
        self.url = store.url
        self.guarantee = store.guarantee
        self.local_root: Path | None = None  # a call that failed may yet land in the database
        self._is_sqlite = database.startswith(SQLITE)
        self._session = _Session()

    def __reduce__(self) -> tuple[object, ...]:
        return SqlLogBackend, (self.store, self.database, self.repository)

    @property
    def place(self) -> str:
        """Where the log is, for people: without user, password and options."""
        return shown(self.database)

    def prepare(self, identity: bytes) -> None:
        """Make the table, if need be, and room for the log of this repository."""
        text, blob = ("TEXT", "BLOB") if self._is_sqlite else ('TEXT COLLATE "C"', "BYTEA")
        shape = _SHAPE.format(text=text, blob=blob)
        self._again(lambda: self._ask(shape))
        self._insert(IDENTITY_KEY, identity)

    def forget(self) -> None:
        """Take the room back that was made for a repository that did not come to be."""
        self._ask(f"DELETE FROM {_TABLE} WHERE repository = ?", (self.repository,))  # noqa: S608

    def open_log(self, identity: bytes, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Values of `keys`, once it is certain that this database has the log.

        Raises:
            NotFoundError: it has no log of this repository: it is another database.
        """
        found = self.read_many([IDENTITY_KEY, *keys])
        if found.pop(IDENTITY_KEY) != identity:
            raise NotFoundError(
                f"the database {self.place} has no log of repository {self.repository} "
                f"({self.url}): it is another database, or was restored from before that. Set "
                "TENSORREPO_LOG, or `tensorrepo config --global log.url`, to the right one."
            )
        return found

    def read_many(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Values of keys of the log by one query; None for the absent."""
        wanted = [check_key(key) for key in keys]
        found: dict[str, bytes | None] = dict.fromkeys(wanted)
        for start in range(0, len(wanted), _PAGE // 2):
            part = wanted[start : start + _PAGE // 2]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM {_TABLE} WHERE repository = ? AND key IN ({marks})"  # noqa: S608
            rows = self._again(lambda q=query, p=part: self._ask(q, (self.repository, *p)))  # type: ignore[misc]  # mypy takes no defaults in lambdas
            found |= {key: bytes(value) for key, value in rows}
        return found

    def holds(self, key: str) -> bool:
        """Whether `key` is one of those in the database."""
        return key.startswith(LOG_PREFIX)

    def read(self, key: str) -> bytes:
        if not self.holds(key):
            return self.store.read(key)
        value = self.read_many([key])[key]
        if value is None:
            raise self.no_key(key)
        return value

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        if not self.holds(key):
            return self.store.read_range(key, start, stop)
        view = memoryview(self.read(key))[start:stop]
        check_length(f"{self.url}/{key}", start, stop, view.nbytes)
        return view

    def size(self, key: str) -> int | None:
        if not self.holds(key):
            return self.store.size(key)
        query = f"SELECT length(value) FROM {_TABLE} WHERE repository = ? AND key = ?"  # noqa: S608
        rows = self._again(lambda: self._ask(query, (self.repository, check_key(key))))
        return rows[0][0] if rows else None

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if not self.holds(key):
            return self.store.create(key, parts)
        return self._insert(check_key(key), b"".join(parts))

    def uploads(self) -> Uploads:
        return _Uploads(self)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        if not self.holds(key):
            self.store.overwrite(key, parts)
            return
        self._ask(
            f"INSERT INTO {_TABLE} VALUES (?, ?, ?, ?) ON CONFLICT (repository, key) "  # noqa: S608
            "DO UPDATE SET value = excluded.value, written = excluded.written",
            (self.repository, check_key(key), b"".join(parts), time.time()),
        )

    def delete(self, key: str) -> None:
        if not self.holds(key):
            self.store.delete(key)
            return
        query = f"DELETE FROM {_TABLE} WHERE repository = ? AND key = ?"  # noqa: S608
        self._ask(query, (self.repository, check_key(key)))

    def list(self, prefix: str) -> Iterator[StoredKey]:
        if check_prefix(prefix).startswith(LOG_PREFIX):
            return self._listed(prefix)
        if prefix:
            return self.store.list(prefix)
        return self._all()

    def close(self) -> None:
        session = self._session
        if session.process == os.getpid():
            with session.lock:
                _drop(session)
        self.store.close()

    def _all(self) -> Iterator[StoredKey]:
        """Keys of both, in order: what the store has below `log/` is not the log."""
        waiting = True
        for stored in self.store.list(""):
            if waiting and stored.key > LOG_PREFIX:
                waiting = False
                yield from self._listed(LOG_PREFIX)
            if not self.holds(stored.key):
                yield stored
        if waiting:
            yield from self._listed(LOG_PREFIX)

    def _listed(self, prefix: str) -> Iterator[StoredKey]:
        after, end = prefix, prefix[:-1] + chr(ord("/") + 1)
        query = (
            f"SELECT key, length(value), written FROM {_TABLE} WHERE repository = ? "  # noqa: S608
            f"AND key > ? AND key < ? ORDER BY key LIMIT {_PAGE}"
        )
        while True:
            rows = self._again(lambda at=after: self._ask(query, (self.repository, at, end)))  # type: ignore[misc]  # mypy takes no defaults in lambdas
            yield from (StoredKey(*row) for row in rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def _insert(self, key: str, value: bytes) -> bool:
        """Create `key`. What is visible here is durable: each statement commits, and syncs."""
        rows = self._ask(
            f"INSERT INTO {_TABLE} VALUES (?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT (repository, key) DO NOTHING RETURNING key",
            (self.repository, key, value, time.time()),
        )
        return bool(rows)

    def _again(self, ask: Callable[[], T]) -> T:
        """Ask once more where the connection was lost; only what may be asked twice."""
        try:
            return ask()
        except StorageError as error:
            if not error.transient:
                raise
        return ask()

    def _ask(self, query: str, values: Sequence[object] = ()) -> _Rows:
        """The rows of one statement, committed by itself."""
        session = self._current()
        with session.lock:
            try:
                if session.connection is None:
                    session.connection = self._connect()
                text = query if self._is_sqlite else query.replace("?", "%s")
                cursor = session.connection.execute(text, values)
                return cursor.fetchall() if cursor.description else []
            except Error:
                raise
            except BaseException as error:
                # Ctrl-C, too: a connection in the midst of an answer is of no more use.
                _drop(session)
                found = self._explained(error)
                if found is None:
                    raise
                raise found from error

    def _current(self) -> _Session:
        session = self._session
        if session.process != os.getpid():
            _ABANDONED.append(session)
            session = self._session = _Session()
        return session

    def _connect(self) -> Any:
        return _open_sqlite(self.database) if self._is_sqlite else _open_server(self.database)

    def _explained(self, error: BaseException) -> Error | None:
        """What a driver raised as one of our errors; None for what is none of a driver's."""
        where = f"the log of {self.url} in {self.place}"
        state = getattr(error, "sqlstate", None)
        if isinstance(error, sqlite3.Error):
            name = getattr(error, "sqlite_errorname", "")
            busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        elif type(error).__module__.startswith("psycopg"):
            # 08, 57, 53: connection, operator, resources; 40: deadlock. No state: never answered.
            name, busy = "", state is None or state[:2] in {"08", "57", "53", "40"}
        else:
            return None
        reason = str(error).strip().split("\n", 1)[0].replace(self.database, self.place)
        if state == "42P01" or "no such table" in reason:
            return NotFoundError(
                f"{where}: that database has no table {_TABLE}: it is another database. Set "
                "TENSORREPO_LOG, or `tensorrepo config --global log.url`, to the right one."
            )
        if name.startswith("SQLITE_READONLY") or name == "SQLITE_CANTOPEN":
            return PermissionDenied(f"{where}: {reason}. Look at the rights of that file.")
        if state is not None and (state in {"42501", "25006"} or state[:2] == "28"):
            return PermissionDenied(f"{where}: {reason}. Ask who runs the database.")
        advice = "Is the server up? Try again." if busy else "Look at that database."
        return StorageError(f"{where}: {reason}. {advice}", transient=busy)


class _Uploads(Uploads):
    """Creates of which those of the log are made at once."""

    def __init__(self, backend: SqlLogBackend) -> None:
        self._backend = backend
        self._others = backend.store.uploads()
        self._lock = threading.Lock()
        self._created: dict[str, bool] = {}
        self._aborted = False

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        if not self._backend.holds(key):
            self._others.create(key, parts)
            return
        if self._aborted:
            raise StorageError(f"{self._backend.url}: this upload was aborted")
        created = self._backend.create(key, parts)
        with self._lock:
            self._created[key] = self._created.get(key, False) or created

    def finish(self) -> dict[str, bool]:
        found = self._others.finish()
        with self._lock:
            created, self._created = self._created, {}
        return found | created

    def abort(self) -> None:
        self._aborted = True
        self._others.abort()


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
    scheme, _, rest = url.partition("://")
    return url if url.startswith(SQLITE) else f"{scheme}://{rest.rpartition('@')[2].split('?')[0]}"


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


def _open_server(url: str) -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise UnsupportedError(
            f"the log in {shown(url)} needs the package psycopg: install tensorrepo[postgres]"
        ) from error
    # A standby lags behind: to it, a log would seem to have been rewound.
    connection = psycopg.connect(
        url, autocommit=True, connect_timeout=10, target_session_attrs="read-write",
        application_name="tensorrepo log",
    )  # fmt: skip
    # Who sees a record relies on it, so it must not be seen before it is on the server's disk.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.execute(f"SET statement_timeout = '{_LOST_LIMIT}'")
    return connection


def _drop(session: _Session) -> None:
    connection, session.connection = session.connection, None
    if connection is not None:
        connection.close()
