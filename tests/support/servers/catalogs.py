"""Catalogs for tests, in both databases, with their tables made by the revisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorrepo.migrations import revisions
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.changes.repository import RepositoryCore
from tests.support.servers.postgres import shared_server

DATABASES = ("sqlite", "postgresql")


@contextmanager
def catalog_url(kind: str, folder: Path) -> Iterator[str]:
    """A URL of an empty database, which is gone afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'catalog.db'}"
        return
    url = shared_server().database()
    yield url
    shared_server().drop(url)


@contextmanager
def catalog_at(url: str) -> Iterator[CatalogDatabase]:
    """An empty catalog in the database at `url`."""
    catalog = CatalogDatabase(connect(url))
    try:
        make_tables(catalog)
        yield catalog
    finally:
        catalog.dispose()


def make_tables(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        revisions.upgrade(connection)


def rows_of(catalog: CatalogDatabase, *names: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of these tables, or of all, sorted; those without rows left out."""
    with catalog.reading() as connection:
        found = {
            name: sorted(map(tuple, connection.execute(table.select())), key=repr)
            for name, table in tables.METADATA.tables.items()
            if not names or name in names
        }
    return {name: rows for name, rows in found.items() if rows}


def fresh_rows(repository: RepositoryCore) -> dict[str, list[tuple[Any, ...]]]:
    """What a catalog made anew says."""
    with catalog_at("sqlite://") as catalog:
        catch_up(repository, catalog)
        return rows_of(catalog)
