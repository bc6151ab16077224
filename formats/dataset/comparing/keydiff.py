"""Which rows of two versions have the same key?

Asked of the rows that changed alone, by row id: what came, what went, and what got another key.
Matching is exact: single numbers are sorted, other keys are numbered by Arrow's hash tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.comparing.cellcompare import read_near
from tensorrepo.formats.dataset.comparing.rowmatch import RowRanges
from tensorrepo.formats.dataset.editing.rowkeys import KeyTable, check_key_columns, key_array
from tensorrepo.formats.dataset.read import page_reader
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column, Schema
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.comparing.cells import VersionPair
    from tensorrepo.formats.dataset.comparing.narrowed import Part

READ_ROWS = 1 << 18  # keys that are read at a time


@dataclass(frozen=True, slots=True, eq=False)
class KeyMatches:
    """Rows of the parts, by their keys.

    Attributes:
        old_rows: int64 ``(n,)``: rows whose key is that of ``new_rows[i]``.
        new_rows: int64 ``(n,)``, ascending.
        deleted: old rows without a partner.
        added: new rows without a partner.
    """

    old_rows: NDArray[np.int64]
    new_rows: NDArray[np.int64]
    deleted: RowRanges
    added: RowRanges


def check_keys(old: Schema, new: Schema, names: Sequence[str]) -> list[tuple[Column, Column]]:
    """The columns of a key in both versions.

    Raises:
        NotFoundError: a version has no column of that name.
        InvalidInputError: one that cannot be a key.
    """
    return list(zip(check_key_columns(old, names), check_key_columns(new, names), strict=True))


def match_keys(
    pair: VersionPair,
    keys: Sequence[tuple[Column, Column]],
    old_rows: NDArray[np.int64],
    new_rows: NDArray[np.int64],
) -> KeyMatches:
    """Match rows of the parts, ascending on both sides.

    Raises:
        InvalidInputError: two rows of one side have the same key, or a key is null.
    """
    types = [key_array(two, _read(pair.new, two, new_rows[:0])).type for _, two in keys]
    before = _keys_of(pair.old, [one for one, _ in keys], types, old_rows)
    after = _keys_of(pair.new, [two for _, two in keys], types, new_rows)
    columns = tuple(two for _, two in keys)
    _refuse_nulls(pair.old, "old", columns, before, old_rows)
    _refuse_nulls(pair.new, "new", columns, after, new_rows)
    sides = _Sides(pair, columns, before, after, old_rows, new_rows)
    place = _places_of_numbers(sides) if _is_number(before) else _places_of_keys(sides)
    hit = place >= 0
    alone = np.ones(len(old_rows), np.bool_)
    alone[place[hit]] = False
    return KeyMatches(
        old_rows[place[hit]],
        new_rows[hit],
        _as_ranges(old_rows[alone]),
        _as_ranges(new_rows[~hit]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The keys of both sides, by column, and the rows of the parts that have them."""

    pair: VersionPair
    columns: tuple[Column, ...]
    before: Sequence[pa.Array]
    after: Sequence[pa.Array]
    old_rows: NDArray[np.int64]
    new_rows: NDArray[np.int64]

    def refuse(self, side: str, first: int, again: int) -> NoReturn:
        """Two keys of one side are the same."""
        part, arrays, rows = (
            (self.pair.old, self.before, self.old_rows)
            if side == "old"
            else (self.pair.new, self.after, self.new_rows)
        )
        numbers = part.live(rows[[first, again]]).tolist()
        key = ", ".join(
            f"{column.name}={array[again].as_py()!r:.80}"
            for column, array in zip(self.columns, arrays, strict=True)
        )
        raise InvalidInputError(
            f"rows {numbers[0]} and {numbers[1]} of the {side} version have the same key {key}. "
            "Compare by row ids, or by more columns."
        )


def _is_number(arrays: Sequence[pa.Array]) -> bool:
    return len(arrays) == 1 and (
        pa.types.is_integer(arrays[0].type) or pa.types.is_timestamp(arrays[0].type)
    )


def _places_of_numbers(sides: _Sides) -> NDArray[np.int64]:
    """Where each key of the new side is in the old one, -1 where it is not: by sorting numbers."""
    before, after = (_sorted(arrays[0]) for arrays in (sides.before, sides.after))
    for side, (order, numbers) in (("old", before), ("new", after)):
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(twice):
            sides.refuse(side, *sorted(order[twice[0] : twice[0] + 2].tolist()))
    order, numbers = before
    new_order, new_numbers = after
    if not len(numbers):
        return np.full(len(new_numbers), -1, np.int64)
    at = np.searchsorted(numbers, new_numbers)
    np.minimum(at, len(numbers) - 1, out=at)
    place = np.empty(len(new_numbers), np.int64)
    place[new_order] = np.where(numbers[at] == new_numbers, order[at], -1)
    return place


def _sorted(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The order of the numbers, and the numbers in it."""
    numbers = array.to_numpy(zero_copy_only=False)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return np.arange(len(numbers)), numbers
    order = np.argsort(numbers, kind="stable")
    return order, numbers[order]


def _places_of_keys(sides: _Sides) -> NDArray[np.int64]:
    """The same by hash tables, for keys of any type and several columns."""
    _table(sides, "new", sides.after)
    return _table(sides, "old", sides.before).find(sides.after)


def _keys_of(
    part: Part, columns: Sequence[Column], types: Sequence[pa.DataType], rows: NDArray[np.int64]
) -> list[pa.Array]:
    found = []
    for column, kind in zip(columns, types, strict=True):
        pieces = [
            key_array(column, _read(part, column, rows[at : at + READ_ROWS])).cast(kind)
            for at in range(0, max(1, len(rows)), READ_ROWS)
        ]
        found.append(pa.concat_arrays(pieces))
    return found


def _read(part: Part, column: Column, rows: NDArray[np.int64]) -> ColumnValues:
    return read_near(page_reader(part.dataset, column.name), rows)


def _refuse_nulls(
    part: Part,
    side: str,
    columns: Sequence[Column],
    arrays: Sequence[pa.Array],
    rows: NDArray[np.int64],
) -> None:
    for column, array in zip(columns, arrays, strict=True):
        if array.null_count:
            at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            row = int(part.live(rows[at : at + 1])[0])
            raise InvalidInputError(
                f"row {row} of the {side} version has no {column.name!r}: a key cannot be null. "
                "Compare by row ids, or by another key."
            )


def _table(sides: _Sides, side: str, arrays: Sequence[pa.Array]) -> KeyTable:
    table = KeyTable.of(sides.columns, arrays, unique=False)
    if len(table.numbers) != table.rows:
        again = int(np.setdiff1d(np.arange(table.rows), table.numbers)[0])
        first = int(table.find([array.slice(again, 1) for array in arrays])[0])
        sides.refuse(side, first, again)
    return table


def _as_ranges(rows: NDArray[np.int64]) -> RowRanges:
    """Ascending rows as ranges."""
    if not len(rows):
        return RowRanges(rows, rows)
    apart = np.flatnonzero(np.diff(rows) != 1)
    return RowRanges(
        rows[np.concatenate([[0], apart + 1])], rows[np.append(apart, len(rows) - 1)] + 1
    )
