"""Every test of the catalog that asks for `catalog` runs on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.query.catalog.database import CatalogDatabase
from tests.support.servers import catalogs


@pytest.fixture(params=catalogs.DATABASES)
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database; one with tables where a test asks for `catalog`, too."""
    tables = "catalog" in request.fixturenames
    with catalogs.catalog_url(request.param, tmp_path, tables=tables) as url:
        yield url


@pytest.fixture
def catalog(catalog_url: str) -> Iterator[CatalogDatabase]:
    """An empty catalog, its tables made."""
    with catalogs.catalog_at(catalog_url) as made:
        yield made
