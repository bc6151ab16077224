"""Row diff of two versions: rows that were updated, deleted or added, with their values.

A row is the same row when its id is, wherever it lies; or, on request, when the values of a key
are: single numbers are matched by sorting, other keys by Arrow's hash tables, exactly. Changes come
in batches of bounded memory: first rows that were updated, then deleted ones, then added ones, each
in the order of their version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.read import StoredDataset, page_reader, row_id_table
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.row_keys import (
    KeyTable,
    check_key_columns,
    key_array,
    shown_key,
)
from tensorrepo.formats.dataset.versions.changed_cells import VersionPair, read_near, window_rows
from tensorrepo.formats.dataset.versions.match import NarrowedDataset, RowRanges
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

READ_ROWS = 1 << 18  # keys that are read at a time


@dataclass(frozen=True, slots=True, eq=False)
class KeyMatches:
    """Rows of the parts, by their keys: ``old_rows[i]`` has that of ``new_rows[i]``, which ascend.

    `deleted` and `added` are old and new rows without a partner.
    """

    old_rows: Ints
    new_rows: Ints
    deleted: RowRanges
    added: RowRanges


def match_keys(
    pair: VersionPair, keys: Sequence[tuple[Column, Column]], old_rows: Ints, new_rows: Ints
) -> KeyMatches:
    """Match rows of the parts, ascending on both sides.

    Raises:
        InvalidInputError: two rows of one side have the same key, or a key is null.
    """
    types = [key_array(two, _read(pair.new, two, new_rows[:0])).type for _, two in keys]
    before = _KeySide.of("old", pair.old, [one for one, _ in keys], types, old_rows)
    after = _KeySide.of("new", pair.new, [two for _, two in keys], types, new_rows)
    if len(types) == 1 and (pa.types.is_integer(types[0]) or pa.types.is_timestamp(types[0])):
        place = _places_of_numbers(before, after)
    else:
        after.table()  # refuses keys that come twice
        place = before.table().find(after.arrays)
    hit = place >= 0
    alone = np.ones(len(old_rows), np.bool_)
    alone[place[hit]] = False
    return KeyMatches(
        old_rows[place[hit]], new_rows[hit], _as_ranges(old_rows[alone]), _as_ranges(new_rows[~hit])
    )


@dataclass(frozen=True, slots=True, eq=False)
class _KeySide:
    """The keys of one side, by column, and the rows of its part that have them."""

    name: Literal["old", "new"]
    part: NarrowedDataset
    columns: tuple[Column, ...]
    arrays: list[pa.Array]
    rows: Ints

    @classmethod
    def of(
        cls,
        name: Literal["old", "new"],
        part: NarrowedDataset,
        columns: Sequence[Column],
        types: Sequence[pa.DataType],
        rows: Ints,
    ) -> _KeySide:
        """The keys of `rows` as arrays of `types`, none of them null."""
        arrays = []
        for column, kind in zip(columns, types, strict=True):
            pieces = [
                key_array(column, _read(part, column, rows[at : at + READ_ROWS])).cast(kind)
                for at in range(0, max(1, len(rows)), READ_ROWS)
            ]
            arrays.append(array := pa.concat_arrays(pieces))
            if array.null_count:
                at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
                raise InvalidInputError(
                    f"row {part.live(rows[at : at + 1])[0]} of the {name} version has no "
                    f"{column.name!r}: a key cannot be null. Compare by row ids, or by another key."
                )
        return cls(name, part, tuple(columns), arrays, rows)

    def table(self) -> KeyTable:
        table = KeyTable.of(self.columns, self.arrays, unique=False)
        if len(table.numbers) != table.rows:
            again = int(np.setdiff1d(np.arange(table.rows), table.numbers)[0])
            self.refuse(int(table.find([each.slice(again, 1) for each in self.arrays])[0]), again)
        return table

    def refuse(self, first: int, again: int) -> NoReturn:
        """Two keys are the same."""
        numbers = self.part.live(self.rows[[first, again]]).tolist()
        key = shown_key(self.columns, self.arrays, again)
        raise InvalidInputError(
            f"rows {numbers[0]} and {numbers[1]} of the {self.name} version have the same key "
            f"{key}. Compare by row ids, or by more columns."
        )


def _places_of_numbers(before: _KeySide, after: _KeySide) -> Ints:
    """Where each key of the new side is in the old one, -1 where it is not: by sorting numbers."""
    (order, numbers), (new_order, new_numbers) = (
        _sorted(each.arrays[0]) for each in (before, after)
    )
    for side, places, known in ((before, order, numbers), (after, new_order, new_numbers)):
        twice = np.flatnonzero(known[1:] == known[:-1])
        if len(twice):
            side.refuse(*sorted(places[twice[0] : twice[0] + 2].tolist()))
    if not len(numbers):
        return np.full(len(new_numbers), -1, np.int64)
    at = np.searchsorted(numbers, new_numbers)
    np.minimum(at, len(numbers) - 1, out=at)
    place = np.empty(len(new_numbers), np.int64)
    place[new_order] = np.where(numbers[at] == new_numbers, order[at], -1)
    return place


def _sorted(array: pa.Array) -> tuple[Ints, NDArray[Any]]:
    """The order of the numbers, and the numbers in it."""
    numbers = array.to_numpy(zero_copy_only=False)
    if bool((numbers[1:] > numbers[:-1]).all()):
        return np.arange(len(numbers)), numbers
    order = np.argsort(numbers, kind="stable")
    return order, numbers[order]


def _read(part: NarrowedDataset, column: Column, rows: Ints) -> ColumnValues:
    return read_near(page_reader(part.dataset, column.name), rows)


def _as_ranges(rows: Ints) -> RowRanges:
    """Ascending rows as ranges."""
    if not len(rows):
        return RowRanges(rows, rows)
    apart = np.flatnonzero(np.diff(rows) != 1)
    return RowRanges(
        rows[np.concatenate([[0], apart + 1])], rows[np.append(apart, len(rows) - 1)] + 1
    )


BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 1 << 16
RowChange = Literal["updated", "deleted", "added"]
Pairs = tuple[Ints, Ints]
ColumnPair = tuple["Column | None", "Column | None"]


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """Some rows that changed in one way.

    Attributes:
        change: kind of the change.
        ids: ROW_ID ``(n,)``: of the row in the new version, of a deleted one in the old.
        old_rows: int64 ``(n,)``: their numbers in the old version, as `StoredDataset` counts rows;
            None for rows that were added.
        new_rows: the same in the new version; None for rows that were deleted.
        columns: names of the columns that were compared, as the new version calls them.
        changed: bool ``(n, len(columns))``: which cells of updated rows differ.
    """

    change: RowChange
    ids: NDArray[Any]
    old_rows: Ints | None
    new_rows: Ints | None
    columns: tuple[str, ...]
    changed: Bools
    _sides: tuple[_Side, _Side]

    @property
    def rows(self) -> int:
        return len(self.ids)

    def slice(self, start: int, stop: int) -> RowChanges:
        """Rows ``[start, stop)`` of these."""
        old, new = self._sides
        return replace(
            self,
            ids=self.ids[start:stop],
            old_rows=None if self.old_rows is None else self.old_rows[start:stop],
            new_rows=None if self.new_rows is None else self.new_rows[start:stop],
            changed=self.changed[start:stop],
            _sides=(old.slice(start, stop), new.slice(start, stop)),
        )

    def old(self) -> dict[str, ColumnValues]:
        """Values that they had, by the columns' old names; empty for rows that were added."""
        return self._sides[0].values()

    def new(self) -> dict[str, ColumnValues]:
        """Values that they have, by the columns' new names; empty for rows that were deleted."""
        return self._sides[1].values()

    def to_arrow(self) -> pa.RecordBatch:
        """The batch with values of both sides, of schema `changes_schema`."""
        old, new = (side.to_arrow(self.rows) for side in self._sides)
        arrays = [
            pa.array([self.change], pa.string()).take(pa.array(np.zeros(self.rows, np.int64))),
            _id_text(self.ids),
            *(
                pa.nulls(self.rows, pa.int64()) if rows is None else pa.array(rows)
                for rows in (self.old_rows, self.new_rows)
            ),
            _names(self.columns, self.changed),
            old,
            new,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(old.type, new.type))


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One version's values of some rows; `rows` are those of the part, None: there are none."""

    part: NarrowedDataset
    columns: tuple[Column, ...]
    rows: Ints | None

    @property
    def row_bytes(self) -> float:
        """About how many bytes the values of a row take."""
        if self.rows is None:
            return 0.0
        shown = {column.id for column in self.columns}
        known = self.part.dataset.root.statistics
        total = sum(max(one.raw_bytes, one.stored_bytes) for one in known if one.id in shown)
        return total / max(1, self.part.total)

    def slice(self, start: int, stop: int) -> _Side:
        return self if self.rows is None else replace(self, rows=self.rows[start:stop])

    def values(self) -> dict[str, ColumnValues]:
        if self.rows is None:
            return {}
        return {
            column.name: read_chosen(page_reader(self.part.dataset, column.name), self.rows)
            for column in self.columns
        }

    def to_arrow(self, rows: int) -> pa.StructArray:
        struct = _struct(self.columns)
        if self.rows is None:
            return pa.nulls(rows, struct)
        values = self.values()
        arrays = [column_array(each, values[each.name]) for each in self.columns]
        if not arrays:
            return pa.array([{}] * rows, struct)
        return pa.StructArray.from_arrays(arrays, fields=list(struct))


def changes_schema(
    old: StoredDataset,
    new: StoredDataset,
    columns: Sequence[str] | None = None,
    *,
    by_name: bool = False,
) -> pa.Schema:
    """The Arrow schema of `RowChanges.to_arrow`.

    ``change`` and ``row_id`` are text, ``old_row`` and ``new_row`` int64, ``changed`` a list of
    names; ``old`` and ``new`` are structs of the columns, null where a row is not there. `by_name`
    says whether rows are matched by a key.
    """
    pairs = paired_columns(old.schema, new.schema, columns, by_name=by_name)
    old_shown = _shown(old.schema, columns, pairs, 0)
    return _schema(_struct(old_shown), _struct(_shown(new.schema, columns, pairs, 1)))


def row_changes(
    old: StoredDataset,
    new: StoredDataset,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[RowChanges]:
    """What leads from the rows of one version to those of another.

    Values are compared by their bits: NaN equals itself. Only values that can differ are read; a
    batch reads those that it shows when it is asked for them.

    Only `columns` are compared and shown: one that only one version has is compared with nulls when
    it is named there. None: all that both have are compared, all are shown. `key` names columns
    whose values make two rows the same row, instead of row ids; rows that have the same id and key
    are not looked for elsewhere. A batch shows values of about `max_bytes`, or one row.

    Raises:
        NotFoundError: no version has a column of that name.
        InvalidInputError: a key that cannot be one, or that two of the rows that changed share.
    """
    pairs, keys = compared_columns(old.schema, new.schema, columns, key)
    shown = (_shown(old.schema, columns, pairs, 0), _shown(new.schema, columns, pairs, 1))
    extra: list[ColumnPair] = [pair for pair in keys or () if pair not in pairs]
    whole = any(not one or not two or one.id != two.id for one, two in [*pairs, *extra])
    walk = _Walk(VersionPair.of(old, new, whole=whole), pairs, extra, shown, max_bytes)
    yield from walk.by_id() if keys is None else walk.by_key(keys)


def updated_rows(old: StoredDataset, new: StoredDataset, columns: Sequence[str]) -> Ints:
    """Live rows of the new version whose values in `columns` are not what they were, ascending."""
    if old.digest == new.digest:
        return np.zeros(0, np.int64)
    pieces = []
    for batch in row_changes(old, new, columns=columns, max_bytes=1 << 62):
        if batch.change != "updated":
            break  # they come first
        assert batch.new_rows is not None, "updated rows are in both versions"
        pieces.append(batch.new_rows)
    return np.sort(np.concatenate([np.zeros(0, np.int64), *pieces]))


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many rows were added, deleted, updated; and of these how many in each column."""

    added: int
    deleted: int
    updated: int
    columns: dict[str, int]


def count_changes(
    old: StoredDataset,
    new: StoredDataset,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
) -> ChangeCounts:
    """Counts of what `row_changes` gives: reads the values that can differ, and no others."""
    found = {"added": 0, "deleted": 0, "updated": 0}
    by_column: dict[str, int] = {}
    for batch in row_changes(old, new, columns=columns, key=key, max_bytes=1 << 62):
        found[batch.change] += batch.rows
        for name, count in zip(batch.columns, batch.changed.sum(axis=0).tolist(), strict=True):
            by_column[name] = by_column.get(name, 0) + count
    return ChangeCounts(**found, columns={name: n for name, n in by_column.items() if n})


# ------------------------------------------------------------------------------ columns


def compared_columns(
    old: Schema, new: Schema, columns: Sequence[str] | None, key: Sequence[str] | None
) -> tuple[list[ColumnPair], Sequence[tuple[Column, Column]] | None]:
    """Which columns `row_changes` compares, and those of the key; raises as it does."""
    pairs = paired_columns(old, new, columns, by_name=key is not None)
    if key is None:
        return pairs, None
    return pairs, list(zip(check_key_columns(old, key), check_key_columns(new, key), strict=True))


def paired_columns(
    old: Schema, new: Schema, names: Sequence[str] | None, *, by_name: bool
) -> list[ColumnPair]:
    """Which column of one version is which of the other: by id, what is left by name if asked.

    Without `names` those that both have, hidden ones left out; else those that are called so in
    the new version, or in the old one alone.
    """
    before = {column.id: column for column in old.columns}
    after = {column.id for column in new.columns}
    pairs: list[ColumnPair] = [(before.get(column.id), column) for column in new.columns]
    left = [column for column in old.columns if column.id not in after]
    if by_name:
        called = {column.name: column for column in left}
        pairs = [(called.get(two.name) if one is None and two else one, two) for one, two in pairs]
        taken = {one.id for one, _ in pairs if one}
        left = [column for column in left if column.id not in taken]
    pairs += [(column, None) for column in left]
    if names is None:
        return [(one, two) for one, two in pairs if one and two and two.derived is None]
    return [_named(pairs, name) for name in names]


def _named(pairs: Sequence[ColumnPair], name: str) -> ColumnPair:
    for side in (1, 0):
        for pair in pairs:
            column = pair[side]
            if column is not None and column.name == name:
                return pair
    there = dict.fromkeys(column.name for pair in pairs for column in pair if column)
    raise NotFoundError(f"no column {name!r}; there are {', '.join(map(repr, there))}")


def _shown(
    schema: Schema, names: Sequence[str] | None, pairs: Sequence[ColumnPair], side: int
) -> tuple[Column, ...]:
    """The columns of one version whose values are shown."""
    if names is None:
        return schema.visible.columns
    return tuple(dict.fromkeys(column for pair in pairs if (column := pair[side])))


def _struct(columns: Sequence[Column]) -> pa.DataType:
    """Arrow's type of one side: all fields may be null, as a row may be on one side only."""
    if not columns:
        return pa.struct([])
    return pa.struct([field.with_nullable(True) for field in Schema(tuple(columns)).to_arrow()])


def _schema(old: pa.DataType, new: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field("change", pa.string(), nullable=False),
            pa.field("row_id", pa.string(), nullable=False),
            pa.field("old_row", pa.int64()),
            pa.field("new_row", pa.int64()),
            pa.field("changed", pa.list_(pa.string()), nullable=False),
            pa.field("old", old),
            pa.field("new", new),
        ]
    )


def _id_text(ids: NDArray[Any]) -> pa.Array:
    """Row ids as `format_row_id` shows them."""
    fragments, which = np.unique(ids["fragment"], return_inverse=True)
    names = pa.array([f"{uid:016x}" for uid in fragments.tolist()], pa.string())
    offsets = pa.array(ids["offset"]).cast(pa.string())
    return pc.binary_join_element_wise(names.take(pa.array(which)), offsets, ":")


def _names(columns: Sequence[str], changed: Bools) -> pa.Array:
    """Per row the names of the columns that differ."""
    offsets = np.zeros(len(changed) + 1, np.int32)
    np.cumsum(changed.sum(axis=1), out=offsets[1:])
    _, which = np.nonzero(changed)
    names = pa.array(columns, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(offsets), names)


# ------------------------------------------------------------------------------ walking


class _Walk:
    """One comparison on its way."""

    def __init__(
        self,
        pair: VersionPair,
        columns: Sequence[ColumnPair],
        keys: Sequence[ColumnPair],
        shown: tuple[tuple[Column, ...], tuple[Column, ...]],
        max_bytes: int,
    ) -> None:
        self._pair = pair
        self._comparers = list(starmap(pair.comparer, columns))
        self._keys = list(starmap(pair.comparer, keys))  # columns of a key that are not compared
        self._names = tuple(comparer.name for comparer in self._comparers)
        self._shown = shown
        self._max_bytes = max_bytes

    def by_id(self) -> Iterator[RowChanges]:
        for old_rows, new_rows, changed in self._updated():
            yield from self._batches("updated", old_rows, new_rows, changed)
        yield from self._alone("deleted", self._pair.matched.deleted)
        yield from self._alone("added", self._pair.matched.added)

    def by_key(self, keys: Sequence[tuple[Column, Column]]) -> Iterator[RowChanges]:
        every = [*self._comparers, *self._keys]
        of_key = np.array([(each.old, each.new) in keys for each in every], np.bool_)
        moved: list[Pairs] = []
        for old_rows, new_rows, changed in self._updated():
            other = changed[:, of_key].any(axis=1)
            moved.append((old_rows[other], new_rows[other]))
            kept = ~other & changed[:, : len(self._names)].any(axis=1)
            yield from self._batches(
                "updated", old_rows[kept], new_rows[kept], changed[kept][:, : len(self._names)]
            )
        matched = self._pair.matched
        gone = np.sort(np.concatenate([matched.deleted.expand(), *(one for one, _ in moved)]))
        come = np.sort(np.concatenate([matched.added.expand(), *(two for _, two in moved)]))
        found = match_keys(self._pair, keys, gone, come)
        yield from self._updated_by_key(found.old_rows, found.new_rows)
        yield from self._alone("deleted", found.deleted)
        yield from self._alone("added", found.added)

    def _updated(self) -> Iterator[tuple[Ints, Ints, Bools]]:
        """Rows that both have and that differ: old, new, which columns (those of the key last)."""
        every = [*self._comparers, *self._keys]
        for start, stop in self._pair.windows(every):
            found = [comparer.changed(start, stop) for comparer in every]
            rows = np.unique(np.concatenate([new_rows for _, new_rows in found]))
            changed = np.zeros((len(rows), len(every)), np.bool_)
            for at, (_, new_rows) in enumerate(found):
                changed[np.searchsorted(rows, new_rows), at] = True
            old_rows = self._pair.matched.both.old_of(rows)
            alive = self._pair.alive(old_rows, rows)
            if alive.any():
                yield old_rows[alive], rows[alive], changed[alive]

    def _updated_by_key(self, old_rows: Ints, new_rows: Ints) -> Iterator[RowChanges]:
        step = window_rows(len(self._names))
        for start in range(0, len(new_rows), step):
            old, new = (rows[start : start + step] for rows in (old_rows, new_rows))
            changed = np.zeros((len(new), len(self._names)), np.bool_)
            for at, comparer in enumerate(self._comparers):
                for _, some in comparer.among(old, new):
                    changed[np.searchsorted(new, some), at] = True
            kept = changed.any(axis=1)
            yield from self._batches("updated", old[kept], new[kept], changed[kept])

    def _alone(self, change: RowChange, ranges: RowRanges) -> Iterator[RowChanges]:
        for start in range(0, ranges.rows, MAX_BATCH_ROWS):
            rows = ranges.expand(start, start + MAX_BATCH_ROWS)
            changed = np.zeros((len(rows), len(self._names)), np.bool_)
            old, new = (rows, None) if change == "deleted" else (None, rows)
            yield from self._batches(change, old, new, changed)

    def _batches(
        self, change: RowChange, old_rows: Ints | None, new_rows: Ints | None, changed: Bools
    ) -> Iterator[RowChanges]:
        old, new = self._pair.old, self._pair.new
        sides = (_Side(old, self._shown[0], old_rows), _Side(new, self._shown[1], new_rows))
        part, rows = (old, old_rows) if new_rows is None else (new, new_rows)
        whole = RowChanges(
            change,
            row_id_table(part.dataset).of(np.zeros(0, np.int64) if rows is None else rows),
            None if old_rows is None else old.live(old_rows),
            None if new_rows is None else new.live(new_rows),
            self._names,
            changed,
            sides,
        )
        step = max(1, int(self._max_bytes / max(1.0, sum(side.row_bytes for side in sides))))
        for start in range(0, whole.rows, step):
            yield whole.slice(start, start + step)
