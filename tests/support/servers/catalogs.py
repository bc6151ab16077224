"""Catalogs for tests, in both databases, with their tables made by the revisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import inspect

from tensorrepo.migrations import revisions
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.changes.repository import RepositoryCore
from tests.support.servers.postgres import shared_server

DATABASES = ("sqlite", "postgresql")


@contextmanager
def catalog_url(kind: str, folder: Path, *, tables: bool = False) -> Iterator[str]:
    """A URL of an empty database, which is gone afterwards; with `tables` it has a catalog's."""
    if kind == "sqlite":
        place = folder / "catalog.db"
        if tables:
            place.write_bytes(_in_sqlite())
        yield f"sqlite:///{place}"
        return
    url = shared_server().database(_in_postgresql() if tables else None)
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


# Revisions take a tenth of a second: they are gone through once, for databases that are copied.
@cache
def _in_sqlite() -> bytes:
    with TemporaryDirectory() as kept:
        place = Path(kept, "catalog.db")
        with catalog_at(f"sqlite:///{place}"):
            pass
        return place.read_bytes()


@cache
def _in_postgresql() -> str:
    url = shared_server().database()
    with catalog_at(url):
        pass
    return url


def make_tables(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        if not inspect(connection).has_table(revisions.VERSION_TABLE):
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
