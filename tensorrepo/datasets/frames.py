"""Data frames of rows, for pandas and polars: values as SQL gives them.

Tensors are lists, one in the other, to polars; to pandas they are numpy arrays of their own shape,
one in each cell, beside columns of numbers, text and moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.read import StoredDataset, iterate
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.query.sql.columns import sql_array, sql_field


def polars_frame(dataset: StoredDataset, names: Sequence[str] | None) -> Any:
    """All rows as a polars frame. Raises UnsupportedError: polars is not installed."""
    polars = import_library("polars", "to_polars() needs polars: `pip install polars`")
    return polars.from_arrow(_table(dataset, dataset.schema.select(names).columns))


def pandas_frame(dataset: StoredDataset, names: Sequence[str] | None) -> Any:
    """All rows as a pandas frame. Raises UnsupportedError: pandas is not installed."""
    pandas = import_library("pandas", "to_pandas() needs pandas: `pip install 'tensorrepo[sql]'`")
    columns = dataset.schema.select(names).columns
    flat = [column for column in columns if not _is_tensor(column)]
    frame = (
        _table(dataset, flat).to_pandas() if flat else pandas.DataFrame(index=range(len(dataset)))
    )
    for at, column in enumerate(columns):
        if _is_tensor(column):
            cells = pandas.Series([*dataset[column.name]], index=frame.index, dtype=object)
            frame.insert(at, column.name, cells)
    return frame


def _is_tensor(column: Column) -> bool:
    return bool(column.storage.shape)


def _table(dataset: StoredDataset, columns: Sequence[Column]) -> pa.Table:
    schema = pa.schema([sql_field(column) for column in columns])
    arrays = (
        [sql_array(column, batch[column.name]) for column in columns]
        for batch in iterate(dataset, [column.name for column in columns])
    )
    return pa.Table.from_batches(
        (pa.RecordBatch.from_arrays(each, schema=schema) for each in arrays), schema
    )
