"""Bulk loader of catalog rows: prepared statements or COPY.

SQLite takes a prepared statement and a list, PostgreSQL a stream of COPY. Rows wait in memory until
they are many or large; a query of the tables meanwhile has to be preceded by `flush`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, Connection, Table, bindparam, delete, select

from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.tables import (
    FINITE,
    MINUS_INFINITY,
    NAN,
    PLUS_INFINITY,
    POSTGRESQL,
    shown,
)
from tensorrepo.query.chunks import chunks
from tensorrepo.repo.deferred_dataclass import dataclass

# A row is its values in the order of the table's columns.
TableRow: TypeAlias = tuple[Any, ...]
TableRows: TypeAlias = Iterable[tuple["Table", TableRow]]

BATCH_ROWS: Final = 20_000
BATCH_BYTES: Final = 16 << 20
_SEEN_TOGETHER: Final = 100  # rows: a few MiB, where each holds the most that a commit may say
_NUL: Final = "\\x00"  # as `repr` writes it
_ROW_BYTES: Final = 200  # what a row takes beside its texts

# Many models share graphs and blocks: the rows of one that is there are left out. By table: the
# column that tells whether what the first column of its rows names is there.
SHARED: Final = MappingProxyType(
    dict.fromkeys(
        (tables.graph, tables.node, tables.edge, tables.node_parameter), tables.graph.c.digest
    )
    | dict.fromkeys((tables.block_tensor, tables.block_piece), tables.block_tensor.c.block)
    | dict.fromkeys((tables.block_member, tables.block_base), tables.block_member.c.block)
)


@dataclass(slots=True)
class Loader:
    """Puts rows into the tables, in one transaction. `told` hears how many, after each batch."""

    connection: Connection
    told: Callable[[int], None] = lambda _: None
    rows: int = 0
    _unseen: defaultdict[Table, list[TableRow]] = field(default_factory=lambda: defaultdict(list))
    _unseen_rows: int = 0
    _waiting: dict[Table, list[TableRow]] = field(default_factory=dict)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0
    _shared: tuple[str, bool] = ("", False)  # the last one met, and whether it is left out
    _shared_loaded: set[str] = field(default_factory=set)

    def add(self, rows: TableRows) -> None:
        """Take rows; a batch goes out when enough of them wait."""
        for table, row in rows:
            key = SHARED.get(table)
            if key is not None and self._is_there(key, row[0]):
                continue
            self._unseen[table].append(row)
            self._unseen_rows += 1
            if self._unseen_rows >= _SEEN_TOGETHER:
                self._look()
                if self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES:
                    self.flush()

    def flush(self) -> None:
        """Send what waits."""
        self._look()
        if not self._waiting_rows:
            return
        for table, rows in self._waiting.items():
            insert(self.connection, table, rows)
        self.rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = {}, 0, 0
        self.told(self.rows)

    def _look(self) -> None:
        """See how large the last rows are, and whether there is NUL in them."""
        for table, rows in self._unseen.items():
            told = repr(rows)  # quicker than to look at each value
            clean = rows if _NUL not in told else [_shown(row) for row in rows]
            self._waiting.setdefault(table, []).extend(clean)
            self._waiting_rows += len(rows)
            self._waiting_bytes += _ROW_BYTES * len(rows) + len(told)
        self._unseen.clear()
        self._unseen_rows = 0

    def _is_there(self, key: Column[Any], name: str) -> bool:
        """Whether the rows of what is shared, which come one behind the other, are known."""
        if self._shared[0] != name:
            known = name in self._shared_loaded or bool(present(self.connection, key, [name]))
            if len(self._shared_loaded) >= BATCH_ROWS:  # they are in the tables by then
                self.flush()
                self._shared_loaded.clear()
            self._shared_loaded.add(name)
            self._shared = name, known
        return self._shared[1]

    def next_owner(self) -> None:
        """What comes now is another thing's: what is shared and met again is there."""
        self._shared = "", False


def insert(connection: Connection, table: Table, rows: Sequence[TableRow]) -> None:
    """Insert whole rows, none of which is there."""
    if connection.dialect.name == POSTGRESQL:
        _copy(connection, table, rows)
        return
    marks = ", ".join("?" * len(table.columns))
    name = connection.dialect.identifier_preparer.format_table(table)
    connection.exec_driver_sql(f"INSERT INTO {name} VALUES ({marks})", list(rows))  # noqa: S608 - a table's own name


def present(
    connection: Connection,
    column: Column[Any],
    values: Iterable[str],
    wanted: Column[Any] | None = None,
) -> set[str]:
    """Which of `values` stand in `column`, or what stands in `wanted` beside them, no nulls."""
    asked = column if wanted is None else wanted
    query = select(asked).where(column.in_(bindparam("asked", expanding=True))).distinct()
    there: set[str | None] = set()
    for some in chunks(values):
        there.update(connection.execute(query, {"asked": some}).scalars())
    return {value for value in there if value is not None}


def delete_where(connection: Connection, column: Column[Any], values: Iterable[str]) -> None:
    """Delete the rows whose `column` is one of `values`."""
    statement = delete(column.table).where(column.in_(bindparam("asked", expanding=True)))
    for some in chunks(values):
        connection.execute(statement, {"asked": some})


def _shown(row: TableRow) -> TableRow:
    return tuple(shown(value) if type(value) is str else value for value in row)


def _copy(connection: Connection, table: Table, rows: Iterable[TableRow]) -> None:
    name = connection.dialect.identifier_preparer.format_table(table)
    driver: Any = connection.connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


# One for all: to make an encoder takes longer than to write what most commits and models say.
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def as_json(value: object) -> str:
    """JSON with sorted names and no white space; NaN and infinities as JavaScript writes them."""
    return _JSON.encode(value)


def number(value: float) -> tuple[float | None, str]:
    """(value, kind) of a number that may be none: see `tables`."""
    real = float(value)
    if math.isnan(real):
        return None, NAN
    if math.isinf(real):
        return None, PLUS_INFINITY if real > 0 else MINUS_INFINITY
    return real, FINITE


def bounded(value: Any) -> float | None:
    """`value` as a real number; None where it is none, or infinite."""
    return None if value is None else number(value)[0]
