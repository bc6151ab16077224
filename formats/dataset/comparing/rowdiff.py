"""Which rows differ between two versions of a dataset, in which columns, and what were they?

A row is the same row when its id is, wherever it lies; or, on request, when the values of a key
are. Changes come in batches of bounded memory: first rows that were updated, then deleted ones,
then added ones, each in the order of their version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.columns.arrow import to_arrow_array
from tensorrepo.formats.dataset.columns.schema import Schema
from tensorrepo.formats.dataset.comparing.cells import VersionPair, window_rows
from tensorrepo.formats.dataset.comparing.keydiff import check_keys, match_keys
from tensorrepo.formats.dataset.comparing.rowmatch import RowRanges
from tensorrepo.formats.dataset.read import page_reader, row_id_table
from tensorrepo.formats.dataset.rows.rowread import read_chosen
from tensorrepo.repo.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.comparing.narrowed import Part
    from tensorrepo.formats.dataset.read import Dataset

BATCH_BYTES = 16 << 20
MAX_BATCH_ROWS = 1 << 16
Change = Literal["updated", "deleted", "added"]
Pairs = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
ColumnPair = tuple["Column | None", "Column | None"]


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """Some rows that changed in one way.

    Attributes:
        change: what became of them.
        ids: ROW_ID ``(n,)``: of the row in the new version, of a deleted one in the old.
        old_rows: int64 ``(n,)``: their numbers in the old version, as `Dataset` counts rows; None
            for rows that were added.
        new_rows: the same in the new version; None for rows that were deleted.
        columns: names of the columns that were compared, as the new version calls them.
        changed: bool ``(n, len(columns))``: which cells of updated rows differ.
    """

    change: Change
    ids: NDArray[Any]
    old_rows: NDArray[np.int64] | None
    new_rows: NDArray[np.int64] | None
    columns: tuple[str, ...]
    changed: NDArray[np.bool_]
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
            _numbers(self.old_rows, self.rows),
            _numbers(self.new_rows, self.rows),
            _names(self.columns, self.changed),
            old,
            new,
        ]
        schema = _schema(old.type, new.type)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One version's values of some rows; `rows` are those of the part, None: there are none."""

    part: Part
    columns: tuple[Column, ...]
    rows: NDArray[np.int64] | None

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
        arrays = [to_arrow_array(each.type, values[each.name]) for each in self.columns]
        if not arrays:
            return pa.array([{}] * rows, struct)
        return pa.StructArray.from_arrays(arrays, fields=list(struct))


def changes_schema(
    old: Dataset, new: Dataset, columns: Sequence[str] | None = None, *, by_name: bool = False
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
    old: Dataset,
    new: Dataset,
    *,
    columns: Sequence[str] | None = None,
    key: Sequence[str] | None = None,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[RowChanges]:
    """What leads from the rows of one version to those of another.

    Values are compared by their bits: NaN equals itself. Only values that can differ are read; a
    batch reads those that it shows when it is asked for them.

    Args:
        old: a version.
        new: another one.
        columns: those to compare and show. A column that only one version has is compared with
            nulls when it is named here. None: all that both have are compared, all are shown.
        key: columns whose values make two rows the same row; None: row ids do. Rows that have the
            same id and key are not looked for elsewhere.
        max_bytes: a batch shows values of about so many bytes, or one row.

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


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many rows were added, deleted, updated; and of these how many in each column."""

    added: int
    deleted: int
    updated: int
    columns: dict[str, int]


def count_changes(
    old: Dataset,
    new: Dataset,
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
    return pairs, None if key is None else check_keys(old, new, key)


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


def _numbers(rows: NDArray[np.int64] | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()) if rows is None else pa.array(rows)


def _names(columns: Sequence[str], changed: NDArray[np.bool_]) -> pa.Array:
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
        of_key = self._are_keys(keys)
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

    def _are_keys(self, keys: Sequence[tuple[Column, Column]]) -> NDArray[np.bool_]:
        every = [*self._comparers, *self._keys]
        return np.array([(each.old, each.new) in keys for each in every], np.bool_)

    def _updated(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
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

    def _updated_by_key(
        self, old_rows: NDArray[np.int64], new_rows: NDArray[np.int64]
    ) -> Iterator[RowChanges]:
        step = window_rows(len(self._names))
        for start in range(0, len(new_rows), step):
            old, new = (rows[start : start + step] for rows in (old_rows, new_rows))
            changed = np.zeros((len(new), len(self._names)), np.bool_)
            for at, comparer in enumerate(self._comparers):
                for _, some in comparer.among(old, new):
                    changed[np.searchsorted(new, some), at] = True
            kept = changed.any(axis=1)
            yield from self._batches("updated", old[kept], new[kept], changed[kept])

    def _alone(self, change: Change, ranges: RowRanges) -> Iterator[RowChanges]:
        for start in range(0, ranges.rows, MAX_BATCH_ROWS):
            rows = ranges.expand(start, start + MAX_BATCH_ROWS)
            changed = np.zeros((len(rows), len(self._names)), np.bool_)
            old, new = (rows, None) if change == "deleted" else (None, rows)
            yield from self._batches(change, old, new, changed)

    def _batches(
        self,
        change: Change,
        old_rows: NDArray[np.int64] | None,
        new_rows: NDArray[np.int64] | None,
        changed: NDArray[np.bool_],
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
