"""Catalogs of served repositories: one for each, in the service's folder or its PostgreSQL.

A catalog is a cache of what its repository says, brought up to date before each question. One whose
tables do not fit is upgraded or made anew, by the service itself: nobody runs commands in its
folder. Who may not read all refs is given the rows of those that they may read, see `visibility`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, create_engine, make_url, text

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.single_flight import OpenedByKey
from tensorrepo.migrations.repository_catalog import RepositoryCatalog
from tensorrepo.query.catalog.database import read_cursor
from tensorrepo.query.catalog.visibility import Visible, visible_to
from tensorrepo.query.sql.catalog_tables import CatalogTable
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.objects.cache import LimitedCache

_KEPT: Final = 64  # answers to who sees what
_LOGGER: Final = logging.getLogger(__name__)


class Catalogs:
    """The catalogs of a service, each opened when it is first asked. Thread-safe."""

    def __init__(self, data: Path, database_url: str) -> None:
        """Files below `data`, unless the service's database is a PostgreSQL server."""
        self._folder, self._database_url = data / "catalogs", database_url
        self._open = OpenedByKey[str, RepositoryCatalog]()
        self._visible: LimitedCache[Visible] = LimitedCache(_KEPT)

    def of(self, core: RepositoryCore) -> RepositoryCatalog:
        """The catalog of a repository, with tables that fit. It has rows of all refs."""

        def opened() -> RepositoryCatalog:
            catalog = RepositoryCatalog(core, self._url(core.id))
            try:
                _mend(catalog)  # of a long history that may take minutes
            except BaseException:
                catalog.close()
                raise
            return catalog

        return self._open.get(core.id, opened)

    @contextmanager
    def reading(self, access: RepositoryAccess) -> Iterator[tuple[Connection, Visible | None]]:
        """A connection to a catalog that is up to date, and what the caller may see of it.

        Whoever asks leaves out all that is not visible; None: all is.
        """
        with self.of(access.core).reading() as connection:
            yield connection, self._visible_to(access, connection)

    def seen_by(self, access: RepositoryAccess) -> SeenCatalog:
        """The catalog as queries of a caller see it."""
        return SeenCatalog(self, access)

    def visible(self, access: RepositoryAccess) -> Visible | None:
        """What a caller may see of the catalog; None: all."""
        if access.reads_all:
            return None
        with self.reading(access) as (_, visible):
            return visible

    def close(self) -> None:
        for catalog in self._open.clear():
            catalog.close()

    def _visible_to(self, access: RepositoryAccess, connection: Connection) -> Visible | None:
        if access.reads_all:
            return None
        cursor = read_cursor(connection)
        caller = access.caller
        at = None if cursor is None else (cursor.generation, cursor.digest)
        key = (access.core.id, access.name, at, caller.grants, caller.scope)

        def may_read(ref: str) -> bool:
            return access.may(Action.READ, ref)

        return self._visible.get_or_load(key, lambda: (visible_to(connection, may_read), 1))

    def _url(self, repository: str) -> str:
        parsed = make_url(self._database_url)
        if parsed.get_backend_name() == "sqlite":
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return f"sqlite:///{self._folder / repository}.db"
        # A schema of its own for each: the tables of all catalogs have the same names.
        schema = f"catalog_{repository}"
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"))
        with engine.begin() as connection:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'))
        engine.dispose()
        scoped = parsed.update_query_dict({"options": f"-csearch_path={schema}"})
        return scoped.render_as_string(hide_password=False)


@dataclass(frozen=True, slots=True)
class SeenCatalog:
    """A catalog as queries of one caller see it."""

    catalogs: Catalogs
    access: RepositoryAccess

    def names(self) -> Iterator[str]:
        """Names of its tables."""
        return self.catalogs.of(self.access.core).names()

    def table(self, name: str, scanned: Scanned) -> CatalogTable | None:
        """A table with the rows that the caller may see; None: there is none of this name."""
        visible = self.catalogs.visible(self.access)
        return self.catalogs.of(self.access.core).table(name, scanned, visible)


def _mend(catalog: RepositoryCatalog) -> None:
    """Bring the tables to a form that this version works with: it is only a cache."""
    status = catalog.status()
    if status.is_usable:
        return
    if status.state == "newer tables":
        raise UnsupportedError(f"the catalog {catalog.url}: {status.advice}")
    _LOGGER.warning("the catalog %s is made anew: %s", catalog.url, status.state)
    with suppress(UnsupportedError, CorruptError, InvalidInputError):
        catalog.upgrade()
    if not catalog.status().is_usable:
        catalog.rebuild(warn=_LOGGER.warning)
