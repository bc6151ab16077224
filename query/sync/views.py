"""Which rows say what a view is, and of which dataset?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.lineage import DERIVED_FROM, Edge
from tensorrepo.formats.view import open_view
from tensorrepo.query import tables
from tensorrepo.query.sync.edges import edge_rows

if TYPE_CHECKING:
    from tensorrepo.query.sync.loader import Rows
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry


def view_rows(objects: ObjectSource, entry: Entry) -> Rows:
    """The rows of a view that a tree names. Reads one object."""
    view = open_view(objects, entry.digest)
    yield (
        tables.view_version,
        (entry.digest, view.sql, view.dataset, view.path, view.commit, view.rows),
    )
    made = Edge(DERIVED_FROM, view.path, view.dataset, view.commit, {"sql": view.sql})
    yield from edge_rows(entry.digest, "view", [made])
