"""Key tables: rows found by the values of one or several columns.

Matching is exact: Arrow's hash tables number the values of each column, and the numbers of several
columns are joined into one. Memory is bounded by the keys that are looked for, not by the rows that
are looked through.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints, is_float
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    Date,
    Decimal,
    Duration,
    Scalar,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

_EXACT = Text | Bytes | ClassLabel | Timestamp | Date | Time | Duration | Decimal


def check_key_columns(schema: Schema, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a key.

    Raises:
        NotFoundError: there is no such column.
        InvalidInputError: none, one twice, or one whose values are not compared as keys are.
    """
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(f"a key is one or several columns, each once; got {list(names)}")
    columns = tuple(schema.column(name) for name in names)
    for column in columns:
        kind = column.type
        exact = isinstance(kind, Scalar) and not is_float(column.storage.element)
        exact = exact and column.storage.element.kind != "c"
        if not exact and not isinstance(kind, _EXACT):
            raise InvalidInputError(
                f"column {column.name!r} cannot be a key: keys are integers, bools, text, bytes, "
                "class labels, dates, times, timestamps, durations and decimals"
            )
    return columns


def key_array(column: Column, values: ColumnValues) -> pa.Array:
    """Values of a key column as Arrow matches them."""
    array = to_arrow_array(column.type, values)
    return array.storage if isinstance(array, pa.ExtensionArray) else array


@dataclass(frozen=True, slots=True, eq=False)
class KeyTable:
    """Keys that rows are looked for by, numbered as they were given.

    Attributes:
        columns: columns of the key.
        rows: number of keys given.
        values: per column the different values.
        joins: per column but the first, the different joined numbers, ascending.
        numbers: int64: the place of a key among those given, by joined number.
    """

    columns: tuple[Column, ...]
    rows: int
    values: tuple[pa.Array, ...]
    joins: tuple[Ints, ...]
    numbers: Ints
    _arrays: tuple[pa.Array, ...]

    @classmethod
    def of(
        cls, columns: tuple[Column, ...], arrays: Sequence[pa.Array], *, unique: bool
    ) -> KeyTable:
        """The table of all keys given.

        `unique` refuses a key that is given twice; else the first one counts.

        Raises:
            InvalidInputError: a key is null in a column, or given twice.
        """
        for column, array in zip(columns, arrays, strict=True):
            if array.null_count:
                at = pc.index(array.is_null(), True).as_py()
                raise InvalidInputError(f"row {at}, column {column.name!r}: a key cannot be null")
        values = tuple(pc.unique(array) for array in arrays)
        joined, joins = _codes(arrays[0], values[0]), []
        for array, different in zip(arrays[1:], values[1:], strict=True):
            wide = joined * len(different) + _codes(array, different)
            join, joined = np.unique(wide, return_inverse=True)
            joins.append(join)
        _, numbers = np.unique(joined, return_index=True)
        table = cls(columns, len(joined), values, tuple(joins), numbers, tuple(arrays))
        if unique and len(numbers) != len(joined):
            again = int(np.setdiff1d(np.arange(len(joined)), numbers)[0])
            first = int(numbers[joined[again]])
            raise InvalidInputError(
                f"rows {first} and {again} of the input have the same key {table.text(again)}"
            )
        return table

    def find(self, arrays: Sequence[pa.Array]) -> Ints:
        """The place of each row's key among those given; -1 where it is none of them."""
        joined = _codes(arrays[0], self.values[0])
        for array, different, join in zip(arrays[1:], self.values[1:], self.joins, strict=True):
            code = _codes(array, different)
            wide = joined * len(different) + code
            at = np.minimum(np.searchsorted(join, wide), max(0, len(join) - 1))
            hit = (joined >= 0) & (code >= 0)
            hit &= (join[at] == wide) if len(join) else False
            joined = np.where(hit, at, -1)
        if not len(self.numbers):
            return joined
        return np.where(joined >= 0, self.numbers[np.maximum(joined, 0)], -1)

    def text(self, number: int) -> str:
        """One key, for people: ``id=7, split='train'``."""
        return shown_key(self.columns, self._arrays, number)


def shown_key(columns: Sequence[Column], arrays: Sequence[pa.Array], row: int) -> str:
    """The key of one row, for people."""
    pairs = zip(columns, arrays, strict=True)
    return ", ".join(f"{column.name}={array[row].as_py()!r:.80}" for column, array in pairs)


def _codes(array: pa.Array, different: pa.Array) -> Ints:
    """The place of each value among `different` ones, -1 where it is none of them or null."""
    places = pc.index_in(array, value_set=different, skip_nulls=True).fill_null(-1)
    found: Ints = places.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
