"""Who turns an entry of a tree into rows, and which tables hold them?

One reader for each kind of entry. All rows of a thing begin with its digest, in the column that
`Content.tables` names, so that they can be taken away when nothing has it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import Column as SqlColumn

from tensorrepo.query import tables
from tensorrepo.query.sync.datasets import dataset_rows
from tensorrepo.query.sync.loader import Rows
from tensorrepo.query.sync.models import ModelRows
from tensorrepo.query.sync.views import view_rows
from tensorrepo.repo.objects import Kind, ObjectSource
from tensorrepo.repo.trees import Entry

RowsOf: TypeAlias = Callable[[ObjectSource, Entry], Rows]


@dataclass(frozen=True, slots=True)
class Content:
    """How one kind of entry gets into the catalog.

    Attributes:
        reader: makes what is called with (objects, entry) and gives rows. Made anew for each
            catch-up, so that it may remember things between entries of one.
        key: the column by which one tells whether a thing is there: one row for each.
        owned: the columns, of all its tables, that hold its digest.
    """

    reader: Callable[[], RowsOf]
    key: SqlColumn[Any]
    owned: tuple[SqlColumn[Any], ...]


# `entry.kind` to how it is read. Kinds that are not here have no rows but those of entries.
CONTENTS: Final[dict[Kind, Content]] = {
    Kind.DATASET: Content(
        lambda: dataset_rows,
        tables.dataset_version.c.digest,
        (
            tables.dataset_version.c.digest,
            tables.dataset_column.c.dataset,
            tables.lineage_edge.c.stated_by,
        ),
    ),
    Kind.MODEL: Content(
        ModelRows,
        tables.model_version.c.digest,
        (
            tables.model_version.c.digest,
            tables.model_tensor.c.model,
            tables.tensor_piece.c.model,
            tables.metric.c.owner,
            tables.lineage_edge.c.stated_by,
        ),
    ),
    Kind.VIEW: Content(
        lambda: view_rows,
        tables.view_version.c.digest,
        (tables.view_version.c.digest, tables.lineage_edge.c.stated_by),
    ),
}
