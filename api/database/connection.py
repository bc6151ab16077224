"""Connection to the service's database: SQLite beside it, or PostgreSQL for several processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tensorrepo.api.database.tables import METADATA
from tensorrepo.formats.common.arguments import without_password
from tensorrepo.migrations.service.revisions import prepare
from tensorrepo.repo.errors import InvalidInputError, StorageError

_LOGGER = logging.getLogger(__name__)
_BUSY_SECONDS = 30
_WRITES = "tensorrepo_writes"


class Database:
    """The service's database. Thread-safe: each call takes a connection of the pool."""

    def __init__(self, url: str) -> None:
        """Tables are brought to this version's. `url` is as SQLAlchemy has it."""
        self.where = without_password(url)
        self._engine = _engine(url)
        self._writing = self._engine.execution_options(**{_WRITES: True})
        try:
            with self._writing.begin() as connection:
                prepare(connection, METADATA)
        except OperationalError as error:
            self.close()
            raise StorageError(
                f"the service's database {self.where} does not answer: {error.orig}. Check the "
                "setting `database`, and whether it runs.",
                transient=True,
            ) from error
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection to ask with."""
        with self._failures(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection that sees all tables as they were at one moment."""
        is_sqlite = self._engine.dialect.name == "sqlite"  # where every transaction is one
        options = {} if is_sqlite else {"isolation_level": "REPEATABLE READ"}
        engine = self._engine.execution_options(**options)
        with self._failures(), engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection whose changes are durable together when the block ends."""
        with self._failures(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        # The last is of the pool, which gave no connection for 30 s: others have all of them. Where
        # the database is, and what it said, is for the log alone.
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            said = getattr(error, "orig", None) or error
            _LOGGER.warning("the database %s does not answer: %s", self.where, said)
            raise StorageError(
                "the service's database does not answer. Try again; if it lasts, tell whoever runs "
                "the service.",
                transient=True,
            ) from error
        except (DataError, OverflowError, UnicodeEncodeError) as error:
            raise InvalidInputError(
                "the service cannot keep a text with a NUL or half a character in it, nor so large "
                "a number: correct it"
            ) from error

    def close(self) -> None:
        self._engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInputError(
            f"{without_password(url)} is no URL of a database: expected sqlite:///PATH or "
            "postgresql://user@host/name"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        engine = create_engine(parsed, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True)


def _begin_sqlite(connection: Connection) -> None:
    # Who writes queues from the start. A transaction that reads first, and writes then, fails at
    # once where another one wrote in between: SQLite waits for a lock, not for a newer view.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins, not the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # what was answered is durable
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
