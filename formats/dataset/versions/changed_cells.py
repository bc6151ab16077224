"""Changes of one version against another: rows, and cells of the rows that both have.

`VersionPair` is the whole of it, cheap to make and walked in bounded memory. `changed_rows` and
`changed_cells` give all of it at once, as arrays sorted by row id: what a merge wants of each side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.read import StoredDataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.versions.cell_compare import ColumnComparer
from tensorrepo.formats.dataset.versions.match import (
    Matched,
    NarrowedDataset,
    RowRanges,
    match_rows,
    narrow,
)

WINDOW_ROWS = 1 << 20  # rows whose changes are known at a time
WINDOW_CELLS = 64 << 20  # and the cells of these rows, at most


@dataclass(frozen=True, slots=True, eq=False)
class VersionPair:
    """Two versions of a dataset, narrowed to what can differ, their rows matched.

    Rows are counted in the parts; `NarrowedDataset` maps them to physical and live rows of the
    versions.
    """

    old: NarrowedDataset
    new: NarrowedDataset
    matched: Matched

    @classmethod
    def of(cls, old: StoredDataset, new: StoredDataset, *, whole: bool = False) -> VersionPair:
        """Reads the leaves, deletions and row runs that differ: no page and no page index.

        `whole` leaves in what both have, for columns that only one of them has.
        """
        parts = narrow(old, new, whole=whole)
        tables = [row_id_table(part.dataset) for part in parts]
        alive = [(part.dataset.root.rows, part.dead) for part in parts]
        return cls(*parts, match_rows(tables[0], tables[1], alive[0], alive[1]))

    def comparer(self, old: Column | None, new: Column | None) -> ColumnComparer:
        """Compares one column, which has the same id on both sides unless it lacks on one."""
        return ColumnComparer(old, new, (self.old, self.new), self.matched.both)

    def alive(self, old_rows: NDArray[np.int64], new_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which pairs of rows are deleted on neither side."""
        kept = np.ones(len(new_rows), np.bool_)
        for part, rows in ((self.old, old_rows), (self.new, new_rows)):
            dead = part.dead
            if len(dead):
                at = np.minimum(np.searchsorted(dead, rows), len(dead) - 1)
                kept &= dead[at] != rows
        return kept

    def windows(self, comparers: Sequence[ColumnComparer]) -> Iterator[tuple[int, int]]:
        """Ranges of rows of the new part in which columns can differ, in order."""
        step = window_rows(len(comparers))
        touched: set[int] = set()
        for comparer in comparers:
            found = comparer.candidates
            touched.update((found.new_rows // step).tolist())
            stops = found.stretches.new + found.stretches.rows
            for first, last in np.unique(
                np.stack([found.stretches.new // step, (stops - 1) // step]), axis=1
            ).T.tolist():
                touched.update(range(first, last + 1))
        yield from ((number * step, number * step + step) for number in sorted(touched))


def window_rows(columns: int) -> int:
    """How many rows of so many columns are compared before their changes are given out."""
    return min(WINDOW_ROWS, max(1 << 12, WINDOW_CELLS // max(1, columns)))


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """Rows of one version, sorted by id.

    Attributes:
        ids: ROW_ID ``(n,)``.
        rows: int64 ``(n,)``: their physical rows in that version.
    """

    ids: NDArray[Any]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Rows that came, in `side`, and rows that went, in `base`: what is alive on one side only."""

    added: RowSet
    deleted: RowSet


@dataclass(frozen=True, slots=True, eq=False)
class ChangedCells:
    """Rows of one column that have another value, sorted by id; alive on both sides.

    Attributes:
        ids: ROW_ID ``(n,)``.
        base_rows: int64 ``(n,)``: their physical rows in the base.
        side_rows: int64 ``(n,)``: their physical rows in the side.
    """

    ids: NDArray[Any]
    base_rows: NDArray[np.int64]
    side_rows: NDArray[np.int64]


def changed_rows(
    base: StoredDataset, side: StoredDataset, pair: VersionPair | None = None
) -> ChangedRows:
    """The rows that `side` has and `base` has not, and the reverse; no page is read.

    `pair` is ``VersionPair.of(base, side)`` where the caller has it already.
    """
    pair = VersionPair.of(base, side) if pair is None else pair
    return ChangedRows(
        _row_set(pair.new, pair.matched.added), _row_set(pair.old, pair.matched.deleted)
    )


def changed_cells(
    base: StoredDataset,
    side: StoredDataset,
    columns: Sequence[str] | None = None,
    pair: VersionPair | None = None,
) -> Mapping[str, ChangedCells]:
    """The cells that `side` changed, by column id; columns without changes are left out.

    `columns` are ids of columns that both have, hidden ones too; None: all of these. `pair` is
    ``VersionPair.of(base, side)`` where the caller has it already.
    """
    pair = VersionPair.of(base, side) if pair is None else pair
    theirs = {column.id: column for column in side.schema.columns}
    shared = [column for column in base.schema.columns if column.id in theirs]
    found: dict[str, ChangedCells] = {}
    for column in shared:
        if columns is None or column.id in columns:
            cells = _changed_cells(pair, pair.comparer(column, theirs[column.id]))
            if len(cells.ids):
                found[column.id] = cells
    return found


def _changed_cells(pair: VersionPair, comparer: ColumnComparer) -> ChangedCells:
    none = np.zeros(0, np.int64)
    found = [(none, none)]
    for start, stop in pair.windows([comparer]):
        old_rows, new_rows = comparer.changed(start, stop)
        alive = pair.alive(old_rows, new_rows)
        found.append((old_rows[alive], new_rows[alive]))
    old_rows, new_rows = (np.concatenate(rows) for rows in zip(*found, strict=True))
    ids = row_id_table(pair.old.dataset).of(old_rows)
    order = _by_id(ids)
    return ChangedCells(
        ids[order], pair.old.physical(old_rows)[order], pair.new.physical(new_rows)[order]
    )


def _row_set(part: NarrowedDataset, ranges: RowRanges) -> RowSet:
    rows = ranges.expand()
    ids = row_id_table(part.dataset).of(rows)
    order = _by_id(ids)
    return RowSet(ids[order], part.physical(rows)[order])


def _by_id(ids: NDArray[Any]) -> NDArray[np.int64]:
    return np.lexsort((ids["offset"], ids["fragment"]))
