"""New values of rows, as callers give them.

What a caller gives for a column is a single value for all rows, one value for each, or a function
of the rows. All are coerced as appended rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.columns.coerce import coerce_column
from tensorrepo.formats.dataset.columns.types import Json, Layout
from tensorrepo.formats.dataset.columns.values import (
    ColumnValues,
)
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column

# The values of a column for rows of a dataset, given their physical numbers and which of the values
# given each takes; both int64 (n,).
Source: TypeAlias = Callable[["NDArray[np.int64]", "NDArray[np.int64]"], ColumnValues]


def is_single(column: Column, value: Any) -> bool:
    """Whether `value` is the value of one row, and not those of many."""
    if value is None or isinstance(value, pa.Scalar):
        return True
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return False
    if isinstance(value, list | tuple) and (not value or any(each is None for each in value)):
        return False
    if column.storage.layout is Layout.BINARY:
        return not isinstance(value, list | tuple) and not getattr(value, "ndim", 0)
    return _rank(value) == len(column.storage.shape)


def _rank(value: Any) -> int:
    """Dimensions of a value, as its first element has them."""
    if isinstance(value, list | tuple):
        return 1 + (_rank(value[0]) if value else 0)
    if isinstance(value, np.ndarray) and value.dtype == np.object_ and value.size:
        return value.ndim + _rank(value.flat[0])
    return int(np.ndim(value))


def single_source(column: Column, value: Any) -> Source:
    """One value for all rows.

    Raises:
        InvalidInputError: it does not fit the column.
    """
    row = value.as_py() if isinstance(value, pa.Scalar) else value
    one = coerce_column(column, [row])
    return lambda rows, _: one.take(np.zeros(len(rows), np.int64))


def many_source(column: Column, values: Any, given: int) -> Source:
    """A value for each row that was given.

    Raises:
        InvalidInputError: one does not fit the column, or there are more or fewer than `given`.
    """
    found = coerce_column(column, values)
    if found.rows != given:
        hint = ""
        if isinstance(column.type, Json):
            hint = ". A list is taken as one value for each row: put it into a list for all rows"
        raise InvalidInputError(
            f"column {column.name!r}: {found.rows} values for {given} rows{hint}"
        )
    return lambda _, places: found.take(places)


def computed(column: Column, values: Any, rows: int, first_row: int = 0) -> ColumnValues:
    """What a function gave for some rows, coerced.

    Raises:
        InvalidInputError: it does not fit, or is not `rows` values.
    """
    if is_single(column, values) and column.storage.layout is not Layout.BINARY:
        raise InvalidInputError(
            f"column {column.name!r}: the function gave one value for {rows} rows, "
            "expected one for each"
        )
    found = coerce_column(column, values, first_row)
    if found.rows != rows:
        raise InvalidInputError(
            f"column {column.name!r}: the function gave {found.rows} values for {rows} rows"
        )
    return found
