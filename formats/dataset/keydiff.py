"""Which rows of two versions have the same key?

Asked of the rows that changed alone, by row id: what came, what went, and what got another key.
Keys are numbered by Arrow's hash tables, so matching is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.read import page_reader
from tensorrepo.formats.dataset.rowkeys import KeyTable, check_key_columns, key_array
from tensorrepo.formats.dataset.rowmatch import RowRanges
from tensorrepo.formats.dataset.rowread import read_chosen
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.cells import VersionPair
    from tensorrepo.formats.dataset.narrowed import Part
    from tensorrepo.formats.dataset.schema import Column, Schema
    from tensorrepo.formats.dataset.values import ColumnValues

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
    _table(pair.new, "new", columns, after, new_rows)
    place = _table(pair.old, "old", columns, before, old_rows).find(after)
    hit = place >= 0
    alone = np.ones(len(old_rows), np.bool_)
    alone[place[hit]] = False
    return KeyMatches(
        old_rows[place[hit]],
        new_rows[hit],
        _as_ranges(old_rows[alone]),
        _as_ranges(new_rows[~hit]),
    )


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
    return read_chosen(page_reader(part.dataset, column.name), rows)


def _table(
    part: Part,
    side: str,
    columns: tuple[Column, ...],
    arrays: Sequence[pa.Array],
    rows: NDArray[np.int64],
) -> KeyTable:
    for column, array in zip(columns, arrays, strict=True):
        if array.null_count:
            at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            row = int(part.live(rows[at : at + 1])[0])
            raise InvalidInputError(
                f"row {row} of the {side} version has no {column.name!r}: a key cannot be null. "
                "Compare by row ids, or by another key."
            )
    table = KeyTable.of(columns, arrays, unique=False)
    if len(table.numbers) != table.rows:
        again = int(np.setdiff1d(np.arange(table.rows), table.numbers)[0])
        first = int(table.find([array.slice(again, 1) for array in arrays])[0])
        numbers = part.live(rows[[first, again]]).tolist()
        raise InvalidInputError(
            f"rows {numbers[0]} and {numbers[1]} of the {side} version have the same key "
            f"{table.text(again)}. Compare by row ids, or by more columns."
        )
    return table


def _as_ranges(rows: NDArray[np.int64]) -> RowRanges:
    """Ascending rows as ranges."""
    if not len(rows):
        return RowRanges(rows, rows)
    apart = np.flatnonzero(np.diff(rows) != 1)
    return RowRanges(
        rows[np.concatenate([[0], apart + 1])], rows[np.append(apart, len(rows) - 1)] + 1
    )
