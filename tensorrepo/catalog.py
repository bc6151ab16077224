"""The catalog of a repository, as the SDK shows it: opened, brought up to date, asked.

It is made when it is first used, and whoever asks it gets one that tells what the repository holds
now.
"""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tensorrepo.architecture import (
    Donor,
    Owner,
    PathFound,
    Ranking,
    find_donors,
    find_models,
    find_owners,
)
from tensorrepo.formats.arguments import encodable, flag, whole
from tensorrepo.migrations import revisions
from tensorrepo.migrations.revisions import Fit, Standing
from tensorrepo.query import catalog as core
from tensorrepo.query.catalogtable import Told, catalog_names, catalog_table
from tensorrepo.query.sync import catchup
from tensorrepo.query.sync.compare import Difference, differences
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    InvalidInputError,
    UnsupportedError,
)
from tensorrepo.runrecord import state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

    from tensorrepo.blueprint import Blueprint
    from tensorrepo.context import Context
    from tensorrepo.model import Model
    from tensorrepo.query.arrowscan import Scanned
    from tensorrepo.query.catalogtable import CatalogTable
    from tensorrepo.query.sync.catchup import CaughtUp, Progress
    from tensorrepo.repo.repository import Repository


@dataclass(frozen=True, slots=True)
class Status:
    """How a catalog stands to its repository.

    Attributes:
        url: where the catalog is, without a password.
        state: "current", "behind" (its rows: the next question brings it up to date), "empty",
            "old tables", "newer tables", "half-migrated", "damaged", "not a catalog", "other
            repository" or "rewound".
        revision: of its tables; None where there are none.
        newest_revision: the one that this tensorrepo works with.
        generation: the log record that it tells of.
        of_generation: the newest of the repository.
        rows: of each table that has any.
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


def _state_of_run(status: str, due_ns: int, environment: str) -> str:
    return state_of(status, due_ns, json.loads(environment).get("process", ""))


_TOLD = {"run": (Told("state", ("status", "due_ns", "environment"), _state_of_run),)}


class Catalog:
    """The SQL catalog of one repository. Safe to share between threads."""

    def __init__(self, repository: Repository, url: str) -> None:
        self._repository = repository
        self._url = url

    def __repr__(self) -> str:
        return f"<Catalog {self.url} of {self._repository.url}>"

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

    def table(self, name: str, scanned: Scanned) -> CatalogTable | None:
        """A table as SQL over data reads it; None: there is none of this name."""
        return catalog_table(name, self.reading, scanned, _TOLD.get(name, ()))

    def names(self) -> Iterator[str]:
        """Names of all tables."""
        return catalog_names()

    def catch_up(self, *, progress: Callable[[Progress], None] | None = None) -> CaughtUp:
        """Take in what happened in the repository since the last time; makes tables at first."""
        self._make_tables()
        return catchup.catch_up(self._repository, self._plain, progress=progress)

    def upgrade(self, to: str = revisions.HEAD) -> Standing:
        """Bring the tables to the newest revision, their rows with them.

        Raises:
            UnsupportedError: they are newer than this tensorrepo.
            CorruptError: they are half-migrated: `rebuild`.
            InvalidInputError: they are of another repository, or not ours.
        """
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit in {Fit.DROPPED, Fit.AHEAD, Fit.HALF, Fit.FOREIGN}:
                raise self._misfit(found)
            if found.fit is not Fit.EMPTY:
                catchup.check_owner(self._repository, core.read_owner(connection))
            revisions.upgrade(connection, to)
            return revisions.standing(connection)

    def rebuild(
        self,
        *,
        progress: Callable[[Progress], None] | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> CaughtUp:
        """Throw the catalog away and make it anew, whatever its tables hold.

        A SQLite file that is damaged gets another name first.

        Args:
            progress: is told how far it is.
            warn: is told which name a damaged file got.

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

    def _rebuild(self, progress: Callable[[Progress], None] | None) -> CaughtUp:
        with self._plain.writing() as connection:
            found = revisions.standing(connection)
            if found.fit is Fit.FOREIGN:
                raise self._misfit(found)
            if found.fit is not Fit.CURRENT:
                revisions.remove(connection)
                revisions.upgrade(connection)
        return catchup.rebuild(self._repository, self._plain, progress=progress)

    def find_models(
        self, first: str, last: str | None = None, *, steps: int | None = None
    ) -> list[PathFound]:
        """Models of all commits with a node that fits `first`, and a way from it to `last`.

        Args:
            first: a regular expression that fits a node's whole name, or its whole operation.
            last: another one; None: one node is enough.
            steps: edges of the way at most; None: any number.
        """
        return find_models(self, first, last, steps=steps)

    def donors(
        self,
        target: Blueprint,
        *,
        metric: str | None = None,
        order_by_metric: bool = False,
        smallest: bool = False,
        limit: int = 10,
    ) -> list[Donor]:
        """Models of all commits that begin like an architecture, the longest prefix first.

        Args:
            target: a graph, a model, a state dict (torch's device "meta" is enough), or a file.
            metric: of models: decides between equal prefixes.
            order_by_metric: it counts first, among those that share half of the nodes.
            smallest: small values of it are good ones.
            limit: so many at most.
        """
        ranking = Ranking(
            None if metric is None else encodable("metric", metric),
            flag("order_by_metric", order_by_metric),
            flag("smallest", smallest),
            whole("limit", limit, 1),
        )
        return find_donors(self, target, ranking)

    def owners(self, model: Model, tensor: str) -> list[Owner]:
        """Models of all commits that hold a tensor of `model`, bit for bit."""
        return find_owners(self, model, tensor)

    def verify(self) -> list[Difference]:
        """Compare with a catalog made anew beside it, table by table; [] when they are equal."""
        self.catch_up()
        return list(differences(self._repository, self._plain))

    def status(self) -> Status:
        """How it stands; changes nothing, and raises nothing for a catalog that is in disorder."""
        view = self._repository.log.refresh()
        try:
            found, cursor, rows = self._look()
        except CorruptError as error:
            newest, of = revisions.newest(), view.generation
            return Status(self.url, "damaged", None, newest, 0, of, {}, str(error))
        state, advice = self._state(found)
        if cursor is not None:
            try:
                catchup.check_cursor(self._repository, cursor, view)
            except Error as error:
                other = isinstance(error, InvalidInputError)
                state, advice = ("other repository" if other else "rewound"), str(error)
            else:
                state = "current" if cursor.generation >= view.generation else "behind"
        elif found.fit is Fit.CURRENT:
            state = "empty"
        return Status(
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
    def _plain(self) -> core.Catalog:
        return core.Catalog(self.engine)

    def _look(self) -> tuple[Standing, core.Cursor | None, dict[str, int] | None]:
        """What is there: its tables, how far they tell, and how many rows they have."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
            if found.fit is not Fit.CURRENT:
                return found, None, None
            return found, core.read_cursor(connection), core.count_rows(connection)

    def _make_tables(self) -> None:
        """Make the tables where there are none; refuse those that do not fit."""
        with self._plain.reading() as connection:
            found = revisions.standing(connection)
        if found.fit is Fit.EMPTY:
            with self._plain.writing() as connection:
                found = revisions.standing(connection)  # another process may have been faster
                if found.fit is Fit.EMPTY:
                    revisions.upgrade(connection)
                    return
        if found.fit is not Fit.CURRENT:
            raise self._misfit(found)

    def _misfit(self, found: Standing) -> Error:
        """Why the tables cannot be used."""
        _, advice = self._state(found)
        told = f"the catalog {self.url}: {advice}"
        match found.fit:
            case Fit.BEHIND | Fit.DROPPED | Fit.AHEAD:
                return UnsupportedError(told)
            case Fit.FOREIGN:
                return InvalidInputError(told)
        return CorruptError(told)

    def _state(self, found: Standing) -> tuple[str, str]:
        """What to call the state of the tables, and what to do."""
        at = ", ".join(found.revisions) or "none"
        match found.fit:
            case Fit.BEHIND:
                return "old tables", (
                    f"its tables are of revision {at}, this tensorrepo works with "
                    f"{revisions.newest()}. Run `tensorrepo catalog upgrade`."
                )
            case Fit.DROPPED:
                return "old tables", (
                    f"its tables are of revision {at}, from before the first release, and cannot "
                    "be upgraded. Run `tensorrepo catalog rebuild`: it is only a cache."
                )
            case Fit.AHEAD:
                return "newer tables", (
                    f"its tables are of revision {at}, which this tensorrepo does not know (it "
                    f"knows up to {revisions.newest()}). Update tensorrepo, or name another "
                    "catalog in TENSORREPO_CATALOG."
                )
            case Fit.HALF:
                lacking = f", without {', '.join(found.missing[:5])}" if found.missing else ""
                return "half-migrated", (
                    f"its tables are between revisions (stated: {at}{lacking}). Run `tensorrepo "
                    "catalog rebuild`: it is only a cache."
                )
            case Fit.FOREIGN:
                return "not a catalog", (
                    "the database has tables of other programs with names of ours, and no "
                    "revision. Name another database in TENSORREPO_CATALOG."
                )
        return found.fit.value, ""


_CATALOGS: WeakKeyDictionary[Context, Catalog] = WeakKeyDictionary()


def catalog_of(context: Context) -> Catalog:
    """The catalog of a repository: one for all handles that share a context."""
    if context not in _CATALOGS:
        _CATALOGS[context] = Catalog(context.core, context.catalog_url)
    return _CATALOGS[context]
