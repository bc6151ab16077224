"""Catalog of one repository: made when first asked, brought up to date before each question.

Above the catalog's tables and their revisions, below the handles and the service that ask it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from sqlalchemy import Connection, Engine

from tensorrepo.formats.runs.stored_run import state_of
from tensorrepo.migrations import revisions
from tensorrepo.migrations.revisions import SchemaFit, Standing
from tensorrepo.query.catalog import database as core
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.visibility import Visible
from tensorrepo.query.sql.catalog_tables import CatalogTable, DerivedColumn
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.query.sync import catch_up as catchup
from tensorrepo.query.sync.catch_up import CatchUpProgress, CaughtUp, Difference, differences
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.tables import RecordTable, Shown


@dataclass(frozen=True, slots=True, repr=False)
class CatalogStatus(Shown):
    """How a catalog stands to its repository.

    Attributes:
        url: where the catalog is, without a password.
        state: "current", "behind" (its rows: the next question brings it up to date), "empty",
            "old tables", "newer tables", "half-migrated", "damaged", "not a catalog", "other
            repository" or "rewound".
        revision: revision of its tables; None where there are none.
        newest_revision: the one that this tensorrepo works with.
        generation: the log record that it tells of.
        of_generation: the newest of the repository.
        rows: rows of each table that has any.
        advice: what to do; "" when nothing is to be done.
    """

    url: str
    state: str
    revision: str | None
    newest_revision: str
    generation: int
    of_generation: int
    rows: dict[str, int]
    advice: str

    @property
    def is_usable(self) -> bool:
        """Whether the next question will be answered without anybody's help."""
        return self.state in {"current", "behind", "empty"}

    def to_table(self) -> RecordTable:
        """Where it is and how it stands, above the rows of its tables."""
        tables_of = self.revision or "none yet"
        lines = [
            f"catalog   {self.url}",
            f"state     {self.state}",
            f"tables    revision {tables_of}, newest {self.newest_revision}",
            f"tells of  record {self.generation:,} of {self.of_generation:,}",
            *([self.advice] if self.advice else []),
        ]
        rows = tuple((name, f"{count:,}") for name, count in self.rows.items())
        return RecordTable(tuple(lines), ("table", ">rows") if rows else (), rows)

    def __repr__(self) -> str:
        return f"<catalog {self.url}: {self.state}>"


def _state_of_run(status: str, due_ns: int, environment: str) -> str:
    return state_of(status, due_ns, json.loads(environment).get("process", ""))


_TOLD = {"run": (DerivedColumn("state", ("status", "due_ns", "environment"), _state_of_run),)}


class RepositoryCatalog:
    """The SQL catalog of one repository. Safe to share between threads."""

    def __init__(self, repository: RepositoryCore, url: str) -> None:
        self._repository = repository
        self._url = url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} of {self._repository.url}>"

    @cached_property
    def engine(self) -> Engine:
        """The database. `reading` gives a connection to tables that are up to date."""
        return core.connect(self._url)

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return self._plain.url

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the catalog: the newest of the repository.

        Raises:
            UnsupportedError, CorruptError, InvalidInputError: the tables are not
                such as this version can use; says which command mends them.
        """
        self.catch_up()
        with self._plain.reading() as connection:
            yield connection

    def table(
        self, name: str, scanned: Scanned, visible: Visible | None = None
    ) -> CatalogTable | None:
        """A table as SQL over data reads it; None: there is none of this name.

        `visible` says which rows are given; None: all.
        """
        table = tables.SHOWN.get(name)
        told = _TOLD.get(name, ())
        return None if table is None else CatalogTable(table, self.reading, scanned, told, visible)

    def names(self) -> Iterator[str]:
        """Names of all tables."""
        return iter(tables.SHOWN)

    def catch_up(self, *, progress: Callable[[CatchUpProgress], None] | None = None) -> CaughtUp:
        """Take in what happened in the repository since the last time; makes tables at first."""
        self._make_tables()
        return catchup.catch_up(self._repository, self._plain, progress=progress)

    def erase_purged(self) -> None:
        """Take in what was purged, so that nothing of it is left; where there is a catalog."""
        if self._plain.is_there():
            self.catch_up()
            self._plain.shrink()

    def upgrade(self, to: str = revisions.HEAD) -> Standing:
        """Bring the tables to the newest revision, their rows with them.

        Raises:
            UnsupportedError: they are newer than this tensorrepo.
            CorruptError: they are half-migrated: `rebuild`.
            InvalidInputError: they are of another repository, or not ours.
        """
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit in {SchemaFit.DROPPED, SchemaFit.AHEAD, SchemaFit.HALF, SchemaFit.FOREIGN}:
                raise self._misfit(found)
            if found.fit is not SchemaFit.EMPTY:
                catchup.check_owner(self._repository, core.read_owner(connection))
            revisions.upgrade(connection, to)
            return revisions.standing(connection)

    def rebuild(
        self,
        *,
        progress: Callable[[CatchUpProgress], None] | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> CaughtUp:
        """Throw the catalog away and make it anew, whatever its tables hold.

        A SQLite file that is damaged gets another name first.

        Args:
            progress: callback that receives how far it is.
            warn: callback that receives the name that a damaged file got.

        Raises:
            InvalidInputError: the database has tables of that name that are not ours.
            StorageError: the database cannot be reached.
        """
        try:
            return self._rebuild(progress)
        except CorruptError:
            if not self._plain.is_damaged():  # but the repository is
                raise
        url, aside = self.url, self._plain.set_aside()
        warn(f"the catalog {url} was damaged: what is left of it is now {aside}")
        return self._rebuild(progress)

    def _rebuild(self, progress: Callable[[CatchUpProgress], None] | None) -> CaughtUp:
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit is SchemaFit.FOREIGN:
                raise self._misfit(found)
            if found.fit is not SchemaFit.CURRENT:
                revisions.remove(connection)
                revisions.upgrade(connection)
        return catchup.rebuild(self._repository, self._plain, progress=progress)

    def verify(self) -> list[Difference]:
        """Compare with a catalog made anew beside it, table by table; [] when they are equal."""
        self.catch_up()
        return list(differences(self._repository, self._plain))

    def status(self) -> CatalogStatus:
        """How it stands; changes nothing, and raises nothing for a catalog that is in disorder."""
        view = self._repository.log.refresh()
        try:
            found, cursor, rows = self._look()
        except CorruptError as error:
            newest, of = revisions.newest(), view.generation
            return CatalogStatus(self.url, "damaged", None, newest, 0, of, {}, str(error))
        state, advice = self._state(found)
        if cursor is not None:
            try:
                catchup.check_cursor(self._repository, cursor, view)
            except Error as error:
                other = isinstance(error, InvalidInputError)
                state, advice = ("other repository" if other else "rewound"), str(error)
            else:
                state = "current" if cursor.generation >= view.generation else "behind"
        elif found.fit is SchemaFit.CURRENT:
            state = "empty"
        return CatalogStatus(
            self.url,
            state,
            ", ".join(found.revisions) or None,
            revisions.newest(),
            0 if cursor is None else cursor.generation,
            view.generation,
            rows or {},
            advice,
        )

    def close(self) -> None:
        """Close all connections."""
        self._plain.dispose()

    @cached_property
    def _plain(self) -> core.CatalogDatabase:
        return core.CatalogDatabase(self.engine)

    def _look(self) -> tuple[Standing, core.Cursor | None, dict[str, int] | None]:
        """What is there: its tables, how far they tell, and how many rows they have."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
            if found.fit is not SchemaFit.CURRENT:
                return found, None, None
            return found, core.read_cursor(connection), core.count_rows(connection)

    def _make_tables(self) -> None:
        """Make the tables where there are none; refuse those that do not fit."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
        if found.fit is SchemaFit.EMPTY:
            with self._plain.writing() as connection:
                found = revisions.standing(connection)  # another process may have been faster
                if found.fit is SchemaFit.EMPTY:
                    revisions.upgrade(connection)
                    return
        if found.fit is not SchemaFit.CURRENT:
            raise self._misfit(found)

    def _misfit(self, found: Standing) -> Error:
        _, advice = self._state(found)
        told = f"the catalog {self.url}: {advice}"
        match found.fit:
            case SchemaFit.BEHIND | SchemaFit.DROPPED | SchemaFit.AHEAD:
                return UnsupportedError(told)
            case SchemaFit.FOREIGN:
                return InvalidInputError(told)
        return CorruptError(told)

    def _state(self, found: Standing) -> tuple[str, str]:
        """What to call the state of the tables, and what to do."""
        at = ", ".join(found.revisions) or "none"
        match found.fit:
            case SchemaFit.BEHIND:
                return "old tables", (
                    f"its tables are of revision {at}, this tensorrepo works with "
                    f"{revisions.newest()}. Run `tensorrepo catalog upgrade`."
                )
            case SchemaFit.DROPPED:
                return "old tables", (
                    f"its tables are of revision {at}, from before the first release, and cannot "
                    "be upgraded. Run `tensorrepo catalog rebuild`: it is only a cache."
                )
            case SchemaFit.AHEAD:
                return "newer tables", (
                    f"its tables are of revision {at}, which this tensorrepo does not know (it "
                    f"knows up to {revisions.newest()}). Update tensorrepo, or name another "
                    "catalog in TENSORREPO_CATALOG."
                )
            case SchemaFit.HALF:
                lacking = f", without {', '.join(found.missing[:5])}" if found.missing else ""
                return "half-migrated", (
                    f"its tables are between revisions (stated: {at}{lacking}). Run `tensorrepo "
                    "catalog rebuild`: it is only a cache."
                )
            case SchemaFit.FOREIGN:
                return "not a catalog", (
                    "the database has tables of other programs with names of ours, and no "
                    "revision. Name another database in TENSORREPO_CATALOG."
                )
        return found.fit.value, ""
