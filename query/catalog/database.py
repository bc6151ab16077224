"""Catalog database: connections, cursor, locks and damage.

A SQL database that pictures one repository at one record of its log. It is a cache: whatever it
says can be made again from the repository, and nothing is lost with it. `sync.catch_up` makes it
equal to the repository; here it is opened, locked and looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.tables import POSTGRESQL, SQLITE
from tensorrepo.query.catalog.write_lock import (
    ask_sqlite,
    bound_waits,
    lock_postgresql,
    name_session,
)
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Digest

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
        _prepare_postgresql(engine)
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
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in tables.METADATA.tables.values()
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
    if not url.strip() or _HALF_URL.match(url):
        raise InvalidInputError(f"no URL of a catalog: {url!r:.80}. {_URLS}")
    if "://" not in url and not _is_path(url):
        raise InvalidInputError(f"no URL of a catalog: {url!r:.80}. {_URLS}")
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


def _is_path(text: str) -> bool:
    """Whether somebody means a file: a word alone is rather a mistake than one's name."""
    return "/" in text or "\\" in text or Path(text).suffix in (".db", ".sqlite", ".sqlite3")


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


def _prepare_postgresql(engine: Engine) -> None:
    event.listen(engine, "do_connect", lambda _1, _2, _3, parameters: name_session(parameters))
    event.listen(engine, "connect", lambda driver, _: bound_waits(driver))
