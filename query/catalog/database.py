"""Catalog database: connections, write lock, cursor and damage.

A SQL database that pictures one repository at one record of its log. It is a cache: whatever it
says can be made again from the repository, and nothing is lost with it. `sync.catch_up` makes it
equal to the repository; here it is opened, locked and looked at.

One process writes at a time, in SQLite and in PostgreSQL. Others wait for it; after a second they
log for which process, and at a limit they fail and say what to do.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import StaticPool

from tensorrepo.formats.common.arguments import without_password
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.tables import POSTGRESQL, SQLITE
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Digest

WAIT_SECONDS: Final = 600  # for another process that is catching up
TELL_SECONDS: Final = 1.0  # so long nobody is told that a command waits
_PAUSE_SECONDS: Final = 0.02
_LOCK: Final = 0x74727063  # what our writers agree on in one PostgreSQL database
_WAL_WRITER: Final = "120"  # the byte of a -shm file that who writes in SQLite's log has locked
_LOGGER: Final = logging.getLogger(__name__)
_HOLDERS: Final = text(
    "SELECT pid, usename, application_name, client_addr, "
    "extract(epoch FROM clock_timestamp() - xact_start) AS seconds "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = :lock AND objsubid = 1 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def ask_sqlite(where: str, file: Path | None, ask: Callable[[], object]) -> None:
    """Ask SQLite again while another process has its file.

    Args:
        where: the catalog, as people know it.
        file: SQLite's file; None: it is in memory.
        ask: raises what SQLite raises where the file is locked.

    Raises:
        StorageError: the other one went on for too long.
    """
    wait = _Wait(where)
    while True:
        try:
            ask()
        except (OperationalError, sqlite3.OperationalError) as error:
            if not _is_busy(error):
                raise
            wait.look(lambda: _of_file(file), error)
        else:
            return
        time.sleep(_PAUSE_SECONDS)


def lock_postgresql(where: str, connection: Connection) -> None:
    """Let no other process write to this catalog in PostgreSQL until the transaction ends.

    Who waits stands in the server's queue from when the user was told: first come, first served.

    Raises:
        StorageError: another one went on for too long.
    """
    wait = _Wait(where)
    seconds = min(TELL_SECONDS, WAIT_SECONDS)
    while (error := _lock_within(connection, seconds)) is not None:
        wait.look(lambda: _of_server(connection), error)
        seconds = max(WAIT_SECONDS - wait.seconds, _PAUSE_SECONDS)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS * 1000:.0f}ms'")


def name_session(_1: object, _2: object, _3: object, parameters: dict[str, Any]) -> None:
    """Tell a PostgreSQL server who we are, unless the URL says it: others see it when they wait."""
    name = f"tensorrepo, process {os.getpid()} of {platform.node()}"
    parameters.setdefault("fallback_application_name", name)


def bound_waits(driver: Any, _: object) -> None:
    """Let nothing wait for ever on a connection to PostgreSQL: tables that change are locked."""
    driver.execute(f"SET lock_timeout = {WAIT_SECONDS * 1000:.0f}")
    driver.commit()


@dataclass(slots=True)
class _Wait:
    """One wait: since when, and whether it was told."""

    where: str
    began: float = 0.0
    is_told: bool = False

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def look(self, who: Callable[[], str], error: Exception) -> None:
        """Say so when it has taken long, and raise when it has taken too long."""
        if self.seconds >= WAIT_SECONDS:
            raise StorageError(
                f"the catalog {self.where}: gave up after waiting {self.seconds:.0f} s for "
                f"{who()}, which writes to it. Try again when that is done, or end that process: "
                "the catalog is only a cache, and stays as it was before."
            ) from error
        if self.seconds >= TELL_SECONDS and not self.is_told:
            self.is_told = True
            _LOGGER.warning(
                "waiting for %s, which writes to the catalog %s: up to %d s, or until Ctrl-C",
                who(), self.where, WAIT_SECONDS,
            )  # fmt: skip


def _lock_within(connection: Connection, seconds: float) -> OperationalError | None:
    """Try to lock; the error of a lock that another one held all the time."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{max(1, round(seconds * 1000))}ms'")
    try:
        with connection.begin_nested():
            # Not the cursor's row: before the first catch-up there is none, nor a table to lock.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        return error
    return None


def _of_server(connection: Connection) -> str:
    """Who has the lock, as the server knows it; what others do may be hidden from this user."""
    found = connection.execute(_HOLDERS, {"lock": _LOCK}).first()
    if found is None:
        return "another process"
    parts = [f"another process ({found.application_name or 'without a name'}"]
    parts.append(f"user {found.usename}" if found.usename else "")
    parts.append(f"at {found.client_addr}" if found.client_addr else "")
    parts.append(f"process {found.pid} of the server")
    parts.append(f"for {found.seconds:.0f} s already" if found.seconds is not None else "")
    return ", ".join(filter(None, parts)) + ")"


def _of_file(file: Path | None) -> str:
    """Which process of this machine writes to a SQLite file, where the system says it."""
    if file is None:
        return "another process"
    try:
        inode = file.with_name(f"{file.name}-shm").stat().st_ino
        lines = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
    except OSError:  # no Linux, or the file is new
        return "another process"
    for line in lines:
        if (
            "WRITE" in line
            and "->" not in line
            and line[-2:-1] == [_WAL_WRITER]
            and line[-3].endswith(f":{inode}")
        ):
            return f"another process ({line[-4]} of this machine)"
    return "another process"


def _is_busy(error: OperationalError | sqlite3.OperationalError) -> bool:
    cause = error.orig if isinstance(error, OperationalError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # of its kinds any


WRITES: Final = "tensorrepo_writes"  # an execution option: this transaction will write
_SPARE: Final = -1  # any number: a query holds a connection for each table that it reads
_BUSY_MS: Final = 200  # of SQLite's own waiting, which does not hear Ctrl-C
_CACHE_KIB: Final = 64 << 10
_SQLITE_SETTINGS: Final = (
    "journal_mode = WAL",  # readers go on while one writes
    "synchronous = NORMAL",  # a power cut may lose the newest rows: they are made again
    f"cache_size = -{_CACHE_KIB}",
    "temp_store = MEMORY",
    f"busy_timeout = {_BUSY_MS}",
    "foreign_keys = OFF",
)
_DAMAGED: Final = (
    "It is only a cache: `tensorrepo catalog rebuild` moves the damaged file aside and makes it "
    "anew."
)
_MISSING_DRIVER: Final = "pip install 'tensorrepo[postgres]'"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which record of which repository the catalog tells.

    `digest` names the bytes of that record. `shallow` are the commits without parents there.
    """

    repository: str
    generation: int
    digest: Digest
    shallow: frozenset[Digest]


@dataclass(frozen=True, slots=True)
class CatalogDatabase:
    """A catalog whose tables are there."""

    engine: Engine

    @property
    def url(self) -> str:
        """Where it is, without what may hold a password."""
        return _shown(self.engine.url)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the catalog, whatever others write meanwhile."""
        with told(self.engine), self.engine.connect() as connection:
            if self.engine.dialect.name == POSTGRESQL:
                connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that nobody else can write beside; kept when the block ends well."""
        with told(self.engine), self.engine.connect() as connection:
            connection.execution_options(**{WRITES: True})
            with connection.begin():
                if self.engine.dialect.name == POSTGRESQL:
                    lock_postgresql(self.url, connection)
                yield connection

    def is_there(self) -> bool:
        """Whether there is something: a server always counts, a file where it was made."""
        return self._file is None or self._file.exists()

    def shrink(self) -> None:
        """Write a SQLite file anew without what was deleted, its journal too."""
        if self._file is None:
            return
        with told(self.engine), closing(self.engine.raw_connection()) as connection:
            for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):  # in no transaction
                ask_sqlite(self.url, self._file, partial(connection.cursor().execute, statement))

    def is_damaged(self) -> bool:
        """Whether this is a SQLite file in which something is broken. Reads all of it."""
        if self._file is None:
            return False
        try:
            with self.reading() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        except CorruptError:
            return True
        return bool(found != "ok")

    def set_aside(self) -> Path:
        """Give a SQLite file another name, with what belongs to it. Who has it open keeps it.

        Returns:
            Where it lies now.
        """
        assert self._file is not None, "only files are set aside"
        self.dispose()
        names = (self._file.with_name(f"{self._file.name}.damaged{n or ''}") for n in count())
        aside = next(name for name in names if not name.exists())
        for suffix in ("", "-wal", "-shm"):
            part = self._file.with_name(self._file.name + suffix)
            try:
                part.replace(aside.with_name(aside.name + suffix))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise PermissionDenied(
                    f"the damaged catalog {part} cannot be moved aside: {error.strerror}. Delete "
                    "it, or name another one in TENSORREPO_CATALOG."
                ) from error
        return aside

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @property
    def _file(self) -> Path | None:
        is_file = self.engine.dialect.name == SQLITE and not _in_memory(self.engine.url)
        return Path(str(self.engine.url.database)) if is_file else None


def connect(url: str) -> Engine:
    """The database at `url`, as the catalog uses it. Nothing is read yet.

    Args:
        url: ``sqlite:///path``, ``sqlite://`` (in memory), ``postgresql://user@host/database``,
            or the path of a SQLite file: one with a slash, or that ends in .db or .sqlite.

    Raises:
        InvalidInputError: another kind of database, or no URL.
        UnsupportedError: the driver is not installed.
        PermissionDenied: the folder of the file cannot be made.
    """
    parsed = _parse(url)
    try:
        engine = create_engine(parsed, **_options(parsed))
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"the catalog {_shown(parsed)} needs the package {error.name}: {_MISSING_DRIVER}"
        ) from error
    if engine.dialect.name == SQLITE:
        _prepare_sqlite(engine, parsed)
    else:
        event.listen(engine, "do_connect", name_session)
        event.listen(engine, "connect", bound_waits)
    return engine


def read_cursor(connection: Connection) -> Cursor | None:
    """How far the catalog tells; None when nothing was ever put in."""
    found = connection.execute(select(tables.cursor)).one_or_none()
    if found is None:
        return None
    shallow = frozenset(Digest(each) for each in json.loads(found.shallow))
    return Cursor(found.repository, found.generation, Digest(found.digest), shallow)


def read_owner(connection: Connection) -> str | None:
    """Of which repository it is, also in tables of an earlier revision; None: it is empty."""
    return connection.execute(select(tables.cursor.c.repository)).scalar_one_or_none()


def count_rows(connection: Connection) -> dict[str, int]:
    """How many rows each table has that has any."""
    counted = {
        name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in tables.SHOWN.items()
    }
    return {name: rows for name, rows in counted.items() if rows}


def relations(connection: Connection) -> list[str]:
    """The words by which edges of lineage say what something came from."""
    word = tables.lineage_edge.c.relation
    return sorted(connection.execute(select(word).distinct()).scalars())


@contextmanager
def told(engine: Engine) -> Iterator[None]:
    """What a database refuses, as one of our errors."""
    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip().split("\n", 1)[0]
        where = _shown(engine.url)
        if "readonly" in reason or "permission denied" in reason:
            raise PermissionDenied(
                f"the catalog {where} cannot be written: {reason}. Name another one in "
                "TENSORREPO_CATALOG."
            ) from error
        if "malformed" in reason or "not a database" in reason:
            raise CorruptError(f"the catalog {where}: {reason}. {_DAMAGED}") from error
        raise StorageError(f"the catalog {where}: {reason}. {_advice(reason)}") from error
    except UnicodeDecodeError as error:  # of the names in SQLite's own tables
        where = _shown(engine.url)
        raise CorruptError(f"the catalog {where}: its text is malformed. {_DAMAGED}") from error
    except SQLAlchemyError as error:
        where = _shown(engine.url)
        raise StorageError(f"the catalog {where}: {error}") from error


def _shown(url: URL) -> str:
    """A URL for people: without the password, and without a query, which may hold it as well."""
    return url.set(query={}).render_as_string(hide_password=True)


def _advice(reason: str) -> str:
    if "locked" in reason or "lock timeout" in reason:
        return "Another process has been changing it for long: wait, or end that process."
    if "no such table" in reason or "does not exist" in reason:
        return "`tensorrepo catalog status` says what is wrong with its tables."
    return "It is only a cache: nothing of the repository is lost. Look at that database."


def _parse(url: str) -> URL:
    # Whoever means a file names its place or its suffix: a word alone is rather a mistake.
    is_path = "/" in url or "\\" in url or Path(url).suffix in (".db", ".sqlite", ".sqlite3")
    if not url.strip() or _HALF_URL.match(url) or not is_path:
        raise InvalidInputError(f"no URL of a catalog: {without_password(url)!r:.80}. {_URLS}")
    text = url if "://" in url else f"sqlite:///{url}"
    try:
        parsed = make_url(text)
        if parsed.drivername in ("postgres", "postgresql"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        kind = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        shown = f"{text.partition('://')[0]}://..."  # what follows may hold a password
        raise InvalidInputError(f"no URL of a catalog: {shown!r:.80}. {_URLS}") from error
    if kind not in (SQLITE, POSTGRESQL):
        raise InvalidInputError(f"a catalog cannot be in {kind}. {_URLS}")
    return parsed


_HALF_URL: Final = re.compile(r"\w{2,}:(?!//)")  # "sqlite:/x.db" is no path that anybody means
_URLS: Final = (
    "Expected sqlite:///path/to/file.db, a path such as ./catalog.db, or "
    "postgresql://user@host/database."
)


def _options(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == POSTGRESQL:
        return {"pool_size": 4, "max_overflow": _SPARE, "pool_pre_ping": True}
    if _in_memory(url):
        return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    return {
        "max_overflow": _SPARE,
        "connect_args": {"timeout": _BUSY_MS / 1000, "check_same_thread": False},
    }


def _in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")


def _prepare_sqlite(engine: Engine, url: URL) -> None:
    file = None if _in_memory(url) else Path(str(url.database))
    if file is not None:
        folder = file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise PermissionDenied(
                f"the folder {folder} of the catalog cannot be made: {error.strerror}. Name "
                "another place in TENSORREPO_CATALOG."
            ) from error
    event.listen(engine, "connect", partial(_set_up, _shown(url), file))
    event.listen(engine, "begin", partial(_begin, file))


def _set_up(where: str, file: Path | None, driver: Any, _: object) -> None:
    driver.isolation_level = None  # we say BEGIN ourselves: the driver says it too late
    for setting in _SQLITE_SETTINGS:
        ask_sqlite(where, file, partial(driver.execute, f"PRAGMA {setting}"))


def _begin(file: Path | None, connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES)

    def begin() -> None:
        # A reader that begins to write after others have is refused, so a writer says so at once.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        # The first read is what may have to wait: for who mends the file after a crash.
        connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1")

    ask_sqlite(_shown(connection.engine.url), file, begin)
