"""DuckDB session of one query, with our tables as views.

Names in the query that are tables of ours become views over `pushdown` tables of a connection of
its own, in memory; DuckDB does the rest. Nothing of Python's variables is ever a table.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any, Protocol, TypeAlias

from tensorrepo.query.sql.functions import NAMES, add_function
from tensorrepo.query.sql.names import QueryNames, as_utf8, names_of, quoted, text_literal
from tensorrepo.query.sql.pushdown import Scanned, ScannedTable, StoppedError, as_arrow_dataset
from tensorrepo.query.sql.results import Result
from tensorrepo.query.sql.search_calls import FUNCTIONS, AnswersCalls, answer_calls, find_calls
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.suggest import did_you_mean, there_are

Params: TypeAlias = "Sequence[Any] | Mapping[str, Any] | None"
MEMORY = "1GiB"
_TEXT_AS_NUMBER = re.compile(
    r"Could not convert string .* to U?INT\d+ when casting from source column (\w+)"
)
_NO_SEARCH = re.compile(rf"Table Function with name \"?({'|'.join(FUNCTIONS)})\"? does not exist")
_MISSING = re.compile(r'Table with name "?(.+?)"? does not exist')


class QueryTables(Protocol):
    """Which tables there are."""

    def begin(self) -> None:
        """A query begins: all tables that it names are of one moment."""

    def find(self, path: tuple[str, ...], scanned: Scanned) -> ScannedTable | None:
        """The table of this name, which dots join; None: there is none."""

    def known(self) -> Iterable[str]:
        """Names to choose from."""


@dataclass(frozen=True, slots=True)
class DuckSettings:
    """What a query may use.

    Attributes:
        memory: size of DuckDB's own tables, as it takes sizes; beyond it, it writes to `spill`.
        threads: number of DuckDB's threads; None: one for each core.
        spill: folder for what does not fit into memory; None: one of its own, which goes with the
            connection; "": nothing is spilt.
        external: whether files and extensions may be used, and settings changed.
    """

    memory: str = MEMORY
    threads: int | None = None
    spill: str | None = None
    external: bool = True

    def connect(self) -> Any:
        """A connection. Nothing is ever fetched from the network to answer a query."""
        import duckdb  # as heavy as the engine: loaded by who asks SQL

        # A name that all users of a machine share would show to all of them what is spilt.
        own = tempfile.mkdtemp(prefix="tensorrepo-sql-") if self.spill is None else None
        options: dict[str, Any] = {
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "temp_directory": own or self.spill,
            "memory_limit": self.memory,
        }
        if self.threads is not None:
            options["threads"] = self.threads
        connection = duckdb.connect(config=options)
        if own is not None:
            weakref.finalize(connection, shutil.rmtree, own, ignore_errors=True)
        if not self.external:  # last: DuckDB takes no folder after it
            for setting in (
                "autoload_known_extensions = false",
                "allow_community_extensions = false",
                "enable_external_access = false",
                "lock_configuration = true",
            ):
                connection.execute(f"SET {setting}")
        return connection


@dataclass(slots=True)
class DuckSession:
    """A connection on which queries follow one another; temporary tables stay between them."""

    tables: QueryTables
    settings: DuckSettings = field(default_factory=DuckSettings)
    scanned: Scanned = field(default_factory=Scanned)
    answers: AnswersCalls | None = None  # calls of `nearest` and `search`; None: nobody does
    _connection: Any = None
    _functions: set[str] = field(default_factory=set)

    @property
    def connection(self) -> Any:
        """DuckDB's."""
        if self._connection is None:
            self._connection = self.settings.connect()
        return self._connection

    def query(self, text: str, params: Params = None, *, single: bool = False) -> Result:
        """Rows of the last statement of `text`, as they come; `single`: of the only one.

        Raises:
            InvalidInputError: what DuckDB says about it, with the place.
            NotFoundError: a table that is not there, with near names.
        """
        self.scanned.begin()
        self.tables.begin()
        text = self._listing() if is_listing(text) else text
        names = names_of(text)
        with in_our_words(self.scanned, self.tables.known):
            if single and len(self.connection.extract_statements(text)) != 1:
                raise InvalidInputError(
                    f"SQL: expected one statement, found several: {text!r:.200}"
                )
            self._add_functions(names)
            add_tables(self.connection, names, partial(self.tables.find, scanned=self.scanned))
            calls = [] if self.answers is None else find_calls(text)
            if calls and self.answers is not None:
                evaluate = partial(self._value, params=params)
                register = self.connection.register
                text = answer_calls(text, calls, names.words, evaluate, self.answers, register)
                params = self._needed(text, params)
            relation = self.connection.sql(text, params=params)
        reworded = partial(in_our_words, self.scanned, self.tables.known)
        return Result(self.connection, relation, self.scanned, reworded)

    def _value(self, expression: str, params: Params) -> Any:
        """The value of an expression in a query."""
        text = f"SELECT ({expression})"
        rows = self.connection.sql(text, params=self._needed(text, params)).fetchall()
        return rows[0][0] if rows else None

    def _needed(self, text: str, params: Params) -> Params:
        """Those of the parameters that a text names."""
        if not params:
            return params
        named = self.parameters(text)
        if not isinstance(params, Mapping):
            params = {str(at): value for at, value in enumerate(params, 1)}
        return {name: value for name, value in params.items() if name in named} or None

    def _listing(self) -> str:
        """`table_listing`, with the tables that this session made itself."""
        return table_listing(self.tables.known(), _OWN_TABLES)

    def parameters(self, text: str) -> frozenset[str]:
        """Names of the parameters that a query has; of ``?`` their numbers.

        Raises:
            InvalidInputError: it is no SQL.
        """
        as_utf8(text)
        with in_our_words(self.scanned, self.tables.known):
            found = self.connection.extract_statements(text)
        return frozenset().union(*(each.named_parameters for each in found))

    def select(self, text: str) -> Result:
        """Rows of a query that came with a repository: of one SELECT.

        Raises:
            InvalidInputError: it is something else, or what DuckDB says about it.
            NotFoundError: a table that is not there, with near names.
            PermissionDenied: it asks for what the settings of this session rule out.
        """
        as_utf8(text)
        with in_our_words(self.scanned, self.tables.known):
            check_select(self.connection, text)
        return self.query(text)

    def _add_functions(self, names: QueryNames) -> None:
        """Those that a query names: each costs milliseconds."""
        named = {word.lower() for word in names.words} & NAMES
        for name in sorted(named - self._functions):
            add_function(self.connection, name)
            self._functions.add(name)

    def close(self) -> None:
        """Forget its tables."""
        self.scanned.stop.set()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._functions.clear()


_LISTING = re.compile(r"\s*(?:SHOW\s+(?:ALL\s+)?TABLES|DESCRIBE|SHOW)\s*;?\s*", re.IGNORECASE)
_OWN_TABLES = """
UNION SELECT table_name FROM duckdb_tables() WHERE NOT internal
UNION SELECT view_name FROM duckdb_views() WHERE NOT internal AND sql NOT LIKE '%"tensorrepo:%'
"""


def is_listing(text: str) -> bool:
    """Whether a query asks which tables there are: ours are no tables before a query names them."""
    return _LISTING.fullmatch(text) is not None


def table_listing(names: Iterable[str], others: str = "") -> str:
    """A query for the names of tables, as ``SHOW TABLES`` gives them, the catalog's at the end."""
    rows = ", ".join(f"({text_literal(name)})" for name in sorted(names))
    listed = f"(VALUES {rows}) AS known(name)" if rows else "(SELECT '' AS name) WHERE false"
    found = f"SELECT name FROM {listed}{others}"  # noqa: S608 - every name is quoted
    return f"SELECT name FROM ({found}) ORDER BY name LIKE 'catalog.%', name"  # noqa: S608


def check_select(connection: Any, text: str) -> None:
    """Raises InvalidInputError where `text` is anything but one SELECT."""
    import duckdb

    found = connection.extract_statements(text)
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        raise InvalidInputError("SQL: one SELECT is taken, and nothing else")


def add_tables(
    connection: Any, names: QueryNames, find: Callable[[tuple[str, ...]], ScannedTable | None]
) -> None:
    """Make the tables that a query names known to a connection, as views."""
    seen: dict[str, str] = {}
    for path in names.paths:
        table = find(path)
        if table is None:
            continue
        called = ".".join(map(quoted, path))
        other = seen.setdefault(called.lower(), called)
        if other != called:
            raise InvalidInputError(
                f"SQL does not tell {other} from {called}: write one of them with its commit, "
                f"such as {quoted(path[-1] + '@main')}."
            )
        _add_view(connection, path, table, names)


def _add_view(
    connection: Any, path: tuple[str, ...], table: ScannedTable, names: QueryNames
) -> None:
    called = ".".join(map(quoted, path))
    hidden = f"tensorrepo:{called}"  # quoted: a name may hold dots, and be another's with its space
    _check_columns(path, table)
    connection.register(hidden, as_arrow_dataset(table))
    shown = [*table.shown]
    shown += [name for name in table.schema.names if name in names.words and name not in shown]
    columns = ", ".join(map(quoted, shown))
    if len(path) > 1:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(path[0])}")
    kind = "VIEW" if len(path) > 1 else "TEMP VIEW"
    selected = f"SELECT {columns} FROM {quoted(hidden)}"  # noqa: S608 - every name is quoted
    connection.execute(f"CREATE OR REPLACE {kind} {called} AS {selected}")


def _check_columns(path: tuple[str, ...], table: ScannedTable) -> None:
    """DuckDB would take one column for the other where names differ in case alone."""
    seen: dict[str, str] = {}
    for name in table.schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInputError(
                f"SQL does not tell column {other!r} of {'.'.join(path)} from {name!r}: rename one "
                "of them (`tensorrepo dataset column rename`), or read the dataset without SQL."
            )


# ------------------------------------------------------------------------------ errors


@contextmanager
def in_our_words(scanned: Scanned, known: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Errors of DuckDB become ours; those of a scan come out as they were raised."""
    try:
        yield
    except Error:
        raise
    except BaseException as error:
        failed, scanned.failed = scanned.failed, None
        if failed is not None and not isinstance(failed, StoppedError | GeneratorExit):
            raise failed from None
        if not is_of_duckdb(error):
            raise
        raise reworded(type(error).__name__, str(error).strip(), known) from error


def is_of_duckdb(error: BaseException) -> bool:
    """Whether DuckDB raised it, or Arrow while it read from DuckDB."""
    home = type(error).__module__
    return home.startswith(("_duckdb", "duckdb")) or type(error) in (RuntimeError, OSError)


def reworded(kind: str, text: str, known: Callable[[], Iterable[str]]) -> Error:
    """An error of DuckDB, by its class and text, as one of ours: by what the caller does next."""
    text = text.removeprefix("SQL: ")  # of ours, from the process that answers strangers
    missing = _MISSING.search(text)
    if missing is not None:
        return NotFoundError(_unknown_table(missing[1], known()))
    if (search := _NO_SEARCH.search(text)) is not None:
        return InvalidInputError(
            f"SQL: {search[1]}(...) is a table behind FROM or JOIN of your own queries: `repo.sql` "
            "and `tensorrepo sql` answer it. It is not answered where others' queries are: a "
            "service, a view that came with a repository"
        )
    if kind == "PermissionException" or "lock_configuration" in text:
        return PermissionDenied(f"SQL: {text}")
    return InvalidInputError(f"SQL: {text}{_about_classes(text)}")


def _about_classes(text: str) -> str:
    column = _TEXT_AS_NUMBER.search(text)
    if column is None:
        return ""
    return f"\nIf {column[1]} holds classes, {column[1]}_number is their numbers."


def _unknown_table(name: str, known: Iterable[str]) -> str:
    names = sorted(known, key=lambda each: ("." in each, each))
    listed = there_are(names, "There are no datasets.")
    return f"SQL: no table {name!r}.{did_you_mean(name, names, listed, shown=repr)}"
