"""The catalogs of these tests are those of the tests of queries."""

from __future__ import annotations

from tests.query.conftest import catalog, catalog_url
from tests.tensorrepo.conftest import _committed, full

__all__ = ["_committed", "catalog", "catalog_url", "full"]
