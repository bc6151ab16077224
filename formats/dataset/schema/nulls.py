"""Null policy of a reader: nulls are marked, refused, or replaced by a value of the column.

Torch, and whoever wants plain arrays, has no null. Whether there is one must not decide what type
a batch has, so the caller says beforehand what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, concat
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

RAISE = "raise"


@dataclass(frozen=True, slots=True)
class NullPolicy:
    """What becomes of nulls, by column.

    Attributes:
        refuses: whether nulls of other columns are an error; else they are marked as such.
        fills: single rows that stand for null; None: nulls of this column are marked.
    """

    refuses: bool = False
    fills: Mapping[str, ColumnValues | None] = field(default_factory=dict)

    def marks(self, column: Column) -> bool:
        """Whether nulls of a column stay, so that arrays of it are masked."""
        if not column.nullable:
            return False
        return self.fills[column.name] is None if column.name in self.fills else not self.refuses

    def applied(self, column: Column, values: ColumnValues, rows: Any) -> ColumnValues:
        """`values` without nulls, or as they are where nulls of the column are marked.

        Fixed values are changed in place. `rows` are their numbers, for errors.

        Raises:
            InvalidInputError: a null in a column without a fill.
        """
        if values.valid is None or self.marks(column):
            return values
        nulls = np.flatnonzero(~values.valid)
        if not len(nulls):
            return replace(values, valid=None)
        fill = self.fills.get(column.name)
        if fill is None:
            raise null_error(column.name, rows[int(nulls[0])])
        if isinstance(values, FixedValues):
            values.values[nulls] = getattr(fill, "values")  # noqa: B009 - of one column: fixed
            return replace(values, valid=None)
        chosen = np.arange(values.rows)
        chosen[nulls] = values.rows
        return replace(concat([values, fill]).take(chosen), valid=None)


def null_error(name: str, row: int) -> InvalidInputError:
    """The refusal of a null: names row and column, and says what to do."""
    return InvalidInputError(
        f"row {row}, column {name!r} is null. Say what stands for it: nulls={{{name!r}: 0}}; leave "
        "the column out with columns=[...]; or take nulls as they are: in a stream nulls=None "
        f"masks arrays and batch.valid marks them, nulls={{{name!r}: None}} does so for this "
        "column alone."
    )


def null_policy(schema: Schema, nulls: Any) -> NullPolicy:
    """The policy that a caller's word means.

    Args:
        schema: columns that are read.
        nulls: None marks nulls, "raise" refuses them; a number stands for them in all columns of
            numbers; a mapping has a value by column (None: marked), and refuses other nulls.

    Raises:
        NotFoundError: no column of that name.
        InvalidInputError: a value that the column could not hold.
    """
    if nulls is None:
        return NullPolicy()
    if isinstance(nulls, str) and nulls == RAISE:
        return NullPolicy(refuses=True)
    if isinstance(nulls, Mapping):
        fills = {name: _fill(schema.column(name), value) for name, value in nulls.items()}
        return NullPolicy(refuses=True, fills=fills)
    if isinstance(nulls, str | bytes) or not np.isscalar(nulls):
        raise InvalidInputError(
            f"nulls is None, 'raise', a number, or values by column such as {{'age': 0}}; got "
            f"{nulls!r:.80}"
        )
    return NullPolicy(fills={each.name: _fill(each, nulls) for each in _of_numbers(schema)})


def _of_numbers(schema: Schema) -> list[Column]:
    return [
        column
        for column in schema.columns
        if column.nullable and column.storage.layout is ColumnLayout.FIXED
    ]


def _fill(column: Column, value: Any) -> ColumnValues | None:
    """One row that stands for null. A number fills a whole tensor."""
    if value is None:
        return None
    shape = column.storage.shape
    fills_tensor = np.isscalar(value) and bool(shape) and None not in shape
    given = np.full(column.storage.row_shape, value) if fills_tensor else value
    return coerce_column(column, [given])
