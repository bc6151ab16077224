"""Rows of a dataset by the indexes of its values: where a condition asks for few of many rows.

Reads ask them by themselves: `find_indexed`, selections, views and streams here, SQL by
`verbs.indexes.candidate_rows`. Whatever changes or checks rows does not: an index that leaves out a
row may spoil an answer, and never data.
"""

from __future__ import annotations

from typing import Protocol

from tensorrepo.context import Context
from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, live_rows
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.selecting.predicate import RowExpression
from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.selecting.select_rows import Where, find_rows, named_columns
from tensorrepo.formats.dataset.selecting.sql_condition import SqlCondition
from tensorrepo.formats.search_index.indexed_values import rows_by_indexes
from tensorrepo.formats.search_index.opened_index import OpenedIndex
from tensorrepo.repo.ids import Digest
from tensorrepo.verbs.indexes import unless_damaged, value_index_beside


class VersionRows(Protocol):
    """All rows of a dataset in a commit."""

    @property
    def context(self) -> Context: ...
    @property
    def path(self) -> str: ...
    @property
    def commit(self) -> Digest: ...
    @property
    def stored(self) -> StoredDataset: ...


class AskedRows(Protocol):
    """Rows of a dataset, all or some."""

    @property
    def stored(self) -> StoredDataset: ...
    @property
    def whole(self) -> VersionRows: ...


def rows_by_index(asked: AskedRows, where: Where, most: int | None = None) -> Ints | None:
    """Physical rows for which a condition is true, ascending; None where a scan has to answer.

    Args:
        asked: rows that are asked for.
        where: condition, as `row_selection` gives it; whatever else is not answered.
        most: rows that the caller takes at most; None: all.
    """
    whole = asked.whole
    expression = _expression(where, asked.stored.schema)
    if expression is None:
        return None

    def index_of(name: str) -> OpenedIndex | None:
        return value_index_beside(whole.context, whole.commit, whole.path, whole.stored, name)

    return unless_damaged(
        whole.path, lambda: rows_by_indexes(asked.stored, expression, index_of, most)
    )


def find_indexed(asked: AskedRows, where: Where, *, exact: bool) -> Ints:
    """Numbers of the rows that `where` names: see `Dataset.find`."""
    rows = None if exact else rows_by_index(asked, where)
    return find_rows(asked.stored, where) if rows is None else live_rows(asked.stored).live(rows)


def answered(asked: AskedRows, where: Where) -> Where:
    """A condition with its rows, where an index finds them; else as it is given."""
    rows = rows_by_index(asked, where)
    if rows is None:
        return where
    found = bits_of(asked.stored.rows, [live_rows(asked.stored).live(rows)])
    return SqlCondition(str(where), "", None, found)


def _expression(where: Where, schema: Schema) -> pc.Expression | None:
    if isinstance(where, SqlCondition):
        return where.expression
    if isinstance(where, RowExpression):
        return where.bound(schema)
    if not isinstance(where, pc.Expression):
        return None
    named_columns(where, schema)  # what a scan refuses, an index does not answer
    return where
