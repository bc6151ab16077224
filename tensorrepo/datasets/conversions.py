"""Rows as other libraries have them: samples for torch's `DataLoader`, frames of pandas and polars.

Samples are numbers as numpy has them, timestamps as the int64 that they are stored as, and tensors
of types that numpy lacks. Torch has no null: the caller says what stands for it.

Frames hold values as SQL gives them. Tensors are lists, one in the other, to polars; to pandas they
are numpy arrays of their own shape, one in each cell, beside columns of numbers, text and moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.datasets.stream import StreamedDataset
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    iterate,
    read_live,
    read_rows,
    resolve_rows,
)
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.convert import as_torch, present
from tensorrepo.formats.dataset.schema.nulls import NullPolicy
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.query.sql.columns import sql_array, sql_field
from tensorrepo.repo.errors import UnsupportedError

_POLARS_DIGITS = 38


class TorchDataset:
    """A map-style dataset: what torch's `DataLoader` asks for. Moments are their int64."""

    def __init__(
        self, dataset: StreamedDataset, columns: tuple[str, ...], nulls: NullPolicy
    ) -> None:
        self.dataset = dataset
        self.columns = columns
        self.nulls = nulls

    def __len__(self) -> int:
        return self.dataset.stored.rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([int(index)])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """A whole batch in one read: torch calls this where it is there."""
        return read_samples(self.dataset.stored, self.columns, list(indices), self.nulls)


def read_samples(
    dataset: StoredDataset, names: Sequence[str], rows: Sequence[int], nulls: NullPolicy
) -> list[dict[str, Any]]:
    """Some rows, each as a dict of columns.

    Raises:
        InvalidInputError: a value is null, and `nulls` does not say what stands for it.
    """
    read = read_live(dataset, names, resolve_rows(rows, dataset.rows))
    columns = {}
    for name, values in zip(names, read, strict=True):
        column = dataset.schema.column(name)
        kept = nulls.applied(column, values, rows)
        columns[name] = _samples(column, kept)
        if kept.valid is not None:
            for at in np.flatnonzero(~kept.valid).tolist():
                columns[name][at] = None
    return [{name: columns[name][at] for name in names} for at in range(len(rows))]


def _samples(column: Column, values: ColumnValues) -> list[Any]:
    if not isinstance(values, FixedValues):
        return list(present(column, values))
    array = values.values.copy()  # torch warns of memory that it may not write to
    return list(as_torch(array) if is_small_float(array.dtype) else array)


def tensors_of(dataset: StoredDataset, name: str, nulls: NullPolicy) -> Any:
    """All rows of a column as a tensor where they are numbers of one shape, else as `present` does.

    Raises:
        InvalidInputError: a null, and `nulls` does not say what stands for it.
    """
    column = dataset.schema.column(name)
    read = read_rows(dataset, name, slice(None))
    values = present(column, nulls.applied(column, read, range(dataset.rows)))
    if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
        return values
    if not (values.dtype.kind in "biufc" or is_small_float(values.dtype)):
        return values
    return as_torch(
        values if values.flags.writeable else values.copy()
    )  # torch warns of the others


def polars_frame(dataset: StoredDataset, names: Sequence[str] | None) -> Any:
    """All rows as a polars frame.

    Raises:
        UnsupportedError: polars is not installed, or holds no decimals that are so long.
    """
    polars = import_library("polars", "to_polars() needs polars: `pip install polars`")
    table = _table(dataset, dataset.schema.select(names).columns)
    return polars.from_arrow(_with_short_decimals(table))


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
    schema = pa.schema([_field(column) for column in columns])
    arrays = (
        [_array(column, batch[column.name]) for column in columns]
        for batch in iterate(dataset, [column.name for column in columns])
    )
    return pa.Table.from_batches(
        (pa.RecordBatch.from_arrays(each, schema=schema) for each in arrays), schema
    )


def _field(column: Column) -> pa.Field:
    kind = arrow_type(column.type)
    is_long = _shortened(kind) != kind
    return pa.field(column.name, kind, column.nullable) if is_long else sql_field(column)


def _array(column: Column, values: ColumnValues) -> pa.Array:
    """Values as SQL gives them, long decimals alone as what they are: to SQL they are text."""
    kind = arrow_type(column.type)
    is_long = _shortened(kind) != kind
    return to_arrow_array(column.type, values) if is_long else sql_array(column, values)


def _with_short_decimals(table: pa.Table) -> pa.Table:
    """Decimals of 256 bits as ones of 128, the longest that polars has: of others it panics."""
    for at, field in enumerate(table.schema):
        kind = _shortened(field.type)
        if kind != field.type:
            try:
                values = table.column(at).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
                raise UnsupportedError(
                    f"column {field.name!r} is {field.type}, and polars holds decimals of at most "
                    f"{_POLARS_DIGITS} digits: {problem}. Leave it out: ds.select(columns=[...])."
                    "to_polars(); to_arrow() and to_pandas() give all digits."
                ) from problem
            table = table.set_column(at, field.with_type(kind), values)
    return table


def _shortened(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_decimal256(kind):
        return pa.decimal128(min(kind.precision, _POLARS_DIGITS), kind.scale)
    if types.is_struct(kind):
        return pa.struct([each.with_type(_shortened(each.type)) for each in kind.fields])
    if types.is_map(kind):
        return pa.map_(_shortened(kind.key_type), _shortened(kind.item_type))
    if types.is_large_list(kind):
        return pa.large_list(_shortened(kind.value_type))
    if types.is_list(kind):
        return pa.list_(_shortened(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_shortened(kind.value_type), kind.list_size)
    return kind
