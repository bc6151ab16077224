"""Does this batch fit this schema, and as what is it stored?

A batch (columns, Arrow or rows) becomes the values of every column. What it leaves out takes the
column's default or null, and derived columns are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tensorrepo.formats.dataset.columns.defaults import default_row, default_values
from tensorrepo.formats.dataset.columns.derived import derived_values
from tensorrepo.formats.dataset.columns.encoded import EncodedImages
from tensorrepo.formats.dataset.columns.fit import coerce_column, null_values
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import InputBatch, Schema
    from tensorrepo.formats.dataset.columns.values import ColumnValues

__all__ = ["coerce_batch", "coerce_column", "null_values"]


def coerce_batch(schema: Schema, batch: InputBatch, first_row: int = 0) -> list[ColumnValues]:
    """The values of every column of one batch, in the order of the schema.

    Derived columns are computed: a batch must not have them.

    Args:
        schema: what the batch must fit.
        batch: columns, an Arrow batch or table, or a list of rows.
        first_row: number of its first row, for errors.

    Raises:
        InvalidInputError: names row, column, expected and found.
    """
    given = schema.visible
    columns = _columns(given, batch, first_row)
    found: dict[str, ColumnValues] = {}
    rows: int | None = None
    for column in given.columns:
        if column.name not in columns:
            continue
        values = coerce_column(column, columns[column.name], first_row)
        if rows is not None and values.rows != rows:
            raise InvalidInputError(
                f"rows from {first_row}: column {column.name!r} has {values.rows} rows, "
                f"the columns before it {rows}"
            )
        rows = values.rows
        found[column.name] = values
    if rows is None:
        raise InvalidInputError(f"rows from {first_row}: a batch has no column of the schema")
    for column in given.columns:
        if column.name not in found:
            found[column.name] = default_values(column, rows)
    if given is not schema:
        known = {
            name: values.headers
            for name, values in columns.items()
            if isinstance(values, EncodedImages)
        }
        found |= derived_values(schema, found, known)
    return [found[column.name] for column in schema.columns]


def _columns(schema: Schema, batch: InputBatch, first_row: int) -> Mapping[str, Any]:
    if isinstance(batch, pa.RecordBatch | pa.Table):
        columns: Mapping[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    elif isinstance(batch, Mapping):
        columns = batch
    else:
        columns = _columns_of_rows(schema, batch, first_row)
    for name in columns:
        if name not in schema:
            raise InvalidInputError(
                f"rows from {first_row}: unexpected column {name!r}; "
                f"the schema has {', '.join(map(repr, schema.names))}"
            )
    for column in schema.columns:
        if column.name not in columns and not column.nullable and column.default is None:
            raise InvalidInputError(f"rows from {first_row}: column {column.name!r} is missing")
    return columns


def _columns_of_rows(
    schema: Schema, rows: Sequence[Mapping[str, Any]], first_row: int
) -> dict[str, list[Any]]:
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(
                f"row {first_row + at}: expected a mapping of columns, found {type(row).__name__}"
            )
        if unknown := row.keys() - set(schema.names):
            raise InvalidInputError(f"row {first_row + at}: unexpected column {min(unknown)!r}")
    defaults = {column.name: default_row(column) for column in schema.columns}
    return {name: [row.get(name, default) for row in rows] for name, default in defaults.items()}
