"""Merge plan of rows and cells: what of one version goes into another.

The other version's changes since the base are found by row id, and put on the first one: rows that
came and went, cells that were set. Nothing is written here. What both sides did to one cell, or to
a row and its cells, is a clash, which a preferred side decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID, format_row_id
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    fragment_records,
    live_rows,
    page_reader,
    row_id_table,
)
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.equality import differing
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.versions.changed_cells import (
    ChangedCells,
    ChangedRows,
    VersionPair,
    changed_cells,
    changed_rows,
)
from tensorrepo.formats.dataset.versions.conflicts import Clashes, SideName, cell_clash, row_clash
from tensorrepo.repo.deferred_dataclass import dataclass

COMPARED_BYTES = 8 << 20  # of values that are compared at a time, on each side
NO_ROWS = np.zeros(0, np.int64)
# Physical rows of `onto`, and of `other`: int64 ``(n,)`` each.
RowPairs = tuple[Ints, Ints]


@dataclass(eq=False)
class Side:
    """One version, and what it changed of the base: found when it is asked for."""

    name: SideName
    base: StoredDataset
    dataset: StoredDataset
    generation: int

    @cached_property
    def pair(self) -> VersionPair:
        return VersionPair.of(self.base, self.dataset)

    @cached_property
    def rows(self) -> ChangedRows:
        return changed_rows(self.pair)

    @cached_property
    def cells(self) -> Mapping[str, ChangedCells]:
        """Changed cells of all columns that base and side have, by column id."""
        return changed_cells(self.pair)

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        return {column.id: column for column in self.dataset.schema.columns}

    @cached_property
    def new_uids(self) -> NDArray[np.uint64]:
        """Of the fragments that the base has not, in their order."""
        known = fragment_records(self.pair.old.dataset)["uid"]
        mine = fragment_records(self.pair.new.dataset)["uid"]
        return mine[~np.isin(mine, known)]

    @cached_property
    def moved_uids(self) -> frozenset[int]:
        """Of the new fragments that hold rows of the base: those that compaction wrote."""
        records = fragment_records(self.pair.new.dataset)
        both = self.pair.matched.both
        starts = offsets_of(records["rows"])
        stops = starts[1:]
        at = np.searchsorted(both.new + both.rows, starts[:-1], side="right")
        inside = np.minimum(at, max(0, len(both) - 1))
        holds = at < len(both)
        if len(both):
            holds &= both.new[inside] < stops
        return frozenset(records["uid"][holds].tolist()) & frozenset(self.new_uids.tolist())

    @property
    def is_replaced(self) -> bool:
        """Whether it has rows, but none that the base has, dead or alive: all was written anew."""
        whole = self.pair.old.dataset.root.rows == self.base.root.rows > 0
        return whole and self.dataset.root.rows > 0 and not len(self.pair.matched.both)

    @property
    def changes_rows(self) -> bool:
        """Whether rows came or went, or cells were set."""
        matched = self.pair.matched
        return bool(matched.added.rows or matched.deleted.rows or self.cells)

    @property
    def order(self) -> tuple[int, int, str]:
        """Decides which side's rows come first, the same whoever merges."""
        new = int(self.new_uids.min()) if len(self.new_uids) else -1
        return self.generation, new, self.dataset.digest

    def find(self, ids: NDArray[Any]) -> tuple[Ints, Bools]:
        """Physical rows that have these ids, -1 where there is none; and which are alive."""
        if not len(ids):
            return NO_ROWS, np.zeros(0, np.bool_)
        rows = row_id_table(self.dataset).find(ids)
        return rows, live_rows(self.dataset).live(rows) >= 0


@dataclass(frozen=True, slots=True, eq=False)
class CellMoves:
    """Cells of one column that the other version gives: physical rows, int64 ``(n,)`` each.

    `onto_rows` ascend.
    """

    onto_rows: Ints
    other_rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """What becomes of the rows of `onto`.

    Attributes:
        whole: uids of fragments of `other` that are put behind as they are.
        masked: uids of further ones, and the physical rows of `other` that are wanted of each.
        killed: physical rows of `onto` that are deleted now, ascending.
        revived: physical rows of `onto` that are deleted no more, ascending.
        cells: cells that are set, by column id.
        kept: per column id the rows of `onto`, ascending, that it changed itself.
    """

    whole: frozenset[int]
    masked: Mapping[int, Ints]
    killed: Ints
    revived: Ints
    cells: Mapping[str, CellMoves]
    kept: Mapping[str, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class RowPlanner:
    """What the changes of `other` do to `onto`.

    `columns` are ids of those that both have and keep. Contradictions are noted in `clashes`,
    unless the side `prefer` decides them.
    """

    _onto: Side
    _other: Side
    _columns: Sequence[str]
    _clashes: Clashes
    _prefer: SideName | None

    def plan(self) -> RowPlan:
        whole = self._whole()
        _, gone, kept = self._deleted(self._other, self._onto)
        ids, rows = self._wanted(whole)
        lost_ids, lost, back = self._deleted(self._onto, self._other)
        ids, rows = np.concatenate([ids, lost_ids[back]]), np.concatenate([rows, lost[back]])
        places, alive = self._onto.find(ids)
        back = (places >= 0) & ~alive
        cells = self._cells((places[back], rows[back]))
        self._compare_doubles(ids[alive], places[alive], rows[alive], cells)
        self._compare_added_twice(cells)
        return RowPlan(
            whole,
            self._by_fragment(rows[places < 0]),
            np.sort(gone[~kept]),
            np.sort(places[back]),
            {column: _moves(each) for column, each in cells.items()},
            {
                column: np.sort(self._onto.cells[column].side_rows)
                for column in cells
                if column in self._onto.cells
            },
        )

    # -------------------------------------------------------------------------- rows that came

    def _whole(self) -> frozenset[int]:
        """New fragments of `other` of whose rows neither base nor `onto` has any."""
        new, onto = self._other, self._onto
        if not len(new.new_uids):
            return frozenset()
        table = row_id_table(new.pair.new.dataset)
        known = row_id_table(onto.pair.new.dataset).runs["uid"]
        records = fragment_records(new.pair.new.dataset)
        starts = offsets_of(records["rows"])[:-1]
        met = np.isin(table.runs["uid"], known)
        at = np.searchsorted(starts, table.first_row[met], side="right") - 1
        doubled = set(records["uid"][at].tolist())
        doubled |= set(known.tolist())
        return frozenset(new.new_uids.tolist()) - doubled - new.moved_uids

    def _wanted(self, whole: frozenset[int]) -> tuple[NDArray[Any], Ints]:
        """Ids and physical rows of all other rows that `other` added or brought back."""
        records = fragment_records(self._other.pair.new.dataset)
        taken = np.array(sorted(whole), np.uint64)
        mine = records[np.isin(records["uid"], taken)]
        live = int(mine["rows"].sum(dtype=np.int64)) - int(mine["deleted"].sum(dtype=np.int64))
        if self._other.pair.matched.added.rows == live:
            return np.zeros(0, ROW_ID), NO_ROWS
        added = self._other.rows.added
        rest = ~np.isin(self._uids_of(added.rows), taken)
        return added.ids[rest], added.rows[rest]

    def _uids_of(self, rows: Ints) -> NDArray[np.uint64]:
        """The fragment of `other` that each physical row lies in."""
        records = fragment_records(self._other.dataset)
        starts = offsets_of(records["rows"])[:-1]
        return records["uid"][np.searchsorted(starts, rows, side="right") - 1]

    def _by_fragment(self, rows: Ints) -> dict[int, Ints]:
        uids = self._uids_of(rows) if len(rows) else np.zeros(0, np.uint64)
        return {uid: np.sort(rows[uids == uid]) for uid in np.unique(uids).tolist()}

    # -------------------------------------------------------------------------- rows that went

    def _deleted(self, deleter: Side, other: Side) -> tuple[NDArray[Any], Ints, Bools]:
        """Ids and rows of `other` that `deleter` deleted, and which of them stay all the same.

        Those that `other` updated are contested: they stay where it is preferred.
        """
        if not deleter.pair.matched.deleted.rows:
            return np.zeros(0, ROW_ID), NO_ROWS, np.zeros(0, np.bool_)
        rows, alive = other.find(deleter.rows.deleted.ids)
        ids = deleter.rows.deleted.ids[alive]
        contested = self._contested(other, ids, deleter.name)
        return ids, rows[alive], contested & (self._prefer == other.name)

    def _contested(self, updater: Side, ids: NDArray[Any], deleter: SideName) -> Bools:
        """Which rows, deleted on the one side, the other updated. Without preference a clash."""
        contested = np.zeros(len(ids), np.bool_)
        by_column = {}
        for column, cells in updater.cells.items():
            if column in self._columns and updater.columns[column].derived is None:
                by_column[updater.columns[column].name] = hit = _among(ids, cells.ids)
                contested |= hit
        if self._prefer is None and contested.any():
            found = np.flatnonzero(contested)
            told = [
                row_clash(
                    format_row_id(ids[at]),
                    key_of(updater, ids[at : at + 1]),
                    [name for name, hit in by_column.items() if hit[at]],
                    deleter,
                )
                for at in found[: self._clashes.room].tolist()
            ]
            self._clashes.add(told, len(found))
        return contested

    # -------------------------------------------------------------------------- cells

    def _cells(self, back: RowPairs) -> dict[str, list[RowPairs]]:
        """Cells that `other` gives; of rows that come `back` all of them."""
        found: dict[str, list[RowPairs]] = {}
        for column in self._columns:
            moves = [back] if len(back[0]) else []
            if (cells := self._other.cells.get(column)) is not None:
                places, alive = self._onto.find(cells.ids)
                some = ChangedCells(
                    cells.ids[alive], cells.base_rows[alive], cells.side_rows[alive]
                )
                free = ~self._decided(column, some, places[alive])
                moves.append((places[alive][free], some.side_rows[free]))
            if moves:
                found[column] = moves
        return found

    def _decided(self, column: str, cells: ChangedCells, places: Ints) -> Bools:
        """Which cells keep the value of `onto`, which changed them as well."""
        kept = np.zeros(len(places), np.bool_)
        mine = self._onto.cells.get(column)
        if mine is None or not len(places):
            return kept
        met = np.flatnonzero(_among(cells.ids, mine.ids))
        unequal = self._unequal(column, places[met], cells.side_rows[met])
        kept[met] = True
        contested = met[unequal]
        if self._prefer == self._other.name:
            kept[contested] = False
        elif self._prefer is None and self._onto.columns[column].derived is None:
            base = cells.base_rows[contested]
            self._clash_cells(
                column, cells.ids[contested], (base, places[contested], cells.side_rows[contested])
            )
        return kept

    def _compare_doubles(
        self, ids: NDArray[Any], places: Ints, rows: Ints, cells: dict[str, list[RowPairs]]
    ) -> None:
        """Rows that both sides added, from a third place: their cells must agree."""
        for column in self._columns if len(ids) else ():
            unequal = np.flatnonzero(self._unequal(column, places, rows))
            if not len(unequal):
                continue
            if self._prefer == self._other.name:
                cells.setdefault(column, []).append((places[unequal], rows[unequal]))
            elif self._prefer is None:
                self._clash_cells(column, ids[unequal], (None, places[unequal], rows[unequal]))

    def _compare_added_twice(self, cells: dict[str, list[RowPairs]]) -> None:
        """Columns that both sides added: cells of the rows that both have must agree."""
        base = {column.id for column in self._onto.base.schema.columns}
        twice = [column for column in self._columns if column not in base]
        if not twice:
            return
        pair = VersionPair.of(self._onto.dataset, self._other.dataset)
        for column, found in changed_cells(pair, twice).items():
            places, rows = found.base_rows, found.side_rows
            if self._prefer == self._other.name:
                cells.setdefault(column, []).append((places, rows))
            elif self._prefer is None and self._onto.columns[column].derived is None:
                self._clash_cells(column, found.ids, (None, places, rows))

    def _unequal(self, column: str, places: Ints, rows: Ints) -> Bools:
        """Whether cells differ between `onto` and `other`."""
        mine, theirs = self._onto.columns[column], self._other.columns[column]
        one = page_reader(self._onto.dataset, mine.name)
        two = page_reader(self._other.dataset, theirs.name)
        row_bytes = max(1.0, one.index.mean_row_bytes, two.index.mean_row_bytes)
        step = max(1, int(COMPARED_BYTES / row_bytes))
        found = [np.zeros(0, np.bool_)]
        for at in range(0, len(rows), step):
            before = read_chosen(one, places[at : at + step])
            after = read_chosen(two, rows[at : at + step])
            found.append(differing(before, after, mine.storage, theirs.storage))
        return np.concatenate(found)

    # -------------------------------------------------------------------------- clashes

    def _clash_cells(
        self, column: str, ids: NDArray[Any], rows: tuple[Ints | None, Ints, Ints]
    ) -> None:
        """Note cells that have other values in base (unless rows are None), `onto` and `other`."""
        ours_first = self._onto.name == "ours"
        before = {each.id: each.name for each in self._onto.base.schema.columns}
        name = before.get(column, self._onto.columns[column].name)
        told = []
        for at in range(min(len(ids), self._clashes.room)):
            sides = (self._onto.base, self._onto.dataset, self._other.dataset)
            base, onto, other = (
                None if of is None else _value(version, column, int(of[at]))
                for version, of in zip(sides, rows, strict=True)
            )
            told.append(
                cell_clash(
                    format_row_id(ids[at]),
                    key_of(self._onto, ids[at : at + 1]),
                    name,
                    (base, onto, other) if ours_first else (base, other, onto),
                )
            )
        if len(ids):
            self._clashes.add(told, len(ids))


def key_of(side: Side, row_id: NDArray[Any]) -> dict[str, Any]:
    """The key of a row, where the dataset's property "key" names columns for it."""
    named = side.dataset.root.properties.get("key")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list | tuple):
        return {}
    row, _ = side.find(row_id)
    columns = [each for each in side.dataset.schema.columns if each.name in names]
    if int(row[0]) < 0:
        return {}
    return {each.name: _value(side.dataset, each.id, int(row[0])) for each in columns}


def _value(dataset: StoredDataset, column_id: str, row: int) -> Any:
    """One cell, given its physical row; None where the version has no such column."""
    column = next((each for each in dataset.schema.columns if each.id == column_id), None)
    if column is None:
        return None
    return present_row(column, read_chosen(page_reader(dataset, column.name), np.array([row])))


def _among(ids: NDArray[Any], others: NDArray[Any]) -> Bools:
    """Which of `ids` are among `others`."""
    uids = np.union1d(ids["fragment"], others["fragment"])
    mine, theirs = (
        np.searchsorted(uids, each["fragment"]).astype(np.int64) << 32
        | each["offset"].astype(np.int64)
        for each in (ids, others)
    )
    return np.isin(mine, theirs)


def _moves(pieces: Sequence[RowPairs]) -> CellMoves:
    """All moves of one column, by row; of two for one row the last."""
    onto, other = (np.concatenate(each) for each in zip(*pieces, strict=True))
    rows, last = np.unique(onto[::-1], return_index=True)
    return CellMoves(rows, other[::-1][last])
