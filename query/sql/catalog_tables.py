"""Catalog tables for DuckDB, and columns of them that time changes.

The columns that a query needs are selected from the catalog's own database, some rows at a time;
what DuckDB pushes down as a filter is applied to them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
from sqlalchemy import Connection, Subquery, Table, select

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.selecting.expression import (
    expression_tree,
    field_names,
)
from tensorrepo.query.catalog.tables import BYTES, FLAG, REAL, WHOLE
from tensorrepo.query.catalog.visibility import Visible
from tensorrepo.query.sql.pushdown import Scanned, noting
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.threads import ordered_map

FETCHED_ROWS = 1 << 13
_TYPES = {WHOLE: pa.int64(), REAL: pa.float64(), FLAG: pa.bool_(), BYTES: pa.binary()}


@dataclass(frozen=True, slots=True)
class DerivedColumn:
    """A text column that is not stored, since time changes it: made of others, row by row."""

    name: str
    needs: tuple[str, ...]
    tell: Callable[..., str]


@dataclass(frozen=True, slots=True, eq=False)
class CatalogTable:
    """A table of the catalog; `reading` opens what it is read from, `told` is added to it.

    `visible` says which rows are given; None: all.
    """

    table: Table | Subquery
    reading: Callable[[], AbstractContextManager[Connection]]
    scanned: Scanned
    told: tuple[DerivedColumn, ...] = ()
    visible: Visible | None = None

    @property
    def schema(self) -> pa.Schema:
        stored = [(column.name, _TYPES.get(column.type, pa.string())) for column in self.table.c]
        return pa.schema([*stored, *((each.name, pa.string()) for each in self.told)])

    @property
    def shown(self) -> Sequence[str]:
        """The columns that ``*`` stands for: all."""
        return list(self.schema.names)

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows of some columns for which `where` is true."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = self._batches(list(columns), where)
        # DuckDB pulls from any thread; a connection to SQLite belongs to the thread that made it.
        pulled = ordered_map(batches, lambda batch: batch, threads=1, ahead=1, name="catalog")
        return pa.RecordBatchReader.from_batches(schema, noting(self.scanned, pulled))

    def _batches(self, columns: list[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        compared = () if where is None else field_names(expression_tree(where))
        wanted = set(self.schema.names if compared is None else (*columns, *compared))
        told = [each for each in self.told if each.name in wanted]
        stored = wanted - {each.name for each in told}
        seen_by = () if self.visible is None else self.visible.columns(self.table.name)
        names = sorted(stored.union(seen_by, *(each.needs for each in told)))
        schema = pa.schema([self.schema.field(name) for name in names])
        query = select(*(self.table.c[name] for name in names))
        with self.reading() as connection:
            rows = connection.execution_options(yield_per=FETCHED_ROWS).execute(query)
            for part in rows.partitions(FETCHED_ROWS):
                arrays = [
                    pa.array(list(values), field.type)
                    for values, field in zip(zip(*part, strict=True), schema, strict=True)
                ]
                found = pa.Table.from_arrays(arrays, schema=schema)
                if self.visible is not None:
                    found = self.visible.rows(self.table.name, found)
                for each in told:
                    given = zip(*(found[name].to_pylist() for name in each.needs), strict=True)
                    made = pa.array([each.tell(*values) for values in given], pa.string())
                    found = found.append_column(each.name, made)
                found = found if where is None else found.filter(where)
                yield from found.select(columns).to_batches()
