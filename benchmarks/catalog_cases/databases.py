"""Empty catalogs to measure with: SQLite always, PostgreSQL where its programs are."""

from __future__ import annotations

import sys

from harness import ROOT

from tensorrepo.migrations import revisions
from tensorrepo.query.catalog.database import CatalogDatabase, connect

sys.path.insert(0, str(ROOT))
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import postgres


def databases(folder: Path) -> Iterator[tuple[str, CatalogDatabase]]:
    """Name and an empty catalog of each database, the next one when one is done with."""
    yield "sqlite", _empty(f"sqlite:///{folder / 'catalog.sqlite'}")
    if postgres.programs() is not None:
        with postgres.server({}) as server:
            yield "postgresql", _empty(server.database())


def _empty(url: str) -> CatalogDatabase:
    catalog = CatalogDatabase(connect(url))
    with catalog.writing() as connection:
        revisions.upgrade(connection)
    return catalog
