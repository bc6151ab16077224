"""Edges of lineage get hashes as tables of the first revision come up, and lose them going down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect

from tensorrepo.migrations import revisions
from tensorrepo.query import tables
from tensorrepo.query.lineage import ancestors, descendants
from tensorrepo.query.sync.edges import edge_row
from tensorrepo.query.sync.loader import insert
from tests.support.catalogs import rows_of

if TYPE_CHECKING:
    from tensorrepo.query.catalog import Catalog

URL = "https://example.org/Größe.csv"
MODEL, DATASET = "a" * 64, "b" * 64
ROWS = [
    ("model", MODEL, "trained-on", "dataset", "datasets/a", DATASET, None, '{"seed":7}'),
    ("dataset", DATASET, "imported-from", "url", URL, None, None, "{}"),
]


def columns(catalog: Catalog) -> list[str]:
    found = inspect(catalog.engine).get_columns(tables.lineage_edge.name)
    return [column["name"] for column in found]


def test_hashes_made_by_the_upgrade_are_those_of_the_code(catalog: Catalog) -> None:
    with catalog.writing() as connection:
        made = [edge_row(told[1], 0, told)[1] for told in ROWS]
        insert(connection, tables.lineage_edge, made)
    before = rows_of(catalog)
    with catalog.writing() as connection:
        revisions.downgrade(connection, "0001")
    assert not {"subject_hash", "origin_hash"} & set(columns(catalog))
    with catalog.writing() as connection:
        revisions.upgrade(connection)
    assert rows_of(catalog) == before
    with catalog.reading() as connection:
        up = ancestors(connection, [MODEL])
        down = descendants(connection, [URL])
    assert [step.origin.key for step in up] == [DATASET, URL]
    assert [step.subject.key for step in down] == [DATASET, MODEL]
