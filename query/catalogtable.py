"""How does DuckDB read a table of the catalog?

The columns that a query needs are selected from the catalog's own database, some rows at a time;
what DuckDB pushes down as a filter is applied to them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlalchemy import select

from tensorrepo.formats.dataset.rows.expression import expression_tree, field_names
from tensorrepo.query import tables
from tensorrepo.query.arrowscan import noting
from tensorrepo.query.dialects import Bytes, Flag, Real, Whole
from tensorrepo.repo.threads import ordered_map

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from sqlalchemy import Connection, Table

    from tensorrepo.query.arrowscan import Scanned

FETCHED_ROWS = 1 << 13
_TYPES = {Whole: pa.int64(), Real: pa.float64(), Flag: pa.bool_(), Bytes: pa.binary()}


@dataclass(frozen=True, slots=True)
class Told:
    """A text column that is not stored, since time changes it: made of others, row by row."""

    name: str
    needs: tuple[str, ...]
    tell: Callable[..., str]


@dataclass(frozen=True, slots=True, eq=False)
class CatalogTable:
    """A table of the catalog; `reading` opens what it is read from, `told` is added to it."""

    table: Table
    reading: Callable[[], AbstractContextManager[Connection]]
    scanned: Scanned
    told: tuple[Told, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        stored = [
            (column.name, _TYPES.get(type(column.type), pa.string())) for column in self.table.c
        ]
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
        names = sorted(stored.union(*(each.needs for each in told)))
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
                for each in told:
                    given = zip(*(found[name].to_pylist() for name in each.needs), strict=True)
                    made = pa.array([each.tell(*values) for values in given], pa.string())
                    found = found.append_column(each.name, made)
                found = found if where is None else found.filter(where)
                yield from found.select(columns).to_batches()


def catalog_table(
    name: str,
    reading: Callable[[], AbstractContextManager[Connection]],
    scanned: Scanned,
    told: tuple[Told, ...] = (),
) -> CatalogTable | None:
    """The table of the catalog of this name; None: there is none."""
    table = tables.METADATA.tables.get(name)
    return None if table is None else CatalogTable(table, reading, scanned, told)


def catalog_names() -> Iterator[str]:
    """Names of all tables of the catalog."""
    yield from tables.METADATA.tables
