"""What does torch's `DataLoader` get of a row, that it can put into a batch?

Numbers as numpy has them, moments as the int64 that they are stored as, elements that numpy has
not by itself as tensors. Torch has no null: somebody must say what stands for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.coerce import coerce_column
from tensorrepo.formats.dataset.columns.convert import as_torch
from tensorrepo.formats.dataset.columns.present import present
from tensorrepo.formats.dataset.columns.values import FixedValues
from tensorrepo.formats.dataset.read import read_live, resolve_rows
from tensorrepo.formats.dtypes import is_small_float
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.read import Dataset


def check_fill(dataset: Dataset, fill: Mapping[str, Any]) -> dict[str, Any]:
    """What stands for null, by column, as samples have it. A number fills a whole tensor.

    Raises:
        NotFoundError: no column of that name.
        InvalidInputError: a value that the column could not hold.
    """
    found = {}
    for name, value in fill.items():
        column = dataset.schema.column(name)
        shape = column.storage.shape
        fills_tensor = np.isscalar(value) and bool(shape) and None not in shape
        given = np.full(column.storage.row_shape, value) if fills_tensor else value
        found[name] = None if value is None else _rows(column, coerce_column(column, [given]))[0]
    return found


def read_samples(
    dataset: Dataset, names: Sequence[str], rows: Sequence[int], fill: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Some rows, each as a dict of columns.

    Raises:
        InvalidInputError: a value is null, and `fill` does not say what stands for it.
    """
    read = read_live(dataset, names, resolve_rows(rows, dataset.rows))
    columns = {}
    for name, values in zip(names, read, strict=True):
        columns[name] = _rows(dataset.schema.column(name), values)
        if values.valid is None:
            continue
        for at in np.flatnonzero(~values.valid).tolist():
            if name not in fill:
                raise _no_tensor(name, rows[at])
            columns[name][at] = fill[name]
    return [{name: columns[name][at] for name in names} for at in range(len(rows))]


def _rows(column: Column, values: ColumnValues) -> list[Any]:
    if not isinstance(values, FixedValues):
        return list(present(column, values))
    array = values.values.copy()  # torch warns of memory that it may not write to
    return list(as_torch(array) if is_small_float(array.dtype) else array)


def _no_tensor(name: str, row: int) -> InvalidInputError:
    return InvalidInputError(
        f"row {row}, column {name!r} is null, and torch puts no null into a batch. Say what stands "
        f"for it: ds.torch(fill={{{name!r}: 0}}); leave the column out: ds.torch(columns=[...]); "
        "or read batches with ds.stream(output='torch'), whose batch.valid tells which values "
        "there are. fill=None hands None to your own collate_fn."
    )
