"""Map-style torch dataset: samples of rows by number, for torch's own `DataLoader`.

Samples are numbers as numpy has them, timestamps as the int64 that they are stored as, and tensors
of types that numpy lacks. Torch has no null: the caller says what stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorrepo.datasets.stream import StreamedDataset
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.read import StoredDataset, read_live, read_rows, resolve_rows
from tensorrepo.formats.dataset.schema.convert import as_torch, present
from tensorrepo.formats.dataset.schema.nulls import NullPolicy
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues


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
