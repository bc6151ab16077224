"""The catalogs of these tests are those of the tests of queries."""

from __future__ import annotations

from tests.query.conftest import catalog, catalog_url

__all__ = ["catalog", "catalog_url"]
